"""How fast does a joiner get the model? From 1, 2 and 4 donors, against plain TLS.

    python benchmarks/bench_sharing.py [--megabytes 400] [--repeats 2]

Everything runs on loopback, so all processes share the machine's cores; the bytes go through what a client
uses (slots, manifest, pieces checked and put in place), but nothing is trained. Last comes one JSON object:
    mb_s                     by donors: MB/s from the first question until the model is complete; best repeat
    tls_mb_s                 as many bytes through one asyncio TLS connection, not hashed; best repeat
    ratio_to_tls             mb_s / tls_mb_s
    donor_cpu_s_per_gb       CPU seconds of all donors together per 10^9 bytes served, by donors; best repeat
    receiver_cpu_s_per_gb    of the receiver, hashing included; tls_cpu_s_per_gb: of both ends of TLS
    receiver_peak_of_model   most memory of the receiver beyond what it had before, divided by the model
    cached_mb_s              from one donor, with the pieces kept on disk too
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import trio
from bench_mesh import Child, make_certificate, receive_over_tls
from mesh_child import get_cpu_seconds
from transformers import AutoConfig, AutoModelForCausalLM

from psyche_py.client.incoming_model import IncomingModel
from psyche_py.client.model_fetch import ModelFetch
from psyche_py.client.piece_cache import PieceCache
from psyche_py.distro.digest import describe_model
from psyche_py.model.loader import canonicalize_config
from psyche_py.model.sharing import ModelSnapshot
from psyche_py.observe.events import EventSink
from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network

DONORS = (1, 2, 4)
BYTES_PER_LAYER = 4 * 12 * 1024 * 1024
SHAPE = {
    "model_type": "llama", "vocab_size": 4096, "hidden_size": 1024, "intermediate_size": 2731,
    "num_attention_heads": 8, "num_key_value_heads": 8, "tie_word_embeddings": False,
}  # fmt: skip


def make_noise_model(megabytes: int) -> ModelSnapshot:
    """A Llama of about so many megabytes, the same in every process."""
    layers = max(1, round((megabytes * 1e6 - 2 * 4 * 4096 * 1024) / BYTES_PER_LAYER))
    config_json = json.dumps({**SHAPE, "num_hidden_layers": layers}).encode()
    config = AutoConfig.for_model(**json.loads(config_json))
    with torch.device("meta"):
        named = AutoModelForCausalLM.from_config(config, dtype=torch.float32).named_parameters()
        shapes = {name: p.shape for name, p in named}
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.rand(shape, generator=generator) for name, shape in sorted(shapes.items())}
    manifest = describe_model(tensors, canonicalize_config(config_json))
    return ModelSnapshot(manifest, config_json, {}, tensors)


class Donor(Child):
    """A process of sharing_child.py."""

    def __init__(self, number: int, megabytes: int) -> None:
        child = str(Path(__file__).with_name("sharing_child.py"))
        self._process = subprocess.Popen(
            [sys.executable, child, f"{number + 1:02x}" * 32, str(megabytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )


def reset_peak_memory() -> int:
    """Resident bytes of this process now; `get_peak_memory` counts from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return get_peak_memory()


def get_peak_memory() -> int:
    """Most resident bytes since the last reset."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("This system does not say how much memory a process has used.")


async def receive(
    network: Libp2pNetwork, donors: list[Donor], digest: bytes, epoch: int, cache: PieceCache | None = None
) -> tuple[float, IncomingModel]:
    """Seconds until the model is complete."""
    sink = EventSink(None, time.time)
    fetch = ModelFetch(network, sink, [d.peer.key for d in donors], epoch, digest, cache=cache)
    started = time.perf_counter()
    await fetch.run()
    return time.perf_counter() - started, fetch.model


async def measure(donors: list[Donor], digest: bytes, num_bytes: int, repeats: int) -> dict[str, Any]:
    speeds: dict[int, float] = {}
    donor_cpu: dict[int, float] = {}
    own_cpu, peaks, epoch = 0.0, [], 0
    cached = 0.0
    async with open_libp2p_network(b"\x77" * 32) as network:
        for donor in donors:
            donor.ask(peers=[[network.key.hex(), network.hint.hex()]])
        network.set_peers([donor.peer for donor in donors])
        while network.num_connected < len(donors):
            await trio.sleep(0.05)
        for _ in range(repeats):
            for num in DONORS:
                epoch += 1
                used = donors[:num]
                before = sum(donor.ask(epoch=epoch)["cpu"] for donor in used)
                now = reset_peak_memory()
                cpu = get_cpu_seconds()
                seconds, model = await receive(network, used, digest, epoch)
                own_cpu += get_cpu_seconds() - cpu
                peaks.append((get_peak_memory() - now) / num_bytes)
                assert model.is_complete
                spent = sum(donor.ask(cpu=1)["cpu"] for donor in used) - before
                donor_cpu[num] = min(donor_cpu.get(num, float("inf")), 1e9 * spent / num_bytes)
                speeds[num] = max(speeds.get(num, 0.0), num_bytes / 1e6 / seconds)
                del model
        with tempfile.TemporaryDirectory() as directory:
            epoch += 1
            donors[0].ask(epoch=epoch)
            cache = PieceCache(Path(directory), digest)
            seconds, _ = await receive(network, donors[:1], digest, epoch, cache)
            cached = num_bytes / 1e6 / seconds
    return {
        "mb_s": {num: round(speed, 1) for num, speed in speeds.items()},
        "donor_cpu_s_per_gb": {num: round(cpu, 2) for num, cpu in donor_cpu.items()},
        "receiver_cpu_s_per_gb": round(1e9 * own_cpu / (repeats * len(DONORS) * num_bytes), 2),
        "receiver_peak_of_model": round(max(peaks), 2),
        "cached_mb_s": round(cached, 1),
    }


def measure_tls(megabytes: int, repeats: int) -> dict[str, Any]:
    best, cpu = 0.0, 0.0
    with tempfile.TemporaryDirectory() as directory:
        certificate = Path(directory) / "tls.pem"
        make_certificate(certificate)
        server = Child("tls", str(certificate))
        try:
            for _ in range(repeats):
                seconds, spent = asyncio.run(receive_over_tls(server.hello["port"], server, megabytes))
                best, cpu = max(best, megabytes / seconds), cpu + spent
        finally:
            server.close()
    return {"tls_mb_s": round(best, 1), "tls_cpu_s_per_gb": round(1e3 * cpu / (repeats * megabytes), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(1)
    donors = [Donor(number, args.megabytes) for number in range(max(DONORS))]
    try:
        for donor in donors:
            donor.hello = donor.hear()
        make_noise_model(1)  # what is imported once is not measured
        digest, num_bytes = bytes.fromhex(donors[0].hello["digest"]), donors[0].hello["num_bytes"]
        results = trio.run(measure, donors, digest, num_bytes, args.repeats)
    finally:
        for donor in donors:
            donor.close()
    results |= measure_tls(round(num_bytes / 1e6), args.repeats)
    results["ratio_to_tls"] = {n: round(s / results["tls_mb_s"], 3) for n, s in results["mb_s"].items()}
    print(json.dumps({"model_mb": round(num_bytes / 1e6, 1), **results}))


if __name__ == "__main__":
    main()
