"""RPC methods that send, simulate and look up transactions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from solders.signature import Signature
from solders.transaction import VersionedTransaction

from psyche_py.chain.errors import AirdropRefused
from psyche_py.chain.litesvm_engine import LAMPORTS_PER_SIGNATURE, SimulatedTransaction
from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.decode_transaction import decode_message, decode_transaction
from psyche_py.chain.localnet.encode_account import encode_account
from psyche_py.chain.localnet.encode_transaction import (
    TRANSACTION_ENCODINGS,
    encode_inner_instructions,
    encode_return_data,
    encode_stored,
)
from psyche_py.chain.localnet.err_text import describe_err
from psyche_py.chain.localnet.history import LandedTransaction
from psyche_py.chain.localnet.methods_cluster import with_context
from psyche_py.chain.localnet.params import COMMITMENTS, Config, Params, parse_pubkey, parse_signature
from psyche_py.chain.localnet.rpc_errors import (
    INTERNAL_ERROR,
    PREFLIGHT_FAILURE,
    SIGNATURE_VERIFICATION_FAILURE,
    RpcError,
    invalid_params,
)
from psyche_py.chain.port import AccountInfo

MAX_STATUSES = 256
MAX_SIGNATURES_FOR_ADDRESS = 1000
WIRE_ENCODINGS = ("base58", "base64")


def send_transaction(bank: Bank, params: Params) -> str:
    """Check, try, execute; the first signature. ``maxRetries`` has no meaning: execution is immediate."""
    text, config = params.get_string(0), params.get_config(1)
    encoding = config.get_str("encoding", WIRE_ENCODINGS, "base58")
    skip_preflight = config.get_bool("skipPreflight")
    config.get_commitment("preflightCommitment")
    config.get_int("maxRetries")
    config.check_min_context_slot(bank.slot)
    transaction = decode_transaction(text, encoding)
    if not all(transaction.verify_with_results()):
        raise RpcError(SIGNATURE_VERIFICATION_FAILURE, "Transaction signature verification failure")
    if not skip_preflight:
        simulated = bank.engine.simulate_transaction(transaction)
        if simulated.err is not None:
            raise RpcError(
                PREFLIGHT_FAILURE,
                f"Transaction simulation failed: {describe_err(simulated.err)}",
                _encode_simulated(simulated),
            )
    # whatever becomes of it is learned from its status, as on a cluster
    bank.process(transaction)
    return str(transaction.signatures[0])


def _encode_simulated(simulated: SimulatedTransaction) -> dict[str, Any]:
    return {
        "err": simulated.err,
        "logs": simulated.logs,
        "accounts": None,
        "unitsConsumed": simulated.compute_units,
        "returnData": encode_return_data(simulated.return_data).get("returnData"),
        "innerInstructions": None,
        "replacementBlockhash": None,
    }


def simulate_transaction(bank: Bank, params: Params) -> dict[str, Any]:
    """What a transaction would do."""
    text, config = params.get_string(0), params.get_config(1)
    encoding = config.get_str("encoding", WIRE_ENCODINGS, "base58")
    verify, replace = config.get_bool("sigVerify"), config.get_bool("replaceRecentBlockhash")
    if verify and replace:
        raise invalid_params("sigVerify may not be used with replaceRecentBlockhash")
    config.check_min_context_slot(bank.slot)
    transaction = decode_transaction(text, encoding)
    wanted = _parse_wanted_accounts(config, transaction)
    if verify and not all(transaction.verify_with_results()):
        raise RpcError(SIGNATURE_VERIFICATION_FAILURE, "Transaction signature verification failure")
    simulated = bank.engine.simulate_transaction(transaction, replace_recent_blockhash=replace)
    value = _encode_simulated(simulated)
    if wanted is not None:
        value["accounts"] = _encode_wanted_accounts(bank, simulated, *wanted)
    if config.get_bool("innerInstructions"):
        value["innerInstructions"] = encode_inner_instructions(simulated.inner_instructions)
    if replace:
        latest = bank.engine.get_latest_blockhash()
        value["replacementBlockhash"] = {
            "blockhash": str(latest.blockhash),
            "lastValidBlockHeight": latest.last_valid_block_height,
        }
    return with_context(bank, value)


def _parse_wanted_accounts(
    config: Config, transaction: VersionedTransaction
) -> tuple[Sequence[Any], str] | None:
    wanted = config.get("accounts")
    if wanted is None:
        return None
    if not isinstance(wanted, dict) or not isinstance(wanted.get("addresses"), list):
        raise invalid_params("Invalid params: accounts needs `addresses`.")
    encoding = Config(wanted).get_encoding("base64")
    if encoding in ("binary", "base58"):
        raise invalid_params("base58 encoding not supported")
    limit = len(transaction.message.account_keys)
    if len(wanted["addresses"]) > limit:
        raise invalid_params(f"Too many accounts provided; max {limit}")
    return [parse_pubkey(item) for item in wanted["addresses"]], encoding


def _encode_wanted_accounts(
    bank: Bank, simulated: SimulatedTransaction, pubkeys: Sequence[Any], encoding: str
) -> list[Any]:
    if simulated.err is not None:
        return [None] * len(pubkeys)
    encoded: list[Any] = []
    for pubkey in pubkeys:
        after = simulated.post_accounts.get(pubkey)
        account = bank.get_account(pubkey)
        if after is not None:
            account = AccountInfo(
                pubkey, after.lamports, after.owner, after.data, simulated.slot, after.executable
            )
        absent = account is None or account.lamports == 0
        encoded.append(
            None if absent or account is None else encode_account(account, encoding, None, bank.get_decimals)
        )
    return encoded


def request_airdrop(bank: Bank, params: Params) -> str:
    """Test money; the signature of the transfer."""
    pubkey, lamports = params.get_pubkey(0), params.get_int(1)
    try:
        return str(bank.airdrop(pubkey, lamports).signature)
    except AirdropRefused as error:
        raise RpcError(INTERNAL_ERROR, f"airdrop request failed: {error}") from error


def get_fee_for_message(bank: Bank, params: Params) -> dict[str, Any]:
    """Fee in lamports, or null when the message's blockhash is too old."""
    message, config = decode_message(params.get_string(0)), params.get_config(1)
    config.check_min_context_slot(bank.slot)
    is_valid = bank.engine.is_blockhash_valid(message.recent_blockhash)
    fee = LAMPORTS_PER_SIGNATURE * message.header.num_required_signatures
    return with_context(bank, fee if is_valid else None)


# ---- looking up --------------------------------------------------------------------------------------


def _encode_status(bank: Bank, signature: Signature) -> dict[str, Any] | None:
    status = bank.engine.get_signature_status(signature)
    if status is None:
        landed = bank.history.get_transaction(signature)
        if landed is None:
            return None
        status = landed.slot, landed.err
    slot, err = status
    commitment = bank.get_commitment(slot)
    return {
        "slot": slot,
        "confirmations": None if commitment == "finalized" else bank.slot - slot,
        "status": {"Ok": None} if err is None else {"Err": err},
        "err": err,
        "confirmationStatus": commitment,
    }


def get_signature_statuses(bank: Bank, params: Params) -> dict[str, Any]:
    """What became of transactions; null for unknown ones."""
    signatures = [parse_signature(item) for item in params.get_list(0, limit=MAX_STATUSES)]
    params.get_config(1)
    return with_context(bank, [_encode_status(bank, signature) for signature in signatures])


def _get_wanted_commitment(config: Config) -> str:
    commitment = config.get_commitment()
    if commitment == "processed":
        raise invalid_params("Method does not support commitment below `confirmed`")
    return commitment


def _is_visible(bank: Bank, landed: LandedTransaction, commitment: str) -> bool:
    return COMMITMENTS.index(bank.get_commitment(landed.slot)) >= COMMITMENTS.index(commitment)


def get_transaction(bank: Bank, params: Params) -> dict[str, Any] | None:
    """A landed transaction; null while it is unknown or not settled enough."""
    signature, options = parse_signature(params.require(0)), params.get(1)
    config = Config({"encoding": options}) if isinstance(options, str) else params.get_config(1)
    encoding = config.get_str("encoding", TRANSACTION_ENCODINGS, "json")
    max_version = config.get_int("maxSupportedTransactionVersion", maximum=255)
    commitment = _get_wanted_commitment(config)
    landed = bank.history.get_transaction(signature)
    if landed is None or not _is_visible(bank, landed, commitment):
        return None
    return encode_stored(landed.raw_meta, encoding, max_version)


def get_signatures_for_address(bank: Bank, params: Params) -> list[dict[str, Any]]:
    """Landed transactions that name an address, newest first; ``before`` and ``until`` are exclusive."""
    address, config = params.get_pubkey(0), params.get_config(1)
    commitment = _get_wanted_commitment(config)
    config.check_min_context_slot(bank.slot)
    before, until = (
        parse_signature(config.get(name)) if config.get(name) is not None else None
        for name in ("before", "until")
    )
    limit = config.get_int("limit")
    if limit is None:
        limit = MAX_SIGNATURES_FOR_ADDRESS
    if not 0 < limit <= MAX_SIGNATURES_FOR_ADDRESS:
        raise invalid_params(f"Invalid limit; max {MAX_SIGNATURES_FOR_ADDRESS}")
    entries = list(bank.history.iter_for_address(address))
    positions = {entry.signature: index for index, entry in enumerate(entries)}
    if before is not None:
        entries = entries[positions[before] + 1 :] if before in positions else []
    if until in positions:
        entries = [entry for entry in entries if positions[entry.signature] < positions[until]]
    visible = (entry for entry in entries if _is_visible(bank, entry, commitment))
    return [
        {
            "signature": str(entry.signature),
            "slot": entry.slot,
            "err": entry.err,
            "memo": entry.memo,
            "blockTime": entry.unix_timestamp,
            "confirmationStatus": bank.get_commitment(entry.slot),
        }
        for entry in islice(visible, limit)
    ]


METHODS = {
    "sendTransaction": send_transaction,
    "simulateTransaction": simulate_transaction,
    "requestAirdrop": request_airdrop,
    "getFeeForMessage": get_fee_for_message,
    "getSignatureStatuses": get_signature_statuses,
    "getTransaction": get_transaction,
    "getSignaturesForAddress": get_signatures_for_address,
}
