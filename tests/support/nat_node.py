"""A node of the mesh in a process of its own; answers each JSON line with one. Run as a script."""

from __future__ import annotations

import json
import random
import sys
from typing import Any

import trio

from psyche_py.p2p.dial_back import call
from psyche_py.p2p.hint import Address
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo, Way
from psyche_py.p2p.seen import compare_ports


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


async def obey(network: Libp2pNetwork, command: dict[str, Any]) -> dict[str, Any]:
    """Do one thing; 60 seconds are enough for any."""
    match command:
        case {"peers": peers}:
            known = [PeerInfo(bytes.fromhex(key), bytes.fromhex(hint)) for key, hint in peers]
            network.set_peers(known, command.get("seed", "").encode())
        case {"connected": number}:
            while network.num_connected < number:
                await trio.sleep(0.02)
        case {"publish": text}:
            await network.publish(text.encode())
        case {"hear": _}:
            return {"heard": (await network.announcements().receive()).body.decode()}
        case {"put": size}:
            return {"digest": network.store.put(random.Random(size).randbytes(size)).hex()}
        case {"fetch": digest, "size": size, "from": holder}:
            key = bytes.fromhex(holder)
            data = await network.fetch(bytes.fromhex(digest), size, [key], deadline_seconds=50)
            return {"size": len(data)}
        case {"ask": key}:
            target = bytes.fromhex(key)
            answer = await network.request(target, "who", b"", max_response_bytes=99, deadline_seconds=50)
            return {"answer": answer.hex()}
        case {"call": host, "port": port}:
            return {"answer": int(await call(host, port, network.port))}
        case {"ports": places}:
            observers = [Address(host, port) for host, port in places]
            return {"rule": (await compare_ports(observers, random.randbytes(16))).value}
        case {"punch": key}:
            return await measure_punch(network, bytes.fromhex(key))
        case {"way": key, "to": way}:
            link = network._links[bytes.fromhex(key)]
            await link.wait_until(lambda: link.way == way and link.has_circuit == (way == Way.RELAYED))
        case {"circuits": number}:
            while network._relay.num_circuits != number:
                await trio.sleep(0.02)
        case {"failed": number}:
            while network.stats.punches["failed"] < number:
                await trio.sleep(0.02)
    peers = sorted(key.hex() for key in network.connected_peers)
    return {
        "connected": peers,
        "ways": {key: network._links[bytes.fromhex(key)].way for key in peers},
        "punches": dict(network.stats.punches),
        "offences": dict(network.stats.offences),
    }


async def measure_punch(network: Libp2pNetwork, key: bytes) -> dict[str, Any]:
    """Seconds from the circuit that a request makes to the direct connection; None after 10."""
    link = network._links[key]

    async def ask() -> None:
        await network.request(key, "who", b"", max_response_bytes=99, deadline_seconds=50)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await link.wait_until(lambda: link.way is Way.RELAYED)
        started = trio.current_time()
        with trio.move_on_after(10) as deadline:
            await link.wait_until(lambda: link.way is Way.PUNCHED)
        seconds = trio.current_time() - started
    return {"seconds": None if deadline.cancelled_caught else seconds}


async def main(seed: str, host: str, announce: str) -> None:
    """Serve until the input ends."""

    async def who(sender: bytes, body: bytes) -> bytes:
        return sender

    async with open_libp2p_network(bytes.fromhex(seed), host, 4001, announce) as network:
        network.set_request_handler("who", who)
        say(key=network.key.hex(), hint=network.hint.hex())
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            with trio.fail_after(60):
                facts = await obey(network, json.loads(line))
            say(**facts)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
