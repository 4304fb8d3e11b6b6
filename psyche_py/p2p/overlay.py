"""Who passes announcements to whom: a few rings through all peers, each in an order of its own.

In one ring everybody has two neighbours, so the graph is connected whatever the orders are, and the union of
three random rings keeps short ways when many nodes fail. Everybody who has the same list and seed computes
the same rings, and a peer that comes or goes changes only its own neighbours. The seed of an epoch is not
known before the epoch, so nobody can choose a key in order to stand around a victim.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

PUSH_RINGS = 3
"""Announcements are pushed to the neighbours in these rings: six of them."""
LINK_RINGS = 6
"""In runs too large for everybody to be connected to everybody, these neighbours are."""
PUSH_DEGREE = 2 * PUSH_RINGS
LINK_DEGREE = 2 * LINK_RINGS


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
