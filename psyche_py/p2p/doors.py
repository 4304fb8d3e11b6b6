"""How many strangers may stand in the door: connections that have not yet proved an allowed key. No I/O.

Limits hold per address (IPv6: per /64, which is what one household gets) and in all. An address whose
connections keep failing is turned away before any handshake; one attempt a second is earned back.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from ipaddress import IPv6Address, ip_address

from psyche_py.p2p.limits import TokenBucket

MAX_HALF_OPEN = 256
MAX_HALF_OPEN_PER_ADDRESS = 64
"""A NAT or a test may hide many clients behind one address, and all of them start with the epoch."""
FAILURE_RATE, FAILURE_BURST = 1.0, 64.0
"""Connections from one address that may come to nothing, per second and at once."""
MAX_KNOWN_ADDRESSES = 4_096


class Doors:
    """Counts half-open connections by source address."""

    def __init__(self) -> None:
        self._half_open: Counter[str] = Counter()
        self._failures: OrderedDict[str, TokenBucket] = OrderedDict()

    def enter(self, ip: str, now: float) -> bool:
        """Take a place for a new connection from ``ip``; False when there is none. Pair with `leave`."""
        source = get_source(ip)
        bucket = self._failures.get(source)
        if bucket is not None and not bucket.has_token(now):
            return False
        if self._half_open[source] >= MAX_HALF_OPEN_PER_ADDRESS or self._half_open.total() >= MAX_HALF_OPEN:
            return False
        self._half_open[source] += 1
        return True

    def leave(self, ip: str, now: float, *, is_failure: bool) -> None:
        """The connection has been let in, or has come to nothing."""
        source = get_source(ip)
        self._half_open[source] -= 1
        if not self._half_open[source]:
            del self._half_open[source]
        if is_failure:
            bucket = self._failures.pop(source, None) or TokenBucket(FAILURE_RATE, FAILURE_BURST, now)
            bucket.take(now)
            self._failures[source] = bucket
            if len(self._failures) > MAX_KNOWN_ADDRESSES:
                self._failures.popitem(last=False)

    @property
    def num_half_open(self) -> int:
        return self._half_open.total()


def get_source(ip: str) -> str:
    """What the limits count by: an IPv4 address, or the /64 of an IPv6 address."""
    address = ip_address(ip.partition("%")[0])
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(IPv6Address(int(address) >> 64 << 64))
    return str(address)
