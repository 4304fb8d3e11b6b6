"""From the records of a ledger back to a running chain."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from solders.account import Account
from solders.hash import Hash
from solders.pubkey import Pubkey

from psyche_py.chain import engine_snapshot
from psyche_py.chain.litesvm_engine import NUM_SLOT_HASHES, LiteSvmEngine
from psyche_py.chain.localnet.history import (
    NUM_BLOCKS_KEPT,
    NUM_TRANSACTIONS_KEPT,
    LandedTransaction,
    read_landed,
)
from psyche_py.chain.localnet.records import AccountRecord, Record, SlotRecord
from psyche_py.chain.port import AccountInfo


@dataclass(slots=True)
class Replayed:
    """What a ledger holds, oldest first."""

    accounts: dict[Pubkey, AccountRecord] = field(default_factory=dict)
    blocks: deque[SlotRecord] = field(default_factory=lambda: deque(maxlen=NUM_BLOCKS_KEPT))
    transactions: deque[LandedTransaction] = field(
        default_factory=lambda: deque(maxlen=NUM_TRANSACTIONS_KEPT)
    )


def replay(records: Iterable[Record]) -> Replayed:
    """Fold records: the newest content of each account, the last blocks and transactions."""
    replayed = Replayed()
    for record in records:
        if isinstance(record, SlotRecord):
            replayed.blocks.append(record)
        elif isinstance(record, AccountRecord):
            replayed.accounts[record.pubkey] = record
        else:
            replayed.transactions.append(read_landed(record.meta))
            for account in record.accounts:
                replayed.accounts[account.pubkey] = account
    return replayed


def restore_engine(engine: LiteSvmEngine, records: Iterable[Record]) -> Replayed:
    """Bring a new engine to the state of a ledger. Raises StorageError when a record is damaged.

    The engine is left in the slot that was being made; the caller ends it, so that slots only go up.
    """
    replayed = replay(records)
    if not (replayed.blocks or replayed.transactions or replayed.accounts):
        return replayed
    accounts = {account.pubkey: account for account in engine.iter_accounts() if not account.executable}
    for pubkey, record in replayed.accounts.items():
        accounts.pop(pubkey, None)
        if record.lamports > 0 and not record.executable:
            accounts[pubkey] = AccountInfo(pubkey, record.lamports, record.owner, record.data, 0)
    last_blocks, last_transactions = list(replayed.blocks)[-1:], list(replayed.transactions)[-1:]
    blockhashes = [(engine.genesis_hash, 0)]
    blockhashes += [(Hash(block.blockhash), block.slot) for block in replayed.blocks]
    snapshot = engine_snapshot.Snapshot(
        slot=max([1, *(b.slot + 1 for b in last_blocks), *(t.slot for t in last_transactions)]),
        unix_timestamp=max(
            [0, *(b.unix_timestamp for b in last_blocks), *(t.unix_timestamp for t in last_transactions)]
        ),
        num_transactions=len(replayed.transactions),
        num_airdrops=0,
        genesis_hash=engine.genesis_hash,
        blockhashes=blockhashes[-NUM_SLOT_HASHES:],
        signatures={t.signature: (t.slot, t.err) for t in replayed.transactions},
        accounts=list(accounts.values()),
    )
    engine.restore(engine_snapshot.pack(snapshot))
    for pubkey, record in replayed.accounts.items():
        if record.executable and record.lamports > 0:
            engine.set_account(pubkey, Account(record.lamports, record.data, record.owner, executable=True))
    return replayed
