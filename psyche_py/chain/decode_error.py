"""From a transaction error (JSON-RPC shape) and its logs to an exception that says whose fault it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from solders.instruction import Instruction

from psyche_py.chain.anchor import find_program
from psyche_py.chain.errors import (
    ChainError,
    InsufficientFunds,
    ProgramError,
    TransactionFailed,
    WrongCluster,
)
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.chain.token_state import TOKEN_PROGRAMS

REMEDIES = {
    "ClientsFull": "Wait until a place is free, or ask the run's owner.",
    "NotAuthorized": "Ask the run's owner for an authorization, or name the one you are a delegate of "
    "with --authorizer.",
    "UpdateConfigNotHalted": "Pause the run first: run-manager set-paused.",
    "UpdateConfigFinished": "Create a new run.",
    "CloseCoordinatorNotHalted": "Pause the run first: run-manager set-paused.",
    "ConfigSanityCheckFailed": "Check the file with run-manager check-config, which names the rule.",
    "ModelSanityCheckFailed": "Check the file with run-manager check-config, which names the rule.",
    "SignerNotAClient": "Join the run first.",
    "Halted": "Wait until the run's owner resumes it.",
    "WrongAuthority": "Sign with the wallet that owns the run, or the pool.",
    "InsufficientVault": "What you earned stays yours; its owner can fill it: run-manager treasurer-top-up.",
    "InsufficientPoints": "Claim no more than you have earned; without --amount it is all of it.",
    "RunNotFinished": "Wait until it is: what participants earn until then is theirs.",
    "WithdrawDelayNotOver": "Wait: until then the vault belongs to those who earned.",
    "CollateralIsPromised": "Leave --amount out to withdraw all that is nobody's.",
    "BondInUse": "Leave the run and wait until its epoch is over; see run-manager status.",
    "InDispute": "Wait until the dispute is decided, at the latest when the epoch ends.",
    "BondOwesDebt": "Pay it out of the bond first: run-manager bond slash.",
    "NothingToSlash": "There is nothing to do; run-manager bond show says what a wallet owes.",
    "PointsNotClaimed": "Wait until everybody has claimed; see run-manager status.",
    "VaultNotEmpty": "Withdraw it first: run-manager withdraw.",
    "ParamsCollateralAmountIsTooLarge": "See with run-manager pool show what the pool still takes and holds.",
    "ParamsRedeemableAmountIsTooLarge": "Claim no more than run-manager pool show says is claimable.",
    "PoolClaimingEnabledIsTrue": "Look for a pool that still takes deposits: run-manager pool list.",
    "PoolClaimingEnabledIsFalse": "Wait until the pool's authority enables claims.",
    "PoolFreezeIsTrue": "Wait until the pool's authority unfreezes it.",
    "PoolTotalDepositedCollateralAmountIsZero": "Wait for the first deposit.",
    "ParamsMaxDepositIsBelowTotalDeposited": "Freeze the pool, then set the limit to what was deposited.",
    "ParamsMaxDepositIsRaised": "Create another pool for more.",
    "AirdropClaimFreezeIsTrue": "Ask the airdrop's authority; what has vested stays yours.",
    "AirdropIsGuaranteed": "Wait until the guarantee ends, see run-manager airdrop show.",
    "AirdropVaultIsTooSmall": "Its authority, or anybody, must fund it: run-manager airdrop fund.",
    "ParamsGuaranteeIsTooShort": "Give a moment that is not before the guarantee's end now.",
    "ParamsMerkleProofIsInvalid": "Use the list that the airdrop's authority published.",
    "distributor.ParamsCollateralAmountIsTooLarge": "Ask for no more than run-manager airdrop show says.",
    "AlreadyInitialized": "It exists already; choose another id or index.",
    **dict.fromkeys(
        (
            "MintTransferFee",
            "MintTransferHook",
            "MintPermanentDelegate",
            "MintNonTransferable",
            "MintDefaultAccountState",
            "MintConfidentialTransfer",
            "MintInterestBearing",
            "MintScaledUiAmount",
            "MintPausable",
            "MintCloseAuthority",
            "TokenExtensionUnknown",
        ),
        "Use a mint without that extension; metadata is fine (docs/money.md).",
    ),
    "InvalidExpiry": "Give a time in the future, or none.",
    "ExpiryNeedsRent": "Send it some lamports in the same transaction; run-manager does.",
    "AuthorizationActiveIsTrue": "Revoke it first: run-manager join-authorization-revoke.",
    "AuthorizationClosingConditionsNotReachedYet": "Wait until 30 days after its last change.",
    "TokenAccountFrozen": "Ask the mint's freeze authority to thaw it.",
    "TokenAccountMemoRequired": "Switch required memos off for the token account, then try again.",
    "TokenAccountCpiGuard": "Switch the CPI guard off for the token account, then try again.",
}
"""What to do about a program's refusal, by error name, or by program and name where programs share one."""

_FAILED = re.compile(r"^Program (\w+) failed: custom program error: 0x([0-9a-f]+)$")
_NO_MONEY = {"InsufficientFundsForFee", "AccountNotFound", "InsufficientFundsForRent"}
_NO_PROGRAM = {"ProgramAccountNotFound", "InvalidProgramForExecution"}


def to_exception(
    err: Any, logs: Sequence[str], instructions: Sequence[Instruction], *, label: str = "", payer: str = ""
) -> ChainError:
    """The exception for ``err``, which must not be None.

    ``instructions`` are those of the failed transaction: their program ids say whose code a number is.
    ``payer`` is named where money is short.
    """
    name = label or "transaction"
    kind = err if isinstance(err, str) else next(iter(err))
    if kind in _NO_MONEY:
        return InsufficientFunds(
            f"{name}: the payer {payer} has too little SOL.",
            "Send some to it (on a local or dev cluster: run-manager wallet airdrop 1).",
        )
    if kind in _NO_PROGRAM:
        return WrongCluster(
            f"{name}: this cluster does not have the program.",
            "Choose the run's cluster with -u, or deploy the programs first.",
        )
    if kind != "InstructionError":
        return TransactionFailed(f"{name}: the cluster refused the transaction: {kind}.", err=err, logs=logs)
    index, detail = err["InstructionError"]
    outer = str(instructions[index].program_id) if index < len(instructions) else "unknown"
    if isinstance(detail, dict) and "Custom" in detail:
        return _custom(int(detail["Custom"]), _find_failed_program(logs) or outer, logs, name)
    reason = detail if isinstance(detail, str) else next(iter(detail))
    if reason in ("UnsupportedProgramId", "IncorrectProgramId"):
        return WrongCluster(
            f"{name}: program {outer} is not on this cluster.",
            "Choose the run's cluster with -u, or deploy the programs first.",
        )
    known = find_program(outer)
    return TransactionFailed(
        f"{name}: instruction {index} of program {known.name if known else outer} failed: {reason}.",
        "--verbose shows the program's log." if logs else "",
        err=err,
        logs=logs,
    )


def _find_failed_program(logs: Sequence[str]) -> str | None:
    """The innermost program that failed: its line comes first. Logs may be cut, so it may be missing."""
    for line in logs:
        match = _FAILED.match(line)
        if match:
            return match.group(1)
    return None


def _custom(code: int, program_id: str, logs: Sequence[str], name: str) -> ChainError:
    program = find_program(program_id)
    if program is not None:
        entry = program.errors.get(code)
        error_name = entry.name if entry else ""
        message = entry.message if entry else "a code its IDL does not know; the installed IDL may be older"
        remedy = REMEDIES.get(f"{program.name}.{error_name}") or REMEDIES.get(error_name, "")
        return ProgramError(code, error_name, program.name, logs, what=f"{message}.", remedy=remedy)
    if program_id in map(str, (SYSTEM_PROGRAM, *TOKEN_PROGRAMS)) and code == 1:
        asset = "SOL" if program_id == str(SYSTEM_PROGRAM) else "tokens"
        return InsufficientFunds(f"{name}: an account has too little {asset}.", "Fund it and try again.")
    return ProgramError(code, "", program_id, logs)
