"""One JSON-RPC endpoint: solana-py's AsyncClient, with its many exceptions turned into three.

Under trio, solana-py's own confirmation and its websocket need asyncio and are not used; see ``sender`` and
``subscription``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from solana.exceptions import SolanaRpcException
from solana.rpc.async_api import AsyncClient
from solana.rpc.commitment import Commitment
from solana.rpc.core import RPCException
from solders.rpc import errors as rpc_errors

from psyche_py.chain.errors import RpcRefused
from psyche_py.chain.rpc.policy import parse_retry_after

T = TypeVar("T")

LIMIT_CODES = frozenset({429, -32429, -32029})
"""Codes with which providers refuse inside a JSON-RPC answer rather than by HTTP status."""

_NODE_TROUBLE = tuple(
    getattr(rpc_errors, name)
    for name in (
        "NodeUnhealthyMessage",
        "MinContextSlotNotReachedMessage",
        "InternalErrorMessage",
        "BlockNotAvailableMessage",
        "BlockStatusNotAvailableYetMessage",
    )
)


class EndpointDown(Exception):
    """This endpoint cannot answer now; another might."""


class EndpointLimited(Exception):
    """This endpoint wants a rest of ``retry_after`` seconds (None: it did not say)."""

    def __init__(self, retry_after: float | None) -> None:
        super().__init__("rate limited")
        self.retry_after = retry_after


class PreflightFailed(Exception):
    """The endpoint simulated the transaction and it failed; ``err`` in JSON-RPC shape."""

    def __init__(self, err: Any, logs: tuple[str, ...]) -> None:
        super().__init__(str(err))
        self.err = err
        self.logs = logs


class Endpoint:
    """See the module. ``name`` is the host: URLs may hold keys and are never shown."""

    def __init__(
        self,
        url: str,
        commitment: str,
        timeout_seconds: float,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
        self._client = AsyncClient(url, commitment=Commitment(commitment), timeout=timeout_seconds)
        if transport is not None:
            self._client._provider.session = httpx.AsyncClient(transport=transport, timeout=timeout_seconds)

    async def ask(self, request: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Raises EndpointDown, EndpointLimited, PreflightFailed, or RpcRefused (the request is at fault)."""
        try:
            answer = await request(self._client)
        except SolanaRpcException as error:
            raise _from_transport(error.__cause__ or error) from error
        except RPCException as error:
            raise _from_answer(error.args[0]) from error
        except Exception as error:
            # solders cannot parse what came: SerdeJSONError derives from Exception alone
            if type(error).__name__ != "SerdeJSONError" and not isinstance(error, ValueError):
                raise
            raise EndpointDown("answered something that is not JSON-RPC") from error
        if isinstance(answer, int):
            # an error whose code solders does not know: solana-py hands on the bare code as a result
            raise _from_answer(answer)
        return answer

    async def aclose(self) -> None:
        """Close its connections."""
        await self._client.close()


def _from_transport(error: BaseException) -> Exception:
    if isinstance(error, httpx.HTTPStatusError):
        response = error.response
        retry_after = parse_retry_after(response.headers.get("retry-after"))
        if response.status_code == 429 or (response.status_code == 503 and retry_after is not None):
            return EndpointLimited(retry_after)
        return EndpointDown(f"answered HTTP {response.status_code}")
    if isinstance(error, httpx.TimeoutException):
        return EndpointDown("did not answer in time")
    return EndpointDown(f"cannot be reached ({type(error).__name__})")


def _from_answer(answer: Any) -> Exception:
    """``answer`` is what solders made of the "error" member: a typed message, or a bare code."""
    if isinstance(answer, int):
        if answer in LIMIT_CODES:
            return EndpointLimited(None)
        return RpcRefused(f"The endpoint answered with error {answer}.", code=answer)
    if isinstance(answer, rpc_errors.SendTransactionPreflightFailureMessage):
        data = json.loads(answer.to_json())["data"]
        return PreflightFailed(data["err"], tuple(data["logs"] or ()))
    if isinstance(answer, _NODE_TROUBLE):
        return EndpointDown(json.loads(answer.to_json())["message"])
    text = json.loads(answer.to_json())["message"] if hasattr(answer, "to_json") else ""
    if not text:
        text = str(answer).rsplit(".", 1)[-1]  # RpcCustomErrorFieldless.TransactionSignature...
    return RpcRefused(f"The endpoint refused the request: {text}.")
