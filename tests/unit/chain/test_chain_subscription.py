"""Watching an account: a loopback websocket that misbehaves, and a scripted HTTP node beside it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
from chain_rpc_node import OPTIONS, OWNER, HttpAnswer, Node, account_json, make_backend
from solders.pubkey import Pubkey
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

from psyche_py.chain.errors import AccountNotFound
from psyche_py.chain.port import AccountInfo
from psyche_py.chain.rpc.subscription import WatchPolicy

KEY = Pubkey([7] * 32)
Script = Callable[[WebSocketConnection, int], Awaitable[None]]
QUICK = replace(OPTIONS, watch=WatchPolicy(0.3, 0.1, ping_seconds=0.2, answer_seconds=0.3))
PATIENT = replace(OPTIONS, watch=WatchPolicy(0.3, 0.1, ping_seconds=0.2, answer_seconds=5.0))
PUSH_ONLY = replace(OPTIONS, watch=WatchPolicy(60.0, 60.0, ping_seconds=5.0, answer_seconds=5.0))


def notification(slot: int, data: bytes, lamports: int = 1) -> str:
    result = {"context": {"slot": slot}, "value": account_json(lamports, data)}
    params = {"subscription": 77, "result": result}
    return json.dumps({"jsonrpc": "2.0", "method": "accountNotification", "params": params})


async def confirm(websocket: WebSocketConnection) -> dict[str, Any]:
    asked: dict[str, Any] = json.loads(await websocket.get_message())
    await websocket.send_message(json.dumps({"jsonrpc": "2.0", "result": 77, "id": asked["id"]}))
    return asked


def run_watch(
    node: Node,
    script: Script,
    read: Callable[[trio.MemoryReceiveChannel[AccountInfo]], Awaitable[None]],
    options: Any = QUICK,
    told: list[str] | None = None,
) -> list[str]:
    """Serve ``script`` (with the number of the connection) and ``read`` a subscription to KEY."""
    told = [] if told is None else told
    num_connections = 0

    async def handle(request: WebSocketRequest) -> None:
        nonlocal num_connections
        num_connections += 1
        websocket = await request.accept()
        with contextlib.suppress(ConnectionClosed):  # the client has had enough
            await script(websocket, num_connections)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            server = await nursery.start(serve_websocket, handle, "127.0.0.1", 0, None)
            url = f"ws://127.0.0.1:{server.port}"
            with trio.fail_after(60):
                async with (
                    make_backend(node, websocket_url=url, options=options, told=told) as backend,
                    backend.subscribe_account(KEY) as channel,
                ):
                    await read(channel)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return told


def test_pushed_states_arrive_and_old_slots_do_not() -> None:
    node = Node()
    node.accounts[str(KEY)] = (1, b"first")
    asked: list[dict[str, Any]] = []

    async def script(websocket: WebSocketConnection, number: int) -> None:
        asked.append(await confirm(websocket))
        await trio.sleep(0.05)
        for slot, data in ((200, b"a"), (199, b"old"), (200, b"b"), (201, b"b"), (202, b"c")):
            await websocket.send_message(notification(slot, data))
            await trio.sleep(0.02)
        await trio.sleep_forever()

    async def read(channel: trio.MemoryReceiveChannel[AccountInfo]) -> None:
        seen = [await channel.receive() for _ in range(4)]
        assert [(info.slot, info.data) for info in seen[1:]] == [(200, b"a"), (200, b"b"), (202, b"c")]
        assert (seen[0].data, seen[0].owner, seen[0].pubkey) == (b"first", OWNER, KEY)

    run_watch(node, script, read, PUSH_ONLY)
    assert asked[0]["method"] == "accountSubscribe"
    assert asked[0]["params"][0] == str(KEY)
    assert asked[0]["params"][1]["commitment"] == "confirmed"


def test_reconnects_and_reads_what_it_missed() -> None:
    node = Node()
    node.accounts[str(KEY)] = (1, b"first")

    async def script(websocket: WebSocketConnection, number: int) -> None:
        await confirm(websocket)
        if number == 1:
            await trio.sleep(0.05)
            await websocket.aclose()
            node.accounts[str(KEY)] = (1, b"while away")
            node.start = trio.current_time() - 100  # some slots later
        else:
            await trio.sleep(0.2)
            await websocket.send_message(notification(100_000, b"pushed again"))
            await trio.sleep_forever()

    async def read(channel: trio.MemoryReceiveChannel[AccountInfo]) -> None:
        seen = [(await channel.receive()).data for _ in range(3)]
        assert seen == [b"first", b"while away", b"pushed again"]

    told = run_watch(node, script, read, PUSH_ONLY)
    assert told == ["websocket 127.0.0.1: ConnectionClosed; polling"]


@pytest.mark.parametrize(
    "answer",
    [
        "no json",
        '{"jsonrpc":"2.0","id":1,"error":{"code":-32601,"message":"Method not found"}}',
        '{"jsonrpc":"2.0","result":true,"id":1}',
        "",
        None,
    ],
)
def test_polling_carries_on_without_a_useful_websocket(answer: str | None) -> None:
    node = Node()
    node.accounts[str(KEY)] = (1, b"first")

    async def script(websocket: WebSocketConnection, number: int) -> None:
        await websocket.get_message()
        if answer is not None:
            await websocket.send_message(answer)
        await trio.sleep_forever()

    async def read(channel: trio.MemoryReceiveChannel[AccountInfo]) -> None:
        assert (await channel.receive()).data == b"first"
        node.accounts[str(KEY)] = (1, b"second")
        node.start = trio.current_time() - 100
        assert (await channel.receive()).data == b"second"
        while not told:
            await trio.sleep(0.05)

    told: list[str] = []
    run_watch(node, script, read, told=told)
    assert "polling" in told[0]


def test_a_silent_subscription_is_still_polled_and_pinged() -> None:
    node = Node()
    node.accounts[str(KEY)] = (1, b"first")

    async def script(websocket: WebSocketConnection, number: int) -> None:
        await confirm(websocket)
        await trio.sleep_forever()

    async def read(channel: trio.MemoryReceiveChannel[AccountInfo]) -> None:
        await channel.receive()
        await trio.sleep(0.5)  # more than two pings, which trio-websocket answers
        node.accounts[str(KEY)] = (1, b"second")
        node.start = trio.current_time() - 100
        assert (await channel.receive()).data == b"second"

    assert run_watch(node, script, read, PATIENT) == []


def test_nothing_listens_and_http_fails_now_and_then() -> None:
    node = Node()
    node.accounts[str(KEY)] = (1, b"first")

    async def main() -> None:
        with trio.fail_after(60):
            async with (
                make_backend(node, websocket_url="ws://127.0.0.1:9", options=QUICK) as backend,
                backend.subscribe_account(KEY) as channel,
            ):
                await channel.receive()
                node.handlers["getAccountInfo"] = _fail
                await trio.sleep(0.3)
                del node.handlers["getAccountInfo"]
                node.accounts[str(KEY)] = (1, b"second")
                node.start = trio.current_time() - 100
                assert (await channel.receive()).data == b"second"

    trio.run(main)


def _fail(params: list[Any]) -> Any:
    raise HttpAnswer(503)


def test_a_closed_account_ends_the_channel() -> None:
    node = Node()
    node.accounts[str(KEY)] = (1, b"first")

    async def script(websocket: WebSocketConnection, number: int) -> None:
        await confirm(websocket)
        await trio.sleep(0.05)
        del node.accounts[str(KEY)]
        await websocket.send_message(notification(10_000, b"", lamports=0))
        await trio.sleep_forever()

    async def read(channel: trio.MemoryReceiveChannel[AccountInfo]) -> None:
        assert [info.data async for info in channel] == [b"first"]

    run_watch(node, script, read, PUSH_ONLY)


def test_no_account_and_errors_of_the_reader_come_out_plain() -> None:
    node = Node()

    async def main() -> None:
        async with make_backend(node, websocket_url="ws://127.0.0.1:9") as backend:
            with pytest.raises(AccountNotFound):
                async with backend.subscribe_account(KEY):
                    pass
            node.accounts[str(KEY)] = (1, b"x")
            with pytest.raises(KeyError, match="mine"):
                async with backend.subscribe_account(KEY):
                    raise KeyError("mine")
            with trio.move_on_after(0.05) as scope:
                async with backend.subscribe_account(KEY):
                    await trio.sleep_forever()
            assert scope.cancelled_caught

    trio.run(main)
