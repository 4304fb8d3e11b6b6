"""Blob store, allow-list, and which peers a large mesh keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import pytest

from psyche_py.p2p.allowlist import AllowList
from psyche_py.p2p.blob import BlobStore
from psyche_py.p2p.errors import StoreFull
from psyche_py.p2p.hint import EMPTY_HINT, Address, pack_hint
from psyche_py.p2p.neighbours import Neighbours
from psyche_py.p2p.overlay import MAX_LINKS, NUM_CARRIERS, PUSH_RINGS, choose_neighbours
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


def make_keys(num: int) -> list[bytes]:
    return [hashlib.sha256(n.to_bytes(2, "little")).digest() for n in range(num)]


def make_neighbours(keys: list[bytes], hidden: Collection[bytes] = ()) -> dict[bytes, Neighbours]:
    nodes = {key: Neighbours(key) for key in keys}
    for key, node in nodes.items():
        node.draw([other for other in keys if other != key], b"epoch 1")
        node.set_hidden(other for other in hidden if other != key)
    return nodes


@dataclass
class Spread:
    """By how many hops a word came to each node, and how many copies were sent."""

    hops: dict[bytes, int]
    num_copies: int


def spread(
    nodes: dict[bytes, Neighbours], connected: dict[bytes, frozenset[bytes]], signer: bytes, dead: set[bytes]
) -> Spread:
    """Everybody passes it on as `Neighbours` says; the dead are not known to be."""
    hops, frontier, num_copies = {signer: 0}, [(signer, signer)], 0
    while frontier:
        heard: list[tuple[bytes, bytes]] = []
        for key, source in frontier:
            if key == signer:
                targets = sorted(connected[key])
            elif source == signer:
                targets = nodes[key].choose_second_targets(connected[key], signer)
            else:
                targets = nodes[key].choose_push_targets(connected[key])
            for target in targets:
                if target in (source, signer):
                    continue
                num_copies += 1
                if target not in hops and target not in dead:
                    hops[target] = hops[key] + 1
                    heard.append((target, key))
        frontier = heard
    return Spread(hops, num_copies)


def get_links(nodes: dict[bytes, Neighbours]) -> dict[bytes, frozenset[bytes]]:
    return {key: node.links for key, node in nodes.items()}


@pytest.mark.parametrize(("num", "num_hops"), [(2, 1), (8, 1), (65, 1), (66, 2), (120, 2), (256, 2)])
def test_a_word_reaches_everybody_in_two_hops_and_in_one_where_all_are_connected(
    num: int, num_hops: int
) -> None:
    nodes = make_neighbours(make_keys(num))
    links = get_links(nodes)
    assert all(len(of_one) <= MAX_LINKS for of_one in links.values())
    assert all(key in links[other] for key, of_one in links.items() for other in of_one)
    for signer in list(nodes)[:20]:
        word = spread(nodes, links, signer, set())
        assert len(word.hops) == num
        assert max(word.hops.values()) == num_hops
        assert word.num_copies <= (1 + NUM_CARRIERS + 2) * num


def test_a_word_reaches_nearly_everybody_in_few_hops_though_a_third_has_failed_unnoticed() -> None:
    keys = make_keys(256)
    nodes, failed = make_neighbours(keys), set(keys[::3])
    for signer in keys[1:60:3]:
        word = spread(nodes, get_links(nodes), signer, failed)
        assert len(word.hops) >= len(keys) - len(failed) - 4  # repair reaches the others within seconds
        assert max(word.hops.values()) <= 4


def test_with_failures_that_are_noticed_more_is_passed_on_and_all_are_reached() -> None:
    keys = make_keys(256)
    nodes, failed = make_neighbours(keys), set(keys[::3])
    connected = {key: of_one - failed for key, of_one in get_links(nodes).items()}
    for signer in keys[1:60:3]:
        word = spread(nodes, connected, signer, failed)
        assert len(word.hops) == len(keys) - len(failed)
        assert max(word.hops.values()) <= 4


def test_who_cannot_be_dialed_hears_each_other_through_a_few_who_can() -> None:
    keys = make_keys(40)
    hidden = frozenset(keys[:30])
    nodes = make_neighbours(keys, hidden)
    connected = get_links(nodes)
    connected |= {key: connected[key] - hidden for key in hidden}
    carried = [nodes[key].choose_second_targets(connected[key], keys[0]) for key in keys[30:]]
    assert sum(map(len, carried)) <= NUM_CARRIERS * 29 + 2 * 10
    for signer in keys[:5]:
        word = spread(nodes, connected, signer, set())
        assert len(word.hops) == 40
        assert max(word.hops.values()) == 2


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
