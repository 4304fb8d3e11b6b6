"""The processes that bench_mesh.py measures: a holder of blobs, a plain TLS server, an announcing mesh node.

Each prints one JSON line when it is up and one in answer to every JSON line it reads.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import ssl
import struct
import sys
import time
from typing import Any

import trio

from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo

BODY_BYTES = 126
"""As long as the announcement of a training result."""
STAMP = struct.Struct("<BId")


def get_cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def hear() -> dict[str, Any]:
    """The next command; the end of the parent is the end of the child."""
    line = await trio.to_thread.run_sync(sys.stdin.readline)
    if not line:
        raise SystemExit
    command: dict[str, Any] = json.loads(line)
    return command


async def hold_blobs(seed: bytes) -> None:
    """Serve blobs of noise, one per size asked for; ``{"size": n}``, ``{"peers": ...}`` or ``{"cpu": 1}``."""
    async with open_libp2p_network(seed) as network:
        say(key=network.key.hex(), hint=network.hint.hex())
        while True:
            command = await hear()
            if "peers" in command:
                network.set_peers(parse_peers(command["peers"]))
            elif "size" in command:
                blob = random.Random(command["seed"]).randbytes(command["size"])
                say(digest=network.store.put(blob).hex())
                continue
            say(cpu=get_cpu_seconds(), sent=network.stats.sent["blob"])


async def serve_tls(certificate: str) -> None:
    """Plain asyncio TLS: four bytes ask for a number of bytes, which follow."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    data = random.Random(0).randbytes(1 << 20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while asked := await reader.read(4):
            left = int.from_bytes(asked, "little")
            while left:
                writer.write(data[:left])
                left -= min(left, len(data))
                await writer.drain()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    say(port=server.sockets[0].getsockname()[1])
    while await asyncio.to_thread(sys.stdin.readline):
        say(cpu=get_cpu_seconds())


def parse_peers(peers: list[list[str]]) -> list[PeerInfo]:
    return [PeerInfo(bytes.fromhex(key), bytes.fromhex(hint)) for key, hint in peers]


class Announcer:
    """A node of the mesh that publishes stamped bodies on command and takes note of what it hears."""

    def __init__(self, network: Libp2pNetwork) -> None:
        self.network = network
        self.delays_ms: dict[int, list[float]] = {}
        self.heard: dict[int, set[tuple[bytes, int]]] = {}

    async def listen(self) -> None:
        """All nodes run on one machine, so their monotonic clocks are the same."""
        async for item in self.network.announcements():
            phase, number, sent = STAMP.unpack_from(item.body)
            self.delays_ms.setdefault(phase, []).append(1e3 * (time.monotonic() - sent))
            self.heard.setdefault(phase, set()).add((item.sender_key, number))

    async def publish(self, phase: int, count: int, burst: int, period: float, rng: random.Random) -> None:
        """``count`` bodies, ``burst`` at once, at a random time within each ``period`` of seconds."""
        start = trio.current_time()
        for number in range(count):
            if number % burst == 0:
                await trio.sleep_until(start + period * (number // burst + rng.random()))
            await self.network.publish(STAMP.pack(phase, number, time.monotonic()).ljust(BODY_BYTES, b"\0"))

    def report(self, phase: int, *, is_full: bool) -> None:
        """Short while the parent polls, so that the answers cost next to nothing of what is measured."""
        if not is_full:
            say(cpu=get_cpu_seconds(), heard=len(self.heard.get(phase, ())))
            return
        say(
            cpu=get_cpu_seconds(),
            heard=len(self.heard.get(phase, ())),
            delays_ms=self.delays_ms.get(phase, []),
            dropped=dict(self.network.stats.dropped + self.network.stats.offences),
            sent_bytes=self.network.stats.sent["announcement"],
        )


async def announce(seed: bytes) -> None:
    """``{"peers": ...}``, then any number of ``{"phase": n, "count": ..., ...}`` and ``{"report": n}``."""
    rng = random.Random(seed)
    async with open_libp2p_network(seed, rng=rng) as network, trio.open_nursery() as nursery:
        node = Announcer(network)
        nursery.start_soon(node.listen)
        say(key=network.key.hex(), hint=network.hint.hex())
        while True:
            command = await hear()
            if "peers" in command:
                network.set_peers(parse_peers(command["peers"]))
                with trio.fail_after(300):
                    while network.num_connected < command["connected"]:
                        await trio.sleep(0.05)
                say(connected=network.num_connected, cpu=get_cpu_seconds())
            elif "report" in command:
                node.report(command["report"], is_full=command["full"])
            else:
                cpu = get_cpu_seconds()
                await node.publish(
                    command["phase"], command["count"], command["burst"], command["period"], rng
                )
                say(cpu_before=cpu)


def main() -> None:
    role, argument = sys.argv[1:]
    if role == "tls":
        asyncio.run(serve_tls(argument))
    else:
        trio.run(hold_blobs if role == "holder" else announce, bytes.fromhex(argument))


if __name__ == "__main__":
    main()
