"""From a signed transaction to one of four outcomes: landed, failed, expired, unknown.

The same bytes are sent again and again until their blockhash is too old: that is harmless, as a signature
lands once, and necessary, as endpoints and leaders lose transactions. "Expired" is said only when the block
height is past ``last_valid_block_height`` and the cluster, asked after that, does not know the signature.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import trio
from solders.instruction import Instruction
from solders.transaction import VersionedTransaction

from psyche_py.chain.decode_error import to_exception
from psyche_py.chain.errors import (
    ChainError,
    ProgramError,
    RpcUnavailable,
    TransactionExpired,
    TransactionUnconfirmed,
)
from psyche_py.chain.rpc.calls import COMMITMENTS, RpcCalls, SignatureStatus
from psyche_py.chain.rpc.endpoint import PreflightFailed

LOGS_SECONDS = 2.0
TRANSIENT = frozenset({"AlreadyProcessed", "BlockhashNotFound", "AccountInUse", "ClusterMaintenance"})
"""Preflight errors that do not decide: it landed already, or this endpoint lags behind the one we asked."""


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """How eagerly to ask and to send again; seconds."""

    first_poll_seconds: float
    max_poll_seconds: float
    poll_growth: float = 1.5
    resend_seconds: float = 1.0
    give_up_seconds: float = 90.0
    """After this long without any answer from the cluster the outcome is unknown."""


LOCAL_POLICY = SendPolicy(first_poll_seconds=0.002, max_poll_seconds=0.5)
CLUSTER_POLICY = SendPolicy(first_poll_seconds=0.4, max_poll_seconds=2.0, resend_seconds=2.0)


class Sender:
    """One transaction on its way."""

    def __init__(
        self,
        calls: RpcCalls,
        policy: SendPolicy,
        transaction: VersionedTransaction,
        instructions: Sequence[Instruction],
        last_valid_block_height: int,
        label: str,
    ) -> None:
        """``instructions`` are those of ``transaction``: they say whose error a number is."""
        self._calls = calls
        self._policy = policy
        self._bytes = bytes(transaction)
        self._payer = str(transaction.message.account_keys[0])
        self._signature = transaction.signatures[0]
        self._instructions = instructions
        self._last_valid_block_height = last_valid_block_height
        self._label = label or "transaction"
        self._is_accepted = False
        self._level = COMMITMENTS.index(calls.commitment)

    async def run(self) -> SignatureStatus:
        """Send until it is decided; returns the status of a transaction that landed without error.

        Raises ProgramError, TransactionFailed, InsufficientFunds, WrongCluster; TransactionExpired;
        TransactionUnconfirmed, or RpcUnavailable when no endpoint ever took it.
        """
        heard = trio.current_time()
        resend_at = heard
        poll = self._policy.first_poll_seconds
        while True:
            try:
                is_resend = trio.current_time() >= resend_at
                if is_resend:
                    resend_at = trio.current_time() + self._policy.resend_seconds
                    await self._hand_over()
                status = await self._calls.get_signature_status(self._signature)
                if status is not None and status.err is not None:
                    raise await self._explain(status)
                if status is not None and status.level >= self._level:
                    return status
                if status is None and is_resend:
                    await self._check_expiry()
                heard = trio.current_time()
            except RpcUnavailable as error:
                if trio.current_time() - heard >= self._policy.give_up_seconds:
                    raise self._give_up(error) from error
            await trio.sleep(poll)
            poll = min(poll * self._policy.poll_growth, self._policy.max_poll_seconds)

    async def _hand_over(self) -> None:
        """Preflight until an endpoint took it once; after that it could only say AlreadyProcessed."""
        try:
            await self._calls.send_raw(self._bytes, skip_preflight=self._is_accepted)
        except PreflightFailed as error:
            kind = error.err if isinstance(error.err, str) else ""
            if kind not in TRANSIENT:
                raise to_exception(
                    error.err, error.logs, self._instructions, label=self._label, payer=self._payer
                ) from error
            self._is_accepted = self._is_accepted or kind == "AlreadyProcessed"
        else:
            self._is_accepted = True

    async def _check_expiry(self) -> None:
        if await self._calls.get_block_height() <= self._last_valid_block_height:
            return
        # it may have landed in the last valid block, between our two questions
        status = await self._calls.get_signature_status(self._signature, search_history=True)
        if status is None:
            raise TransactionExpired(
                f"{self._label}: the transaction did not land while its blockhash was valid.",
                "It will not land any more; send it anew. A priority fee helps on a busy cluster.",
                signature=str(self._signature),
            )

    async def _explain(self, status: SignatureStatus) -> ChainError:
        """A transaction that landed with an error. Its logs tell which program of a chain of calls failed."""
        logs: tuple[str, ...] = ()
        error = to_exception(status.err, logs, self._instructions, label=self._label, payer=self._payer)
        if not isinstance(error, ProgramError):
            return error
        try:
            logs = await self._calls.get_transaction_logs(self._signature, deadline_seconds=LOGS_SECONDS)
        except ChainError:
            return error  # without logs it is still true, only less exact
        return to_exception(status.err, logs, self._instructions, label=self._label, payer=self._payer)

    def _give_up(self, error: RpcUnavailable) -> ChainError:
        if not self._is_accepted:
            return error
        return TransactionUnconfirmed(
            f"{self._label}: sent, but the cluster stopped answering; whether it landed is unknown.",
            f"Look it up before sending it again: solana confirm {self._signature}",
            signature=str(self._signature),
        )
