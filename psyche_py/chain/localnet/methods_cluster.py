"""RPC methods about the node, its slots and its blocks."""

from __future__ import annotations

from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey

from psyche_py.chain.litesvm_engine import MAX_BLOCKHASH_AGE_SLOTS, SLOTS_PER_EPOCH
from psyche_py.chain.localnet.bank import Bank
from psyche_py.chain.localnet.encode_transaction import TRANSACTION_ENCODINGS, encode_with_meta
from psyche_py.chain.localnet.history import Block
from psyche_py.chain.localnet.params import Params, parse_hash
from psyche_py.chain.localnet.rpc_errors import (
    BLOCK_CLEANED_UP,
    BLOCK_NOT_AVAILABLE,
    RpcError,
    invalid_params,
)

SOLANA_CORE_VERSION = "2.2.7"
"""The version we answer like: LiteSVM of solders 0.26 runs agave 2.2."""

FEATURE_SET = 3294202862
MAX_BLOCK_RANGE = 500_000


def with_context(bank: Bank, value: Any) -> dict[str, Any]:
    """``value`` with the slot it was read at."""
    return {"context": {"apiVersion": SOLANA_CORE_VERSION, "slot": bank.slot}, "value": value}


def get_health(_bank: Bank, _params: Params) -> str:
    """Always well: a localnet that cannot go on stops."""
    return "ok"


def get_version(_bank: Bank, _params: Params) -> dict[str, Any]:
    """Versions of the software."""
    return {"feature-set": FEATURE_SET, "solana-core": SOLANA_CORE_VERSION}


def get_genesis_hash(bank: Bank, _params: Params) -> str:
    """What tells this chain from others; stays with the ledger."""
    return str(bank.engine.genesis_hash)


def get_slot(bank: Bank, params: Params) -> int:
    """The newest slot at a commitment level."""
    config = params.get_config(0)
    slot = bank.get_slot(config.get_commitment())
    config.check_min_context_slot(slot)
    return slot


def get_epoch_info(bank: Bank, params: Params) -> dict[str, Any]:
    """Slot and epoch."""
    slot = get_slot(bank, params)
    return {
        "absoluteSlot": slot,
        "blockHeight": slot,
        "epoch": slot // SLOTS_PER_EPOCH,
        "slotIndex": slot % SLOTS_PER_EPOCH,
        "slotsInEpoch": SLOTS_PER_EPOCH,
        "transactionCount": bank.engine.num_transactions,
    }


def get_epoch_schedule(_bank: Bank, _params: Params) -> dict[str, Any]:
    """Epochs have one length from the start."""
    return {
        "slotsPerEpoch": SLOTS_PER_EPOCH,
        "leaderScheduleSlotOffset": SLOTS_PER_EPOCH,
        "warmup": False,
        "firstNormalEpoch": 0,
        "firstNormalSlot": 0,
    }


def get_transaction_count(bank: Bank, _params: Params) -> int:
    """Transactions that landed."""
    return bank.engine.num_transactions


def get_latest_blockhash(bank: Bank, params: Params) -> dict[str, Any]:
    """The newest blockhash and how long it lives."""
    params.get_config(0).check_min_context_slot(bank.slot)
    latest = bank.engine.get_latest_blockhash()
    return with_context(
        bank,
        {"blockhash": str(latest.blockhash), "lastValidBlockHeight": latest.last_valid_block_height},
    )


def is_blockhash_valid(bank: Bank, params: Params) -> dict[str, Any]:
    """Whether a transaction that names this blockhash can still land."""
    params.get_config(1).check_min_context_slot(bank.slot)
    return with_context(bank, bank.engine.is_blockhash_valid(parse_hash(params.require(0))))


def get_identity_pubkey(bank: Bank) -> Pubkey:
    """The node's name: nothing is signed with it."""
    return Pubkey(bytes(bank.engine.genesis_hash))


def get_identity(bank: Bank, _params: Params) -> dict[str, Any]:
    """The node's name."""
    return {"identity": str(get_identity_pubkey(bank))}


def get_slot_leader(bank: Bank, _params: Params) -> str:
    """Always this node."""
    return str(get_identity_pubkey(bank))


def get_slot_leaders(bank: Bank, params: Params) -> list[str]:
    """Always this node."""
    params.get_int(0)
    return [str(get_identity_pubkey(bank))] * params.get_int(1, maximum=5000)


def get_vote_accounts(_bank: Bank, _params: Params) -> dict[str, Any]:
    """Nobody votes here."""
    return {"current": [], "delinquent": []}


def get_recent_prioritization_fees(bank: Bank, params: Params) -> list[dict[str, int]]:
    """Nobody has to pay for priority here."""
    if params.get(0) is not None:
        for address in range(len(params.get_list(0, limit=128))):
            Params(params.require(0)).get_pubkey(address)
    newest = bank.slot - 1
    return [
        {"slot": slot, "prioritizationFee": 0}
        for slot in range(max(1, newest - MAX_BLOCKHASH_AGE_SLOTS + 1), newest + 1)
    ]


def get_first_available_block(bank: Bank, _params: Params) -> int:
    """The oldest block we still know."""
    return next(iter(bank.history.blocks), 0)


def _find_block(bank: Bank, slot: int) -> Block:
    block = bank.history.blocks.get(slot)
    if block is not None:
        return block
    first = get_first_available_block(bank, Params([]))
    if slot < first:
        raise RpcError(
            BLOCK_CLEANED_UP,
            f"Block {slot} cleaned up, does not exist on node. First available block: {first}",
        )
    raise RpcError(BLOCK_NOT_AVAILABLE, f"Block not available for slot {slot}")


def get_block_time(bank: Bank, params: Params) -> int:
    """Unix time of a block, seconds."""
    return _find_block(bank, params.get_int(0)).unix_timestamp


def get_blocks(bank: Bank, params: Params) -> list[int]:
    """Slots with a block, from start to end inclusive; none is skipped here."""
    start, end = params.get_int(0), params.get(1)
    newest = bank.get_slot("confirmed")
    last = newest if not isinstance(end, int) else min(end, newest)
    if last - start > MAX_BLOCK_RANGE:
        raise invalid_params(f"Slot range too large; max {MAX_BLOCK_RANGE}")
    return [slot for slot in bank.history.blocks if start <= slot <= last]


def get_block(bank: Bank, params: Params) -> dict[str, Any]:
    """A block with its transactions (``transactionDetails``: full, signatures or none)."""
    block, config = _find_block(bank, params.get_int(0)), params.get_config(1)
    encoding = config.get_str("encoding", TRANSACTION_ENCODINGS, "json")
    details = config.get_str("transactionDetails", ("full", "signatures", "none"), "full")
    max_version = config.get_int("maxSupportedTransactionVersion", maximum=255)
    parent = bank.history.blocks.get(block.slot - 1)
    previous = parent.blockhash if parent is not None else bank.engine.genesis_hash
    answer: dict[str, Any] = {
        "blockhash": str(block.blockhash),
        "previousBlockhash": str(previous if block.slot > 1 or parent else Hash.default()),
        "parentSlot": block.slot - 1,
        "blockHeight": block.slot,
        "blockTime": block.unix_timestamp,
        "rewards": [],
    }
    landed = bank.history.get_block_transactions(block.slot) if details != "none" else []
    if details == "signatures":
        answer["signatures"] = [str(entry.signature) for entry in landed]
    elif details == "full":
        answer["transactions"] = [encode_with_meta(entry.raw_meta, encoding, max_version) for entry in landed]
    return answer


METHODS = {
    "getHealth": get_health,
    "getVersion": get_version,
    "getGenesisHash": get_genesis_hash,
    "getSlot": get_slot,
    "getBlockHeight": get_slot,
    "getEpochInfo": get_epoch_info,
    "getEpochSchedule": get_epoch_schedule,
    "getTransactionCount": get_transaction_count,
    "getLatestBlockhash": get_latest_blockhash,
    "isBlockhashValid": is_blockhash_valid,
    "getIdentity": get_identity,
    "getSlotLeader": get_slot_leader,
    "getSlotLeaders": get_slot_leaders,
    "getVoteAccounts": get_vote_accounts,
    "getRecentPrioritizationFees": get_recent_prioritization_fees,
    "getFirstAvailableBlock": get_first_available_block,
    "minimumLedgerSlot": get_first_available_block,
    "getBlockTime": get_block_time,
    "getBlocks": get_blocks,
    "getBlock": get_block,
}
