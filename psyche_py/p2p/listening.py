"""Where we listen, and what we tell others to dial."""

from __future__ import annotations

import errno
import ipaddress
import socket

import trio

from psyche_py.p2p.errors import HintError, ListenFailed, PortTaken
from psyche_py.p2p.hint import EMPTY_HINT, pack_hint, parse_address

MAX_ADDRESSES = 4
ANNOUNCE_NONE = "none"
"""Instead of an address to announce: nobody shall dial us."""
PRIVATE_SUFFIXES = (
    ".localhost",
    ".local",
    ".lan",
    ".internal",
    ".home.arpa",
    ".localdomain",
    ".invalid",
    ".test",
)
_PORT_TAKEN_ERRNOS = (errno.EADDRINUSE,)


def check_port(ip: str, port: int) -> None:
    """Raises PortTaken, ListenFailed. The library sets SO_REUSEPORT and would share the port silently."""
    family = socket.AF_INET6 if ":" in ip else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((ip, port))
            probe.listen(1)
        except PermissionError as error:
            raise ListenFailed(f"Port {port} needs privileges: {error}.", "Use a port above 1023.") from error
        except OSError as error:
            if port and error.errno in _PORT_TAKEN_ERRNOS:
                raise PortTaken(ip, port) from error
            raise ListenFailed(
                f"Cannot listen on {ip} port {port}: {error}.", "Use an address of this machine, or 0.0.0.0."
            ) from error


async def resolve(host: str) -> list[str]:
    """IP addresses of a host, at most a few; none when the name does not exist."""
    try:
        found = await trio.socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(item[4][0]) for item in found))[:MAX_ADDRESSES]


async def resolve_listen_host(host: str) -> str:
    addresses = await resolve(host)
    if not addresses:
        raise ListenFailed(f"Cannot listen on {host!r}: no such host.", "Use an IP address of this machine.")
    return addresses[0]


def make_own_hint(ip: str, port: int, announce: str | None, *, is_public: bool) -> bytes:
    """What others should dial, packed; EMPTY_HINT: nobody can dial us, we dial them.

    ``announce`` None: the address we listen on, as far as others can use it. In a public run only a public
    address or a name is given out. Raises HintError when ``announce`` is malformed, or private there.
    """
    if announce == ANNOUNCE_NONE:
        return EMPTY_HINT
    if announce is not None:
        address = parse_address(announce, port)
        if is_public and not is_public_host(address.host):
            raise HintError(
                f"{address.host} is an address that the clients of a public run cannot dial.",
                "Give --announce your public address and a forwarded port, or: --announce none",
            )
        return pack_hint(address.host, address.port)
    ip = get_interface_address(ip)
    return EMPTY_HINT if is_public and not is_public_host(ip) else pack_hint(ip, port)


def is_public_host(host: str) -> bool:
    """Whether clients anywhere can dial it: a global IP address, or a name that is not this machine's.

    Not unspecified, loopback, link-local, private, shared by a carrier's NAT, multicast or reserved.
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        name = host.lower().rstrip(".")
        return "." in name and not name.endswith(PRIVATE_SUFFIXES)
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return ip.is_global and not ip.is_multicast


def get_interface_address(ip: str) -> str:
    """The address of one interface that we listen on when we listen on ``ip``."""
    return _get_own_address(ip) if ip in ("0.0.0.0", "::") else ip


def _get_own_address(wildcard: str) -> str:
    """The address this machine uses towards the internet; nothing is sent to find out."""
    family, target = (socket.AF_INET6, "2001:db8::1") if ":" in wildcard else (socket.AF_INET, "198.51.100.1")
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((target, 9))
        except OSError:  # no route: a machine without a network reaches only itself
            return "::1" if ":" in wildcard else "127.0.0.1"
        return str(probe.getsockname()[0])
