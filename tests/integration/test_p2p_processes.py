"""Peers as processes of their own: stopped, killed in the middle of a transfer, and started again."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from psyche_py.p2p import libp2p_link, libp2p_services
from psyche_py.p2p.errors import FetchFailed
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo

pytestmark = pytest.mark.processes

BLOB_BYTES = 20_000_000
CHILD = """
import sys, json, random, trio
from psyche_py.p2p.libp2p_adapter import open_libp2p_network
from psyche_py.p2p.port import PeerInfo

async def main(seed, parent_key, parent_hint, size):
    async with open_libp2p_network(bytes.fromhex(seed)) as network:
        network.store.put(random.Random(0).randbytes(size))
        network.set_peers([PeerInfo(bytes.fromhex(parent_key), bytes.fromhex(parent_hint))])
        print(json.dumps({"key": network.key.hex(), "hint": network.hint.hex()}), flush=True)
        number = 0
        while True:
            await network.publish(number.to_bytes(4, "little"))
            number += 1
            await trio.sleep(0.1)

trio.run(main, *sys.argv[1:4], int(sys.argv[4]))
"""


def run(main: Callable[[], Awaitable[None]], seconds: float = 240) -> None:
    async def bounded() -> None:
        with trio.fail_after(seconds):
            await main()

    trio.run(bounded)


async def until(condition: Callable[[], bool], seconds: float = 120) -> None:
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def start_peer(parent: Libp2pNetwork, seed: bytes) -> AsyncIterator[tuple[trio.Process, PeerInfo]]:
    command = [sys.executable, "-c", CHILD, seed.hex(), parent.key.hex(), parent.hint.hex(), str(BLOB_BYTES)]
    process = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        line = b""
        while not line.endswith(b"\n"):
            part = await process.stdout.receive_some(1_000)
            assert part, "the peer has died"
            line += part
        said = json.loads(line)
        yield process, PeerInfo(bytes.fromhex(said["key"]), bytes.fromhex(said["hint"]))
    finally:
        process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()
            await process.stdout.aclose()


def make_blob() -> bytes:
    import random

    return random.Random(0).randbytes(BLOB_BYTES)


def test_stopped_peer_is_replaced_then_cut_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libp2p_link, "PING_SECONDS", 0.5)
    monkeypatch.setattr(libp2p_services, "PING_DEADLINE_SECONDS", 3.0)

    async def main() -> None:
        digest = hashlib.sha256(make_blob()).digest()
        async with (
            open_libp2p_network(b"\1" * 32) as network,
            start_peer(network, b"\2" * 32) as (process, one),
            start_peer(network, b"\3" * 32) as (_, two),
        ):
            network.set_peers([one, two])
            await until(lambda: network.num_connected == 2)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(
                    partial(network.fetch, digest, BLOB_BYTES, [one.key, two.key], deadline_seconds=120)
                )
                await until(lambda: network.stats.received["blob"] > 1_000_000)
                os.kill(process.pid, signal.SIGSTOP)
            assert network.store.has(digest)
            await until(lambda: network.connected_peers == {two.key})
            os.kill(process.pid, signal.SIGCONT)
            await until(lambda: network.num_connected == 2)

    run(main)


def test_killed_peer_is_noticed_at_once_and_its_successor_found() -> None:
    async def main() -> None:
        digest = hashlib.sha256(make_blob()).digest()
        async with open_libp2p_network(b"\1" * 32) as network:
            async with start_peer(network, b"\2" * 32) as (process, one):
                network.set_peers([one])
                await until(lambda: network.num_connected == 1)

                async def fetch() -> None:
                    with pytest.raises(FetchFailed):
                        await network.fetch(digest, BLOB_BYTES, [one.key], deadline_seconds=1.5)

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(fetch)
                    await until(lambda: network.stats.received["blob"] > 1_000_000)
                    os.kill(process.pid, signal.SIGKILL)
                    await until(lambda: network.num_connected == 0)
            async with start_peer(network, b"\2" * 32) as (_, successor):
                assert successor.key == one.key
                # our address book is old: the successor dials us
                await until(lambda: network.num_connected == 1)
                before = network.stats.received["blob"]
                assert (
                    len(await network.fetch(digest, BLOB_BYTES, [one.key], deadline_seconds=60)) == BLOB_BYTES
                )
                assert network.stats.received["blob"] - before == BLOB_BYTES
                while network.announcements().statistics().current_buffer_used:
                    network.announcements().receive_nowait()
                assert (await network.announcements().receive()).sender_key == one.key

    run(main)
