"""JSON-RPC 2.0: bytes in, bytes out. No sockets here."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

from psyche_py.chain.localnet import methods_accounts, methods_cluster, methods_transactions
from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.params import Params
from psyche_py.chain.localnet.rpc_errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    RpcError,
    invalid_params,
)
from psyche_py.errors import StorageError

logger = logging.getLogger(__name__)

MAX_BATCH = 100
"""Calls in one batch."""

Method = Callable[[Bank, Params], Any]

METHODS: dict[str, Method] = {
    **methods_cluster.METHODS,
    **methods_accounts.METHODS,
    **methods_transactions.METHODS,
}


def dump(value: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":")).encode()


def dump_error(request_id: Any, error: RpcError) -> bytes:
    """An error response."""
    return dump({"jsonrpc": "2.0", "error": error.to_json(), "id": request_id})


def parse(body: bytes | str) -> Any:
    """The JSON value of a request body. Raises RpcError -32700."""
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # ValueError covers bad UTF-8, bad JSON and huge integers
        raise RpcError(PARSE_ERROR, "Parse error") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def parse_call(request: Any) -> tuple[str, Params, Any, bool]:
    """(method, params, id, whether an answer is wanted) of one request object. Raises RpcError."""
    if not isinstance(request, dict) or request.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, "Invalid request")
    method, request_id = request.get("method"), request.get("id")
    has_good_id = request_id is None or (
        isinstance(request_id, (str, int, float)) and not isinstance(request_id, bool)
    )
    if not isinstance(method, str) or not has_good_id:
        raise RpcError(INVALID_REQUEST, "Invalid request")
    params = request.get("params")
    if params is None:
        params = []
    if not isinstance(params, list):
        raise invalid_params("Invalid params: expected positional parameters.")
    return method, Params(params), request_id, "id" in request


def get_request_id(request: Any) -> Any:
    """The id to answer an unusable request with: its own when it has a proper one, else null."""
    request_id = request.get("id") if isinstance(request, dict) else None
    return request_id if isinstance(request_id, (str, int, float)) else None


def answer_call(bank: Bank, request: Any) -> bytes | None:
    """The response to one request object; None when it wants none (a notification)."""
    try:
        method_name, params, request_id, is_wanted = parse_call(request)
        method = METHODS.get(method_name)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, "Method not found")
        result = _call(method, method_name, bank, params)
    except RpcError as error:
        if isinstance(request, dict) and request and "id" not in request and error.code != INVALID_REQUEST:
            return None
        return dump_error(get_request_id(request), error)
    return dump({"jsonrpc": "2.0", "result": result, "id": request_id}) if is_wanted else None


def _call(method: Method, name: str, bank: Bank, params: Params) -> Any:
    """Call a method. Our mistakes are logged and answered with -32603; a ledger that fails stops the node."""
    try:
        return method(bank, params)
    except (RpcError, StorageError):
        raise
    except BaseException as error:
        # LiteSVM's panics are no Exceptions; KeyboardInterrupt and Cancelled are not ours to stop
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        logger.exception("%s failed", name)
        raise RpcError(INTERNAL_ERROR, "Internal error") from error


def iter_answers(bank: Bank, body: bytes) -> Iterator[bytes | None]:
    """The pieces of the response body, one per call, so that the server can serve others in between.

    A batch's pieces come with the brackets and commas that make them an array. None: nothing to send for
    this call.
    """
    try:
        request = parse(body)
    except RpcError as error:
        yield dump_error(None, error)
        return
    if not isinstance(request, list):
        yield answer_call(bank, request)
        return
    if not request or len(request) > MAX_BATCH:
        message = "Invalid request" if not request else f"Batch too large; max {MAX_BATCH} calls"
        yield dump_error(None, RpcError(INVALID_REQUEST, message))
        return
    is_first = True
    for call in request:
        answer = answer_call(bank, call)
        if answer is None:
            yield None
            continue
        yield (b"[" if is_first else b",") + answer
        is_first = False
    if not is_first:
        yield b"]"
