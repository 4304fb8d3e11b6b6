"""Finding peers of the run in the same local network, by mDNS: two behind one router need no third.

Each node registers `KEY._psyche-mesh._tcp.local.` (its key in base32) with its address and port. What others
register is a rumour: it is looked at for allowed keys only, and whoever answers there has to prove the key.
py-libp2p's own discovery shares the service type of all libp2p programs and needs its address book; this is
the same zeroconf below. It runs in a thread of its own.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from psyche_py.p2p.hint import Address
from psyche_py.p2p.identity import KEY_BYTES

SERVICE_TYPE = "_psyche-mesh._tcp.local."
QUESTION_MILLISECONDS = 3_000

OnFound = Callable[[bytes, Address], None]
"""``on_found(key, address)``: somebody says that the peer ``key`` (32 B) is there."""


@asynccontextmanager
async def search_lan(
    key: bytes, ip: str, port: int, is_wanted: Callable[[bytes], bool], on_found: OnFound
) -> AsyncIterator[None]:
    """Be found at ``ip`` (a literal of this machine) and ``port``, and find others, within the context.

    ``is_wanted(key)`` is called in another thread. Raises OSError where the network has no multicast.
    """
    from zeroconf import ServiceBrowser, ServiceInfo, ServiceListener, Zeroconf

    token = trio.lowlevel.current_trio_token()
    own_name = f"{_encode(key)}.{SERVICE_TYPE}"

    class Listener(ServiceListener):
        """Called by zeroconf in its thread."""

        def add_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
            found = parse_name(name)
            if found is None or found == key or not is_wanted(found):
                return
            info = zeroconf.get_service_info(kind, name, QUESTION_MILLISECONDS)
            if info is not None and info.port and (ips := info.parsed_addresses()):
                token.run_sync_soon(on_found, found, Address(ips[0], info.port))

        def update_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
            self.add_service(zeroconf, kind, name)

        def remove_service(self, zeroconf: Zeroconf, kind: str, name: str) -> None:
            """An address that is no longer good fails when it is dialed."""

    def start() -> Zeroconf:
        zeroconf = Zeroconf(interfaces=[ip])
        raw = socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
        server = f"{_encode(key)}.local."
        zeroconf.register_service(ServiceInfo(SERVICE_TYPE, own_name, port, addresses=[raw], server=server))
        ServiceBrowser(zeroconf, SERVICE_TYPE, listener=Listener())
        return zeroconf

    zeroconf = await trio.to_thread.run_sync(start)
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(zeroconf.close)


def parse_name(name: str) -> bytes | None:
    """The key in a service's name; None when it has none."""
    label, _, rest = name.partition(".")
    if rest != SERVICE_TYPE:
        return None
    try:
        key = base64.b32decode(label.upper() + "=" * (-len(label) % 8))
    except ValueError:
        return None
    return key if len(key) == KEY_BYTES else None


def _encode(key: bytes) -> str:
    return base64.b32encode(key).decode("ascii").rstrip("=").lower()
