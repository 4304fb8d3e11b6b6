"""A donor of bench_sharing.py: a process that shares a model of noise. mesh_child.py: how it is talked to."""

from __future__ import annotations

import sys

import trio
from mesh_child import get_cpu_seconds, hear, parse_peers, say

from psyche_py.client.model_share import ModelShare, SharedModel
from psyche_py.p2p.libp2p_adapter import open_libp2p_network


async def share(seed: bytes, megabytes: int) -> None:
    """``{"peers": ...}``, ``{"epoch": n}`` (share it as the start of that epoch), ``{"cpu": 1}``."""
    from bench_sharing import make_noise_model

    snapshot = make_noise_model(megabytes)
    async with open_libp2p_network(seed) as network:
        donor = ModelShare(network)
        num_bytes = sum(tensor.nbytes for tensor in snapshot.tensors.values())
        digest = snapshot.digest.hex()
        say(key=network.key.hex(), hint=network.hint.hex(), digest=digest, num_bytes=num_bytes)
        while True:
            command = await hear()
            if "peers" in command:
                network.set_peers(parse_peers(command["peers"]))
            elif "epoch" in command:
                donor.offer(SharedModel.of_snapshot(command["epoch"], snapshot))
            say(cpu=get_cpu_seconds(), sent=network.stats.sent["blob"])


if __name__ == "__main__":
    trio.run(share, bytes.fromhex(sys.argv[1]), int(sys.argv[2]))
