"""Peers without an address in the account find each other on the local network (here: the loopback)."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack

import pytest
from hostile_mesh import run, until

from psyche_py.p2p.hint import EMPTY_HINT, Address
from psyche_py.p2p.lan import SERVICE_TYPE, _encode, parse_name, search_lan
from psyche_py.p2p.libp2p_adapter import open_libp2p_network
from psyche_py.p2p.port import PeerInfo


def test_two_that_announce_nothing_connect_directly() -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            nodes = [
                await stack.enter_async_context(
                    open_libp2p_network(os.urandom(32), announce="none", lan=True)
                )
                for _ in range(2)
            ]
            for node in nodes:
                node.set_peers([PeerInfo(other.key, EMPTY_HINT) for other in nodes])
            await until(lambda: all(node.num_connected == 1 for node in nodes))
            a, b = nodes
            assert a._links[b.key].is_direct
            assert await b.fetch(a.store.put(b"data"), 4, [a.key], deadline_seconds=60) == b"data"

    run(main)


def test_only_wanted_keys_are_asked_for_and_a_rumour_is_tried_once() -> None:
    liar, wanted, other = os.urandom(32), os.urandom(32), os.urandom(32)

    async def main() -> None:
        found: list[bytes] = []
        async with (
            search_lan(wanted, "127.0.0.1", 9, lambda key: False, lambda key, address: None),
            search_lan(other, "127.0.0.1", 9, lambda key: False, lambda key, address: None),
            search_lan(
                liar, "127.0.0.1", 9, lambda key: key == wanted, lambda key, address: found.append(key)
            ),
        ):
            await until(lambda: bool(found))
            assert set(found) == {wanted}
        async with open_libp2p_network(b"\1" * 32) as a, open_libp2p_network(b"\2" * 32) as b:
            a.set_peers([PeerInfo(b.key, b.hint)])
            a._on_lan_peer(b.key, Address("127.0.0.1", 9))  # nobody there
            a._on_lan_peer(wanted, Address("127.0.0.1", 9))  # nobody of ours
            assert set(a._lan) == {b.key}
            b.set_peers([PeerInfo(a.key, EMPTY_HINT)])
            await until(lambda: a.num_connected == b.num_connected == 1)
            assert not a._lan

    run(main)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "x",
        f"x.{SERVICE_TYPE}",
        f"{'a' * 52}.other.local.",
        f"{'1' * 52}.{SERVICE_TYPE}",
        f".{SERVICE_TYPE}",
    ],
)
def test_names_that_are_no_keys(name: str) -> None:
    assert parse_name(name) is None


def test_names_carry_keys() -> None:
    key = os.urandom(32)
    assert parse_name(f"{_encode(key)}.{SERVICE_TYPE}") == key
