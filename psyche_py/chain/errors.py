"""Errors of the chain. Match them by class and by ``ProgramError.name``, never by text.

    ChainError (psyche_py.errors)
    |-- ProgramError             a program refused: code, name, program, logs
    |-- TransactionFailed        the runtime refused, before or beside a program: err
    |   `-- TransactionTooLarge  over 1232 bytes
    |-- InsufficientFunds        the payer (or a token account) has too little
    |-- TransactionExpired       its blockhash is too old and it never landed: safe to sign anew
    |-- RpcUnavailable           no endpoint answers
    |   |-- RateLimited          every endpoint refuses for now: retry_after_seconds
    |   `-- TransactionUnconfirmed   sent, and then the cluster went away: look before sending again
    |-- RpcRefused               an endpoint answered with an error that trying again cannot mend
    |-- AccountNotFound          there is no such account
    |-- WrongCluster             our programs are not on this cluster
    |-- AirdropRefused           no test money here
    |-- DeploymentRefused        a program cannot be deployed or upgraded by us
    `-- ProgramLoadError         bytes that are no program (in-process chain only)

A transaction error ``err`` is kept in the shape of Solana's JSON-RPC, whichever backend it came from:
``"BlockhashNotFound"`` or ``{"InstructionError": [0, {"Custom": 6012}]}``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psyche_py.errors import ChainError

__all__ = [
    "AccountNotFound",
    "AirdropRefused",
    "ChainError",
    "DeploymentRefused",
    "InsufficientFunds",
    "ProgramError",
    "ProgramLoadError",
    "RateLimited",
    "RpcRefused",
    "RpcUnavailable",
    "TransactionExpired",
    "TransactionFailed",
    "TransactionTooLarge",
    "TransactionUnconfirmed",
    "WrongCluster",
]


class ProgramError(ChainError):
    """A program refused the transaction; no account changed.

    ``code`` is the custom error number, ``name`` its name in the program's IDL ("" when unknown),
    ``program`` the program's name, or its id when it is none of ours.
    """

    def __init__(
        self,
        code: int,
        name: str,
        program: str,
        logs: Sequence[str] = (),
        *,
        what: str = "",
        remedy: str = "",
    ) -> None:
        reason = what or "gave no further reason"
        super().__init__(f"The {program} program refused ({name or 'custom error'} {code}): {reason}", remedy)
        self.code = code
        self.name = name
        self.program = program
        self.logs = tuple(logs)


class TransactionFailed(ChainError):
    """The transaction was refused by the runtime rather than by one of our programs."""

    def __init__(self, what: str, remedy: str = "", *, err: Any = None, logs: Sequence[str] = ()) -> None:
        super().__init__(what, remedy)
        self.err = err
        self.logs = tuple(logs)


class TransactionTooLarge(TransactionFailed):
    """More than fits into one transaction."""


class InsufficientFunds(ChainError):
    """An account has too little SOL, or too few tokens."""


class TransactionExpired(ChainError):
    """The transaction's blockhash is too old, and it never landed: signing it anew is safe."""

    def __init__(self, what: str, remedy: str = "", *, signature: str) -> None:
        super().__init__(what, remedy)
        self.signature = signature


class RpcUnavailable(ChainError):
    """No endpoint answered in time."""


class RateLimited(RpcUnavailable):
    """Every endpoint asks us to wait; ``retry_after_seconds`` until the first takes requests again."""

    def __init__(self, what: str, remedy: str = "", *, retry_after_seconds: float) -> None:
        super().__init__(what, remedy)
        self.retry_after_seconds = retry_after_seconds


class TransactionUnconfirmed(RpcUnavailable):
    """The transaction was sent, and whether it landed is unknown."""

    def __init__(self, what: str, remedy: str = "", *, signature: str) -> None:
        super().__init__(what, remedy)
        self.signature = signature


class RpcRefused(ChainError):
    """An endpoint answered a request with JSON-RPC error ``code``; the same request will fail again."""

    def __init__(self, what: str, remedy: str = "", *, code: int | None = None) -> None:
        super().__init__(what, remedy)
        self.code = code


class AccountNotFound(ChainError):
    """There is no account at this address."""

    def __init__(self, what: str, remedy: str = "", *, pubkey: str = "") -> None:
        super().__init__(what, remedy)
        self.pubkey = pubkey


class WrongCluster(ChainError):
    """The cluster does not have our programs."""


class AirdropRefused(ChainError):
    """The cluster gives no test money, or not to us, or not now."""


class DeploymentRefused(ChainError):
    """A program cannot be deployed or upgraded: not upgradeable, not ours, or not what the cluster takes."""


class ProgramLoadError(ChainError):
    """The bytes are not a program that the runtime can load."""
