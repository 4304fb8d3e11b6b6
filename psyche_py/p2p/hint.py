"""The address hint: 64 bytes in a client's entry on chain that say where it can be dialed.

kind u8 (0 none, 1 ip4, 2 ip6, 3 dns), transport u8 (0 tcp), port u16 little-endian, then 60 bytes:
4 or 16 raw address bytes, or an ASCII dns name; zero padded. The program checks the same rules.
"""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import dataclass

from psyche_py.p2p.errors import HintError

HINT_BYTES = 64
MAX_DNS_BYTES = 60
KIND_NONE, KIND_IP4, KIND_IP6, KIND_DNS = 0, 1, 2, 3
TRANSPORT_TCP = 0
EMPTY_HINT = bytes(HINT_BYTES)

_HEAD = struct.Struct("<BBH")
_DNS_NAME = re.compile(r"(?=.{1,60}$)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_NUMBERS_ONLY = re.compile(r"[0-9.]+\Z")


@dataclass(frozen=True, slots=True)
class Address:
    """A host (IP literal or dns name) and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def pack_hint(host: str, port: int) -> bytes:
    """Pack an IP literal or dns name. Raises HintError."""
    if not 1 <= port <= 65_535:
        raise HintError(f"Port {port} is outside 1..65535.")
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower().rstrip(".")
        if not _DNS_NAME.match(name) or _NUMBERS_ONLY.match(name):
            raise HintError(
                f"{host!r} is neither an IP address nor a dns name of at most {MAX_DNS_BYTES} characters."
            ) from None
        kind, raw = KIND_DNS, name.encode("ascii")
    else:
        if ip.is_unspecified or ip.is_multicast or getattr(ip, "scope_id", None):
            raise HintError(f"{host} is not an address others can dial.")
        kind, raw = (KIND_IP4 if ip.version == 4 else KIND_IP6), ip.packed
    return (_HEAD.pack(kind, TRANSPORT_TCP, port) + raw).ljust(HINT_BYTES, b"\0")


def unpack_hint(hint: bytes) -> Address | None:
    """The address in a hint, or None when it holds none. Raises HintError on malformed bytes."""
    if len(hint) != HINT_BYTES:
        raise HintError(f"An address hint has {HINT_BYTES} bytes, not {len(hint)}.")
    kind, transport, port = _HEAD.unpack_from(hint)
    body = hint[_HEAD.size :]
    if kind == KIND_NONE:
        if any(hint):
            raise HintError("An empty address hint has bytes other than zero.")
        return None
    if transport != TRANSPORT_TCP:
        raise HintError(f"Transport {transport} is unknown.")
    if port == 0:
        raise HintError("The port is zero.")
    if kind in (KIND_IP4, KIND_IP6):
        length = 4 if kind == KIND_IP4 else 16
        if any(body[length:]):
            raise HintError("Bytes after the address are not zero.")
        host = str(ipaddress.ip_address(body[:length]))
    elif kind == KIND_DNS:
        host = _unpack_name(body)
    else:
        raise HintError(f"Address kind {kind} is unknown.")
    if pack_hint(host, port) != hint:
        raise HintError("The address is not in canonical form.")
    return Address(host, port)


def _unpack_name(body: bytes) -> str:
    raw = body.rstrip(b"\0")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        raise HintError("The dns name is not ASCII.") from None


def parse_address(text: str, default_port: int = 0) -> Address:
    """Parse ``host``, ``host:port``, ``[ip6]:port`` as a user types it. Raises HintError."""
    match = re.fullmatch(
        r"\[(?P<ip6>[^\]]+)\](?::(?P<p6>\d+))?|(?P<host>[^:]+)(?::(?P<p4>\d+))?", text.strip()
    )
    if match is None:
        try:
            return Address(str(ipaddress.IPv6Address(text.strip())), default_port)
        except ValueError:
            raise HintError(f"{text!r} is not host:port.", "For example 203.0.113.7:4001.") from None
    host = match["ip6"] or match["host"]
    port = int(match["p6"] or match["p4"] or default_port)
    return Address(host, port)
