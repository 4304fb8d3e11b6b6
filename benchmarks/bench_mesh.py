"""How fast is the mesh? Payloads against plain TLS, and announcements among nodes in processes of their own.

    python benchmarks/bench_mesh.py [--repeats 5] [--nodes 16] [--rate 40] [--announcements 10000]

Everything runs on loopback, so on a machine with few cores the nodes wait for each other's CPU time. The last
line is one JSON object:
    blob_ratio_to_tls      {"10": ..., "100": ...} by megabytes: MB/s of a payload that is fetched, hashed
                           and stored, divided by MB/s of as many bytes through asyncio TLS streams (which are
                           not hashed), each between two processes. Taken in turns; best of each
    blob_mb_s, tls_mb_s    the same as MB/s
    blob_cpu_s_per_gb      CPU seconds of both ends per 10^9 bytes, all repeats; tls_cpu_s_per_gb likewise
    announce_cpu_ms        CPU milliseconds per announcement and node, everything a node does included, at
                           ``rate`` announcements a second by all nodes together
    announce_p50_ms, announce_p99_ms   from publish() to the consumer in another process, at the same rate
    burst_cpu_ms           as announce_cpu_ms, when they come in bursts of 25 from every node each second
    lost_announcements     most that one node missed of ``announcements``, within 30 s of the last
"""

from __future__ import annotations

import argparse
import asyncio
import datetime
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from mesh_child import get_cpu_seconds

from psyche_py.p2p.libp2p_adapter import Libp2pNetwork, open_libp2p_network
from psyche_py.p2p.port import PeerInfo

CHILD = str(Path(__file__).with_name("mesh_child.py"))
SIZES_MB = (10, 100)
BURST = 25
SETTLE_SECONDS = 30.0
FETCH_SECONDS = 120.0


class Child:
    """A process of mesh_child.py; leave the context to end it."""

    def __init__(self, role: str, argument: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, CHILD, role, argument], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hello = self.hear()

    def hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("A process of the benchmark has died; its error stands above.")
        facts: dict[str, Any] = json.loads(line)
        return facts

    def tell(self, **command: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def ask(self, **command: Any) -> dict[str, Any]:
        self.tell(**command)
        return self.hear()

    @property
    def peer(self) -> PeerInfo:
        return PeerInfo(bytes.fromhex(self.hello["key"]), bytes.fromhex(self.hello["hint"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Measured:
    """Seconds and CPU seconds of repeated transfers."""

    def __init__(self) -> None:
        self.seconds: dict[int, list[float]] = {}
        self.cpu_seconds = 0.0
        self.num_bytes = 0

    def add(self, megabytes: int, seconds: float, cpu_seconds: float) -> None:
        self.seconds.setdefault(megabytes, []).append(seconds)
        self.cpu_seconds += cpu_seconds
        self.num_bytes += megabytes * 1_000_000

    def get_speeds(self) -> dict[int, float]:
        """Best MB/s by megabytes."""
        return {size: size / min(all_seconds) for size, all_seconds in self.seconds.items()}

    @property
    def cpu_per_gb(self) -> float:
        return 1e9 * self.cpu_seconds / self.num_bytes


# ---- payloads ---------------------------------------------------------------------------------------


async def fetch_blob(
    network: Libp2pNetwork, holder: Child, megabytes: int, seed: int, into: Measured
) -> None:
    """One payload from the holder's process into our store."""
    size = megabytes * 1_000_000
    digest = bytes.fromhex(holder.ask(size=size, seed=seed)["digest"])
    cpu = get_cpu_seconds() + holder.ask(cpu=1)["cpu"]
    started = time.perf_counter()
    await network.fetch(digest, size, [holder.peer.key], deadline_seconds=FETCH_SECONDS)
    seconds = time.perf_counter() - started
    into.add(megabytes, seconds, get_cpu_seconds() + holder.ask(cpu=1)["cpu"] - cpu)
    network.store.drop(digest)


def make_certificate(path: Path) -> None:
    """A self-signed certificate and its key in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().issuer_name(name).subject_name(name).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now)
    certificate = builder.not_valid_after(now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    encoding = serialization.Encoding.PEM
    path.write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(encoding)
    )


async def receive_over_tls(port: int, server: Child, megabytes: int) -> tuple[float, float]:
    """Seconds and CPU seconds for so many bytes on a connection that is already open."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=1 << 20)
    cpu = get_cpu_seconds() + server.ask()["cpu"]
    started = time.perf_counter()
    writer.write((megabytes * 1_000_000).to_bytes(4, "little"))
    parts, left = [], megabytes * 1_000_000
    while left:
        parts.append(await reader.read(1 << 20))
        left -= len(parts[-1])
    data = b"".join(parts)
    seconds = time.perf_counter() - started
    assert len(data) == megabytes * 1_000_000
    cpu = get_cpu_seconds() + server.ask()["cpu"] - cpu
    writer.close()
    return seconds, cpu


async def measure_blobs(repeats: int) -> tuple[Measured, Measured]:
    """Payloads and TLS in turns, so that both meet the same load of the machine."""
    blobs, tls = Measured(), Measured()
    with tempfile.TemporaryDirectory() as directory:
        certificate = Path(directory) / "tls.pem"
        make_certificate(certificate)
        holder, server = Child("holder", "01" * 32), Child("tls", str(certificate))
        try:
            async with open_libp2p_network(b"\2" * 32) as network:
                holder.ask(peers=[[network.key.hex(), network.hint.hex()]])
                network.set_peers([holder.peer])
                while network.num_connected < 1:
                    await trio.sleep(0.05)
                for repeat in range(repeats):
                    for megabytes in SIZES_MB:
                        await fetch_blob(network, holder, megabytes, repeat, blobs)
                        port = server.hello["port"]
                        # asyncio gets a thread of its own: trio runs in this one
                        seconds, cpu = await trio.to_thread.run_sync(
                            lambda size=megabytes, port=port: asyncio.run(
                                receive_over_tls(port, server, size)
                            )
                        )
                        tls.add(megabytes, seconds, cpu)
        finally:
            holder.close()
            server.close()
    return blobs, tls


# ---- announcements ----------------------------------------------------------------------------------


def run_phase(nodes: list[Child], phase: int, count: int, burst: int, period: float) -> list[dict[str, Any]]:
    """All nodes publish ``count`` announcements; their reports, with the CPU seconds of the phase."""
    for node in nodes:
        node.tell(phase=phase, count=count, burst=burst, period=period)
    before = [node.hear()["cpu_before"] for node in nodes]
    expected = count * (len(nodes) - 1)
    heard: dict[Child, dict[str, Any]] = {}
    deadline = time.monotonic() + SETTLE_SECONDS
    while len(heard) < len(nodes):
        is_late = time.monotonic() > deadline
        for node in nodes:
            if node not in heard:
                report = node.ask(report=phase, full=False)
                if is_late or report["heard"] == expected:
                    heard[node] = node.ask(report=phase, full=True) | {"cpu": report["cpu"]}
        time.sleep(0.2)
    return [heard[node] | {"cpu": heard[node]["cpu"] - cpu} for node, cpu in zip(nodes, before, strict=True)]


def measure_announcements(num_nodes: int, rate: float, total: int) -> dict[str, Any]:
    """A tenth of all announcements at a steady rate, the others in bursts."""
    nodes = [Child("node", f"{number + 1:02x}" * 32) for number in range(num_nodes)]
    try:
        peers = [[node.hello["key"], node.hello["hint"]] for node in nodes]
        for node in nodes:
            node.tell(peers=peers, connected=num_nodes - 1)
        for node in nodes:
            node.hear()
        per_node = -(-total // num_nodes)
        num_steady = per_node // 10
        steady = run_phase(nodes, 0, num_steady, 1, num_nodes / rate)
        burst = run_phase(nodes, 1, per_node - num_steady, BURST, 1.0)
    finally:
        for node in nodes:
            node.close()
    delays = [delay for report in steady for delay in report["delays_ms"]]
    cuts = statistics.quantiles(delays, n=100)
    heard = [a["heard"] + b["heard"] for a, b in zip(steady, burst, strict=True)]
    cpu_ms = [
        1e3 * sum(report["cpu"] for report in reports) / (num_nodes * num_nodes * count)
        for reports, count in ((steady, num_steady), (burst, per_node - num_steady))
    ]
    return {
        "announce_cpu_ms": round(cpu_ms[0], 3),
        "announce_p50_ms": round(cuts[49], 1),
        "announce_p99_ms": round(cuts[98], 1),
        "burst_cpu_ms": round(cpu_ms[1], 3),
        "announcements": per_node * num_nodes,
        "lost_announcements": max(per_node * (num_nodes - 1) - number for number in heard),
        "nodes": num_nodes,
        "dropped": dict(sum((Counter(report["dropped"]) for report in burst), Counter[str]())),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rate", type=float, default=40.0)
    parser.add_argument("--announcements", type=int, default=10_000)
    args = parser.parse_args()
    results: dict[str, Any] = {}
    if args.repeats:
        blobs, tls = trio.run(measure_blobs, args.repeats)
        speeds, tls_speeds = blobs.get_speeds(), tls.get_speeds()
        results = {
            "blob_ratio_to_tls": {size: round(speeds[size] / tls_speeds[size], 3) for size in SIZES_MB},
            "blob_mb_s": {size: round(speed, 1) for size, speed in speeds.items()},
            "tls_mb_s": {size: round(speed, 1) for size, speed in tls_speeds.items()},
            "blob_cpu_s_per_gb": round(blobs.cpu_per_gb, 2),
            "tls_cpu_s_per_gb": round(tls.cpu_per_gb, 2),
        }
        print(json.dumps(results), flush=True)
    if args.nodes:
        results |= measure_announcements(args.nodes, args.rate, args.announcements)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
