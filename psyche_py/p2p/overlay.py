"""Who is connected to whom, and who passes announcements to whom: rings through all peers, each in an order
of its own.

In one ring everybody has two neighbours, so the graph is connected whatever the orders are, and the union of
three random rings keeps short ways when many nodes fail. Everybody who has the same list and seed computes
the same rings, and a peer that comes or goes changes only its own neighbours. The seed of an epoch is not
known before the epoch, so nobody can choose a key in order to stand around a victim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise

PUSH_RINGS = 3
"""Announcements are pushed to the neighbours in these rings: six of them."""
PUSH_DEGREE = 2 * PUSH_RINGS
MAX_LINKS = 64
"""Up to so many peers everybody is connected to everybody; in larger runs to so many neighbours in rings.

With 64 of 255 any two have 16 neighbours in common on average, so two hops reach everybody. A link costs 7 ms
of CPU when it is made, 110 KB, a ping in 15 s, and 0.15 ms for each word of our own (docs/mesh.md).
"""
LINK_RINGS = MAX_LINKS // 2
NUM_CARRIERS = 3
"""So many carry a word from its signer to somebody who is not connected to that."""
_STRIDE = 101
"""Spreads the places that they are counted from."""


def choose_neighbours(own_key: bytes, keys: Iterable[bytes], seed: bytes, num_rings: int) -> frozenset[bytes]:
    """The neighbours of ``own_key`` (32 B) in rings through it and ``keys``; at most two per ring."""
    members = {own_key, *keys}
    neighbours: set[bytes] = set()
    for ring in range(num_rings):
        order = sorted(members, key=lambda key: rank_key(key, seed, ring))
        place = order.index(own_key)
        neighbours |= {order[place - 1], order[(place + 1) % len(order)]}
    return frozenset(neighbours - {own_key})


def rank_key(key: bytes, seed: bytes, ring: int) -> bytes:
    """Where a key stands in a ring."""
    return hashlib.blake2b(bytes([ring]) + key, digest_size=16, key=seed[:64]).digest()


@lru_cache(maxsize=4)
def draw_links(members: tuple[bytes, ...], seed: bytes) -> Links:
    """The links of all ``members`` (ascending keys). Remembered: in a simulation all members ask."""
    num = len(members)
    # in an order that nobody could choose a key for
    members = tuple(sorted(members, key=lambda key: rank_key(key, seed, LINK_RINGS)))
    if num - 1 <= MAX_LINKS:
        everybody = (1 << num) - 1
        return Links(members, tuple(everybody ^ 1 << place for place in range(num)))
    links = [0] * num
    for ring in range(LINK_RINGS):
        order = sorted(range(num), key=lambda place: rank_key(members[place], seed, ring))
        for place, following in pairwise([*order, order[0]]):
            links[place] |= 1 << following
            links[following] |= 1 << place
    return Links(members, tuple(links))


class Links:
    """Who keeps a connection to whom, by the list and the seed alone. Made by :func:`draw_links`."""

    def __init__(self, members: tuple[bytes, ...], links: tuple[int, ...]) -> None:
        self._members = members
        self._places = {key: place for place, key in enumerate(members)}
        self._links = links  # bitmaps of places

    def get_links(self, key: bytes) -> frozenset[bytes]:
        """A member's neighbours."""
        links = self._links[self._places[key]]
        return frozenset(other for place, other in enumerate(self._members) if links >> place & 1)

    def get_bitmap(self, keys: Iterable[bytes]) -> int:
        """A set of members, for ``hidden`` below."""
        return sum(1 << self._places[key] for key in keys)

    def carries(self, own_key: bytes, signer: bytes, target: bytes, hidden: int) -> bool:
        """Whether ``own_key``, which has heard something from its signer, has to tell ``target`` of it.

        That is so when these two are not connected and we are one of the first few who are to both, counted
        from a place that is another one for every pair. Two members that nobody can dial, both in the bitmap
        ``hidden``, are not connected.
        """
        own, a, b = self._places[own_key], self._places[signer], self._places[target]
        is_parted = bool(hidden >> a & hidden >> b & 1)
        if self._links[a] >> b & 1 and not is_parted:
            return False
        common = self._links[a] & self._links[b]
        if (hidden >> a | hidden >> b) & 1:
            common &= ~hidden
        start = (a + b) * _STRIDE % len(self._members)
        low, up_to_us = (1 << start) - 1, (1 << own) - 1
        before_us = common & up_to_us & ~low if own >= start else common & (up_to_us | ~low)
        return before_us.bit_count() < NUM_CARRIERS
