"""The localnet's sockets against clients that are slow, broken or hostile."""

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import trio
import trio_websocket
from localnet_bank import encode
from localnet_process import Localnet, running_localnet
from solders.hash import Hash
from solders.keypair import Keypair
from solders.message import Message
from solders.system_program import CreateAccountParams, create_account
from solders.transaction import VersionedTransaction


@pytest.fixture(scope="module")
def localnet() -> Iterator[Localnet]:
    with running_localnet() as running:
        yield running


def exchange(localnet: Localnet, raw: bytes, *, end: bool = True) -> bytes:
    """Send bytes, read to the end of the connection."""
    with socket.create_connection(("127.0.0.1", localnet.rpc_port), timeout=60) as connection:
        connection.sendall(raw)
        if end:
            connection.shutdown(socket.SHUT_WR)
        received = b""
        while chunk := connection.recv(65536):
            received += chunk
        return received


def make_request(body: bytes, *, headers: str = "", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = (
        "POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        f"content-length: {size}\r\n{headers}\r\n"
    )
    return head.encode() + body


HEALTH = b'{"jsonrpc":"2.0","id":1,"method":"getHealth"}'


def test_pipelined_requests_are_answered_in_order(localnet: Localnet) -> None:
    calls = [json.dumps({"jsonrpc": "2.0", "id": i, "method": "getHealth"}).encode() for i in range(5)]
    received = exchange(localnet, b"".join(make_request(call) for call in calls))
    positions = [received.index(f'"id":{i}'.encode()) for i in range(5)]
    assert positions == sorted(positions)


def test_chunked_body(localnet: Localnet) -> None:
    head = (
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (HEALTH[:10], HEALTH[10:])) + b"0\r\n\r\n"
    assert b'"result":"ok"' in exchange(localnet, head + body)


def test_expect_continue(localnet: Localnet) -> None:
    raw = make_request(b"", headers="expect: 100-continue\r\n", length=len(HEALTH))
    with socket.create_connection(("127.0.0.1", localnet.rpc_port), timeout=60) as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith(b"HTTP/1.1 100")
        connection.sendall(HEALTH)
        assert b'"result":"ok"' in connection.recv(4096)


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"GET / HTTP/9\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\n\r\n", b"400"),  # no host
        (b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 40_000 + b"\r\n", b"431"),
        (make_request(b"", length=10**9), b"400"),  # ends within the body
        (make_request(b"x" * 60_000), b"413"),
        (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"405"),
        (b"DELETE / HTTP/1.1\r\nhost: x\r\n\r\n", b"405"),
        (b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n", b"200"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}", b"415"),
    ],
)
def test_http_errors(localnet: Localnet, raw: bytes, status: bytes) -> None:
    assert exchange(localnet, raw).startswith(b"HTTP/1.1 " + status)
    assert localnet.call("getHealth") == "ok"


def test_cors(localnet: Localnet) -> None:
    asked = httpx.options(
        localnet.rpc_url, headers={"origin": "http://dapp", "access-control-request-method": "POST"}
    )
    assert asked.status_code == 204
    answered = httpx.post(
        localnet.rpc_url, content=HEALTH, headers={"content-type": "application/json; charset=utf-8"}
    )
    for response in (asked, answered):
        assert response.headers["access-control-allow-origin"] == "*"
        assert "content-type" in response.headers["access-control-allow-headers"]
        assert "solana-client" in response.headers["access-control-allow-headers"]


def test_silent_connections_do_not_block(localnet: Localnet) -> None:
    silent = [socket.create_connection(("127.0.0.1", localnet.rpc_port)) for _ in range(100)]
    half = socket.create_connection(("127.0.0.1", localnet.rpc_port))
    half.sendall(b"POST / HTTP/1.1\r\nhost")
    try:
        assert localnet.call("getHealth") == "ok"
    finally:
        for connection in (*silent, half):
            connection.close()


def test_concurrent_clients(localnet: Localnet) -> None:
    answers: list[Any] = []

    def work() -> None:
        with httpx.Client() as client:
            for _ in range(20):
                response = client.post(localnet.rpc_url, json=json.loads(HEALTH))
                answers.append(response.json()["result"])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == ["ok"] * 160


# ---- websocket ---------------------------------------------------------------------------------------


def call(number: int, method: str, *params: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": list(params)})


def test_websocket_requests(localnet: Localnet) -> None:
    async def talk() -> None:
        async with trio_websocket.open_websocket_url(localnet.ws_url) as connection:

            async def ask(text: str) -> Any:
                await connection.send_message(text)
                while "method" in (answer := json.loads(await connection.get_message())):
                    pass  # a notification
                return answer

            number = (await ask(call(1, "slotSubscribe")))["result"]
            assert isinstance(number, int)
            assert (await ask(call(2, "slotUnsubscribe", number)))["result"] is True
            assert (await ask(call(3, "slotUnsubscribe", number)))["error"]["code"] == -32602
            assert (await ask(call(4, "getSlot")))["error"]["code"] == -32601
            assert (await ask("{"))["error"]["code"] == -32700
            assert (await ask("5"))["error"]["code"] == -32600
            # web3.js's keep-alive is a notification: no answer
            await connection.send_message('{"jsonrpc":"2.0","method":"ping","params":null}')
            await connection.ping()
            batch = f"[{call(5, 'slotSubscribe')},{call(6, 'nope')}]"
            assert (await ask(batch))["id"] == 5  # a subscription's id comes first, by itself

    trio.run(talk)


def test_websocket_garbage(localnet: Localnet) -> None:
    port = int(localnet.ws_url.rsplit(":", 1)[1])
    upgrade = (
        b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n"
        b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    for raw in (b"", b"\x00" * 100, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", upgrade + b"\xff" * 50, upgrade):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(raw)
    assert localnet.call("getHealth") == "ok"

    async def too_long() -> None:
        async with open_raw_websocket(localnet) as connection:
            with pytest.raises(trio_websocket.ConnectionClosed) as caught:
                await connection.send_message("x" * 100_000)
                await connection.get_message()
            assert caught.value.reason is not None
            assert caught.value.reason.code == 1009

    trio.run(too_long)
    assert localnet.call("getHealth") == "ok"


@asynccontextmanager
async def open_raw_websocket(
    localnet: Localnet, receive_buffer: int | None = None
) -> AsyncIterator[trio_websocket.WebSocketConnection]:
    """trio-websocket's own opener leaves the socket open when the server closes first."""
    port = int(localnet.ws_url.rsplit(":", 1)[1])
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream, trio.open_nursery() as nursery:
        if receive_buffer is not None:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        yield await trio_websocket.wrap_client_stream(nursery, stream, "127.0.0.1", "/")
        nursery.cancel_scope.cancel()


def create_big_account(localnet: Localnet, key: Keypair) -> None:
    """One transaction that gives an account a megabyte of data."""
    payer, space = Keypair(), 1_000_000
    localnet.call("requestAirdrop", str(payer.pubkey()), 10**11)
    made = CreateAccountParams(
        from_pubkey=payer.pubkey(),
        to_pubkey=key.pubkey(),
        lamports=localnet.call("getMinimumBalanceForRentExemption", space),
        space=space,
        owner=payer.pubkey(),
    )
    blockhash = Hash.from_string(localnet.call("getLatestBlockhash")["value"]["blockhash"])
    message = Message.new_with_blockhash([create_account(made)], payer.pubkey(), blockhash)
    transaction = VersionedTransaction(message, [payer, key])
    localnet.call("sendTransaction", encode(transaction), {"encoding": "base64"})


def test_a_subscriber_that_reads_nothing_blocks_nobody(localnet: Localnet) -> None:
    """It is owed 27 MB and reads nothing: others hear of every slot, and it is disconnected."""
    key = Keypair()

    async def hear_slots(connection: trio_websocket.WebSocketConnection) -> None:
        await connection.send_message(call(1, "slotSubscribe"))
        await connection.get_message()
        await trio.to_thread.run_sync(create_big_account, localnet, key)
        last = None
        for _ in range(4):
            with trio.fail_after(30):
                slot = json.loads(await connection.get_message())["params"]["result"]["slot"]
            assert last is None or slot == last + 1
            last = slot

    async def watch() -> None:
        with trio.fail_after(240):
            async with open_raw_websocket(localnet, receive_buffer=4096) as deaf:
                config = {"encoding": "base64", "commitment": "processed"}
                for number in range(20):
                    await deaf.send_message(call(number, "accountSubscribe", str(key.pubkey()), config))
                    await deaf.get_message()
                async with trio_websocket.open_websocket_url(localnet.ws_url) as good:
                    await hear_slots(good)
                with pytest.raises(trio_websocket.ConnectionClosed) as caught:
                    while True:  # what was under way arrives, then the end
                        await deaf.get_message()
                assert caught.value.reason is not None
                assert caught.value.reason.code == 1013  # try again later

    trio.run(watch)
    assert localnet.call("getHealth") == "ok"
