"""JSON-RPC errors with the codes of a Solana node.

Sources: JSON-RPC 2.0 section 5.1 for -32700 to -32600; for the rest agave's rpc-client-api,
``custom_error.rs``.
"""

from __future__ import annotations

from typing import Any

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
BLOCK_CLEANED_UP = -32001
PREFLIGHT_FAILURE = -32002
SIGNATURE_VERIFICATION_FAILURE = -32003
BLOCK_NOT_AVAILABLE = -32004
UNSUPPORTED_TRANSACTION_VERSION = -32015
MIN_CONTEXT_SLOT_NOT_REACHED = -32016


class RpcError(Exception):
    """Answer a request with this error. ``data`` is left out of the answer when None."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    def to_json(self) -> dict[str, Any]:
        """The ``error`` member of a response."""
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            body["data"] = self.data
        return body


def invalid_params(message: str) -> RpcError:
    """A parameter is missing, of the wrong type or out of range."""
    return RpcError(INVALID_PARAMS, message)
