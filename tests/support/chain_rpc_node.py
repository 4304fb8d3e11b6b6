"""A scripted JSON-RPC node behind httpx.MockTransport, on trio's clock."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import trio
from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche_py.chain.clusters import Cluster
from psyche_py.chain.rpc import RpcBackend, RpcOptions
from psyche_py.chain.rpc.sender import SendPolicy
from psyche_py.chain.rpc.subscription import WatchPolicy

Handler = Callable[[list[Any]], Any]
SLOT_SECONDS = 0.4
BLOCKHASH = Hash([5] * 32)
OWNER = Pubkey([2] * 32)


class RpcError(Exception):
    """Answer with a JSON-RPC error."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.error = {"code": code, "message": message, **({"data": data} if data is not None else {})}


class HttpAnswer(Exception):
    """Answer with an HTTP status instead."""

    def __init__(self, status: int, headers: dict[str, str] | None = None, text: str = "") -> None:
        super().__init__(str(status))
        self.response = httpx.Response(status, headers=headers or {}, text=text)


class Node:
    """Answers by method name; keeps what it was asked. Slots pass on trio's clock."""

    def __init__(self, host: str = "node.test") -> None:
        self.host = host
        self.asked: list[tuple[str, float]] = []
        self.sent: list[bytes] = []
        self.sent_at: list[float] = []
        self.landed: dict[str, dict[str, Any]] = {}  # signature -> status
        self.lands_at: float | None = 0.0  # seconds after the first send; None: never
        self.landing_err: Any = None
        self.level = "confirmed"
        self.handlers: dict[str, Handler] = {}
        self.accounts: dict[str, tuple[int, bytes]] = {}
        self.start: float | None = None

    @property
    def now(self) -> float:
        self.start = trio.current_time() if self.start is None else self.start
        return trio.current_time() - self.start

    @property
    def slot(self) -> int:
        return 100 + int(self.now / SLOT_SECONDS)

    def count(self, method: str) -> int:
        return sum(name == method for name, _ in self.asked)

    def context(self, value: Any) -> dict[str, Any]:
        return {"context": {"slot": self.slot, "apiVersion": "2.2.0"}, "value": value}

    def answer(self, method: str, params: list[Any]) -> Any:
        if method in self.handlers:
            return self.handlers[method](params)
        match method:
            case "getLatestBlockhash":
                return self.context({"blockhash": str(BLOCKHASH), "lastValidBlockHeight": self.slot + 150})
            case "getBlockHeight" | "getSlot":
                return self.slot
            case "sendTransaction":
                return self.take(base64.b64decode(params[0]))
            case "getSignatureStatuses":
                return self.context([self.status(text) for text in params[0]])
            case "getAccountInfo":
                return self.context(self.account(params[0]))
            case "getMultipleAccounts":
                return self.context([self.account(key) for key in params[0]])
        raise RpcError(-32601, "Method not found")

    def take(self, raw: bytes) -> str:
        self.sent.append(raw)
        self.sent_at.append(self.now)
        return str(VersionedTransaction.from_bytes(raw).signatures[0])

    def status(self, signature: str) -> dict[str, Any] | None:
        if not self.sent or self.lands_at is None or self.now < self.sent_at[0] + self.lands_at:
            return None
        err = self.landing_err
        return {
            "slot": self.slot,
            "confirmations": 1,
            "err": err,
            "status": {"Ok": None} if err is None else {"Err": err},
            "confirmationStatus": self.level,
        }

    def account(self, key: str) -> dict[str, Any] | None:
        if key not in self.accounts:
            return None
        lamports, data = self.accounts[key]
        return account_json(lamports, data)


def account_json(lamports: int, data: bytes) -> dict[str, Any]:
    return {
        "data": [base64.b64encode(data).decode(), "base64"],
        "executable": False,
        "lamports": lamports,
        "owner": str(OWNER),
        "rentEpoch": 0,
        "space": len(data),
    }


def make_transport(*nodes: Node) -> httpx.MockTransport:
    by_host = {node.host: node for node in nodes}

    async def handle(request: httpx.Request) -> httpx.Response:
        node = by_host[str(urlsplit(str(request.url)).hostname)]
        body = json.loads(request.content)
        node.asked.append((body["method"], node.now))
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": body["id"]}
        try:
            result = node.answer(body["method"], body.get("params") or [])
            answer["result"] = await result if isinstance(result, Awaitable) else result
        except RpcError as error:
            answer["error"] = error.error
        except HttpAnswer as error:
            return error.response
        return httpx.Response(200, json=answer)

    return httpx.MockTransport(handle)


OPTIONS = RpcOptions(
    SendPolicy(first_poll_seconds=0.02, max_poll_seconds=1.0),
    WatchPolicy(poll_seconds=4.0, lonely_poll_seconds=1.0, ping_seconds=5.0, answer_seconds=2.0),
    max_blockhash_age_seconds=2.0,
)


def make_backend(*nodes: Node, told: list[str] | None = None, **kwargs: Any) -> RpcBackend:
    cluster = Cluster(
        tuple(f"https://{node.host}/secret-key" for node in nodes),
        kwargs.pop("websocket_url", "wss://unused.test"),
        kwargs.pop("commitment", "confirmed"),
        "test",
    )
    kwargs.setdefault("options", OPTIONS)
    return RpcBackend(
        cluster,
        random=lambda: 0.0,
        transport=make_transport(*nodes),
        tell=told.append if told is not None else lambda text: None,
        **kwargs,
    )
