"""How fast is the localnet? Real signed transfers against a server process on loopback.

    send_*    milliseconds from the first byte of sendTransaction (with preflight) to the end of its answer,
              one client, one request at a time
    notify_*  milliseconds from the first byte of sendTransaction to the accountNotification (processed) at
              each of SUBSCRIBERS websocket clients
    tps       transfers a second with CONNECTIONS keep-alive connections sending as fast as they are answered

Signing is done beforehand, and the client speaks HTTP by hand, so that the server is what is measured. The
last line is JSON. Bounded by count; about 15 seconds on two cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import trio
import trio_websocket
from solders.hash import Hash
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import Transaction

CONNECTIONS = 8
SUBSCRIBERS = 8
DEADLINE_SECONDS = 120


class HttpClient:
    """One keep-alive connection; just enough HTTP for a server that sends content-length."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        self.stream = stream
        self.host = host
        self.buffer = b""

    @classmethod
    async def connect(cls, url: str) -> HttpClient:
        """Connect to ``http://host:port``."""
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        stream = await trio.open_tcp_stream(parts.hostname, parts.port)
        stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
        return cls(stream, parts.netloc)

    async def post(self, body: bytes) -> bytes:
        """Send a body, return the response's."""
        head = (
            f"POST / HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        await self.stream.send_all(head.encode() + body)
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += await self._receive()
        head_bytes, self.buffer = self.buffer.split(b"\r\n\r\n", 1)
        lines = head_bytes.lower().split(b"\r\n")
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        while len(self.buffer) < length:
            self.buffer += await self._receive()
        answer, self.buffer = self.buffer[:length], self.buffer[length:]
        return answer

    async def _receive(self) -> bytes:
        received = bytes(await self.stream.receive_some(65536))
        if not received:
            raise ConnectionError("the server closed the connection")
        return received

    async def call(self, method: str, *params: object) -> object:
        """The result of a call. Raises RuntimeError on an error response."""
        answer = json.loads(await self.post(make_call(method, *params)))
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["result"]


def make_call(method: str, *params: object) -> bytes:
    """A JSON-RPC request body."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}).encode()


async def make_transfers(client: HttpClient, payer: Keypair, to: Pubkey, count: int) -> list[bytes]:
    """Signed sendTransaction bodies, each different by its amount."""
    latest = await client.call("getLatestBlockhash")
    assert isinstance(latest, dict)
    blockhash = Hash.from_string(latest["value"]["blockhash"])
    bodies = []
    for number in range(count):
        move = transfer(TransferParams(from_pubkey=payer.pubkey(), to_pubkey=to, lamports=1_000_000 + number))
        signed = Transaction.new_signed_with_payer([move], payer.pubkey(), [payer], blockhash)
        encoded = base64.b64encode(bytes(signed)).decode()
        bodies.append(make_call("sendTransaction", encoded, {"encoding": "base64"}))
    return bodies


def check_sent(answer: bytes) -> None:
    """Raise RuntimeError unless the answer is a signature."""
    if b'"result"' not in answer:
        raise RuntimeError(answer.decode())


async def fund(client: HttpClient) -> Keypair:
    """A new wallet with money."""
    payer = Keypair()
    await client.call("requestAirdrop", str(payer.pubkey()), 10**14)
    return payer


async def measure_send(url: str, count: int) -> list[float]:
    """Seconds per send, one at a time."""
    client = await HttpClient.connect(url)
    bodies = await make_transfers(client, await fund(client), Keypair().pubkey(), count)
    seconds = []
    for body in bodies:
        start = time.perf_counter()
        check_sent(await client.post(body))
        seconds.append(time.perf_counter() - start)
    return seconds


async def measure_notify(url: str, ws_url: str, count: int) -> list[float]:
    """Seconds from send to notification, for every subscriber and transfer."""
    client = await HttpClient.connect(url)
    to = Keypair().pubkey()
    bodies = await make_transfers(client, await fund(client), to, count)
    seconds: list[float] = []
    started = 0.0
    async with trio.open_nursery() as nursery:
        sockets = [await trio_websocket.connect_websocket_url(nursery, ws_url) for _ in range(SUBSCRIBERS)]
        options = {"encoding": "base64", "commitment": "processed"}
        for socket in sockets:
            await socket.send_message(make_call("accountSubscribe", str(to), options).decode())
            assert "result" in json.loads(await socket.get_message())

        async def listen(socket: trio_websocket.WebSocketConnection) -> None:
            assert "accountNotification" in await socket.get_message()
            seconds.append(time.perf_counter() - started)

        for body in bodies:
            async with trio.open_nursery() as listeners:
                for socket in sockets:
                    listeners.start_soon(listen, socket)
                await trio.lowlevel.checkpoint()
                started = time.perf_counter()
                check_sent(await client.post(body))
        nursery.cancel_scope.cancel()
    return seconds


async def measure_throughput(url: str, count: int) -> float:
    """Transfers a second with all connections busy."""
    clients = [await HttpClient.connect(url) for _ in range(CONNECTIONS)]
    work = []
    for client in clients:
        payer = await fund(client)
        work.append(await make_transfers(client, payer, Keypair().pubkey(), count // CONNECTIONS))

    async def send_all(client: HttpClient, bodies: Sequence[bytes]) -> None:
        for body in bodies:
            check_sent(await client.post(body))

    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for client, bodies in zip(clients, work, strict=True):
            nursery.start_soon(send_all, client, bodies)
    return sum(map(len, work)) / (time.perf_counter() - start)


def get_percentile_ms(seconds: Sequence[float], percent: int) -> float:
    """A percentile in milliseconds."""
    return round(statistics.quantiles(seconds, n=100, method="inclusive")[percent - 1] * 1e3, 3)


async def measure(url: str, ws_url: str, count: int) -> dict[str, float]:
    """All figures, within the deadline."""
    with trio.fail_after(DEADLINE_SECONDS):
        await measure_send(url, 50)  # warm up
        sends = await measure_send(url, count // 4)
        notifications = await measure_notify(url, ws_url, count // 8)
        tps = await measure_throughput(url, count)
    return {
        "tps": round(tps, 1),
        "send_p50_ms": get_percentile_ms(sends, 50),
        "send_p99_ms": get_percentile_ms(sends, 99),
        "notify_p50_ms": get_percentile_ms(notifications, 50),
        "notify_p99_ms": get_percentile_ms(notifications, 99),
    }


def main() -> int:
    """Start a server, measure, print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=4000, help="transfers for tps (default 4000)")
    parser.add_argument("--ledger", action="store_true", help="keep a ledger (in a temporary directory)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-m", "psyche_py.chain.localnet", "--rpc-port", "0"]
        if given.ledger:
            command += ["--ledger", directory]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                info = json.loads(server.stdout.readline())
                figures = trio.run(measure, info["rpc_url"], info["ws_url"], given.count)
            finally:
                server.terminate()
                server.wait(10)
    print(
        f"{given.count} transfers, {CONNECTIONS} connections, {SUBSCRIBERS} subscribers, "
        f"{'with' if given.ledger else 'without'} a ledger"
    )
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
