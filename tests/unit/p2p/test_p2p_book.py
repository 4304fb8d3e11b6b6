"""Blob store, allow-list, and which peers a large mesh keeps."""

from __future__ import annotations

import hashlib

import pytest

from psyche_py.p2p.allowlist import AllowList
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import StoreFull
from psyche_py.p2p.hint import EMPTY_HINT, Address, pack_hint
from psyche_py.p2p.libp2p_adapter import choose_mesh
from psyche_py.p2p.overlay import LINK_RINGS, PUSH_RINGS, choose_neighbours
from psyche_py.p2p.port import PeerInfo

A, B, C = (bytes([n]) * 32 for n in (1, 2, 3))


def test_store() -> None:
    store = BlobStore(max_bytes=10)
    digest = store.put(b"12345")
    assert digest == hashlib.sha256(b"12345").digest()
    assert store.put(b"12345") == digest
    assert (store.total_bytes, len(store), store.has(digest), store.get(digest)) == (5, 1, True, b"12345")
    with pytest.raises(StoreFull):
        store.put(b"123456")
    store.drop(digest)
    store.drop(digest)
    assert (store.total_bytes, len(store), store.has(digest), store.get(digest)) == (0, 0, False, None)
    store.put(b"1234567890")


def test_allow_list_says_what_changed() -> None:
    allowed = AllowList(A)
    assert B not in allowed
    first = allowed.replace([PeerInfo(A, EMPTY_HINT), PeerInfo(B, EMPTY_HINT), PeerInfo(C, EMPTY_HINT)])
    assert (first.added, first.removed, first.moved) == ({B, C}, set(), set())
    assert A not in allowed
    second = allowed.replace([PeerInfo(B, pack_hint("10.0.0.1", 5))])
    assert (second.added, second.removed, second.moved) == (set(), {C}, {B})
    assert allowed.get_address(B) == Address("10.0.0.1", 5)
    assert allowed.get_address(C) is None
    assert list(allowed) == [B]
    with pytest.raises(ValueError, match="32 bytes"):
        allowed.replace([PeerInfo(b"short", EMPTY_HINT)])


def test_a_malformed_hint_costs_only_its_owner() -> None:
    allowed = AllowList(A)
    allowed.replace([PeerInfo(B, b"\xff" * 64), PeerInfo(C, b"")])
    assert len(allowed) == 2
    assert allowed.get_address(B) is None
    assert allowed.get_address(C) is None


def test_large_meshes_stay_connected_with_few_links() -> None:
    keys = [hashlib.sha256(bytes([n])).digest() for n in range(200)]
    chosen = {key: choose_mesh(key, [other for other in keys if other != key], b"seed") for key in keys}
    assert all(8 <= len(peers) <= 2 * LINK_RINGS for peers in chosen.values())
    links = {key: set(peers) for key, peers in chosen.items()}
    assert all(key in links[other] for key, peers in chosen.items() for other in peers)
    reached, frontier = {keys[0]}, {keys[0]}
    while frontier:
        frontier = set().union(*(links[key] for key in frontier)) - reached
        reached |= frontier
    assert reached == set(keys)
    assert choose_mesh(keys[0], keys[1:10], b"seed") == frozenset(keys[1:10])


def test_announcements_reach_everybody_in_few_hops_though_a_third_has_failed() -> None:
    keys = [hashlib.sha256(bytes([n])).digest() for n in range(256)]
    pushes = {key: choose_neighbours(key, keys, b"epoch 1", PUSH_RINGS) for key in keys}
    failed = set(keys[::3])
    reached, frontier, hops = {keys[1]}, {keys[1]}, 0
    while frontier:
        frontier = set().union(*(pushes[key] for key in frontier)) - reached - failed
        reached |= frontier
        hops += bool(frontier)
    assert len(reached) >= len(keys) - len(failed) - 2  # repair reaches who has lost all six neighbours
    assert hops <= 7


def test_the_overlay_is_drawn_by_the_seed_and_a_newcomer_changes_little() -> None:
    keys = [hashlib.sha256(bytes([n])).digest() for n in range(100)]
    one = {key: choose_neighbours(key, keys, b"epoch 1", PUSH_RINGS) for key in keys}
    other = {key: choose_neighbours(key, keys, b"epoch 2", PUSH_RINGS) for key in keys}
    assert sum(one[key] == other[key] for key in keys) < 5
    more = [*keys, b"n" * 32]
    changed = [key for key in keys if choose_neighbours(key, more, b"epoch 1", PUSH_RINGS) != one[key]]
    assert len(changed) <= 2 * PUSH_RINGS
    assert choose_neighbours(A, [A], b"", PUSH_RINGS) == frozenset()
    assert choose_neighbours(A, [B], b"", PUSH_RINGS) == {B}
