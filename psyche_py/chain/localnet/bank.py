"""The chain as the RPC methods see it: the engine, indexes over it, history, and the ledger underneath.

Commitment on one node that never forks: a transaction is *processed* when it has been executed (it is in the
ledger then), *confirmed* when its slot is over, *finalized* one slot after that. Accounts are always read as
they are now, at every commitment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from solders.hash import Hash
from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction

from psyche_py.chain.litesvm_engine import LiteSvmEngine, ProcessedTransaction
from psyche_py.chain.localnet.encode_transaction import to_meta
from psyche_py.chain.localnet.history import Block, History, LandedTransaction
from psyche_py.chain.localnet.ledger import Ledger
from psyche_py.chain.localnet.records import AccountRecord, Record, SlotRecord, TransactionRecord
from psyche_py.chain.localnet.restore import restore_engine
from psyche_py.chain.localnet.token_json import to_ui_amount
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.chain.port import AccountInfo
from psyche_py.chain.token_state import TokenAccount, read_mint, read_token_account

SLOTS_TO_FINALITY = 1
"""Slots between *confirmed* and *finalized*."""

REWRITE_GROWTH = 4
REWRITE_MINIMUM_BYTES = 64 << 20
"""The ledger is rewritten when it is this large and four times what the last rewrite left."""

TransactionListener = Callable[[ProcessedTransaction, Sequence[AccountInfo]], None]
SlotListener = Callable[[int], None]


class Bank:
    """See the module. Everything here is synchronous and runs on the event loop's thread."""

    def __init__(self, engine: LiteSvmEngine, ledger: Ledger | None = None) -> None:
        """``engine`` must be new; what ``ledger`` holds is restored into it. Raises StorageError."""
        self.engine = engine
        self.history = History()
        self.transaction_listeners: list[TransactionListener] = []
        self.slot_listeners: list[SlotListener] = []
        self._ledger = ledger
        self._rewrite_at_bytes = REWRITE_MINIMUM_BYTES
        self._by_owner: dict[Pubkey, dict[Pubkey, None]] = {}
        self._owner_of: dict[Pubkey, Pubkey] = {}
        self._tokens: dict[Pubkey, TokenAccount] = {}
        # programs that come with every start, not from the ledger
        self._built_in = {account.pubkey for account in engine.iter_accounts() if account.executable}
        if ledger is not None:
            self._restore(ledger.read_records())
        for account in engine.iter_accounts():
            self._index_account(account)

    # ---- reading ------------------------------------------------------------------------------------

    @property
    def slot(self) -> int:
        """The slot being made."""
        return self.engine.slot

    @property
    def root(self) -> int:
        """The newest finalized slot."""
        return self.get_slot("finalized")

    def get_slot(self, commitment: str) -> int:
        """The newest slot at a commitment level."""
        behind = {"processed": 0, "confirmed": 1, "finalized": 1 + SLOTS_TO_FINALITY}[commitment]
        return max(0, self.slot - behind)

    def get_commitment(self, slot: int) -> str:
        """How settled ``slot`` is."""
        if slot <= self.get_slot("finalized"):
            return "finalized"
        return "confirmed" if slot <= self.get_slot("confirmed") else "processed"

    def get_account(self, pubkey: Pubkey) -> AccountInfo | None:
        """An account now; None when there is none."""
        return self.engine.get_account(pubkey)

    def iter_owned_by(self, program_id: Pubkey) -> Iterator[AccountInfo]:
        """The accounts that ``program_id`` owns."""
        for pubkey in list(self._by_owner.get(program_id, ())):
            account = self.engine.get_account(pubkey)
            if account is not None:
                yield account

    def get_token_accounts(self) -> list[tuple[Pubkey, TokenAccount]]:
        """All initialised token accounts."""
        return list(self._tokens.items())

    def get_token_account(self, pubkey: Pubkey) -> TokenAccount | None:
        """An initialised token account."""
        return self._tokens.get(pubkey)

    def get_decimals(self, mint: Pubkey) -> int | None:
        """Decimals of a mint; None when it is no mint."""
        account = self.engine.get_account(mint)
        parsed = read_mint(account.owner, account.data) if account is not None else None
        return None if parsed is None else parsed.decimals

    # ---- changing -----------------------------------------------------------------------------------

    def process(self, transaction: VersionedTransaction) -> ProcessedTransaction:
        """Execute a transaction whose signatures have been checked.

        Raises StorageError when the ledger cannot keep it; the caller must not go on then.
        """
        processed = self.engine.process_transaction(transaction, verify_signatures=False)
        if processed.is_landed:
            self._absorb(processed)
        return processed

    def airdrop(self, pubkey: Pubkey, lamports: int) -> ProcessedTransaction:
        """Pay from the faucet. Raises AirdropRefused, StorageError."""
        processed = self.engine.airdrop(pubkey, lamports)
        self._absorb(processed)
        return processed

    def advance(self, unix_timestamp: int) -> None:
        """End the slot and begin the next. Raises StorageError."""
        done = self.engine.slot
        self.engine.advance_slot(unix_timestamp)
        block = Block(done, self.engine.unix_timestamp, self.engine.get_latest_blockhash().blockhash)
        self.history.add_block(block)
        if self._ledger is not None:
            self._ledger.append(SlotRecord(done, block.unix_timestamp, bytes(block.blockhash)))
            if self._ledger.num_bytes > self._rewrite_at_bytes:
                self.rewrite_ledger()
        for listener in self.slot_listeners:
            listener(self.engine.slot)

    def _absorb(self, processed: ProcessedTransaction) -> None:
        """Take a landed transaction into the indexes, the ledger and the history, and tell the listeners."""
        pre_tokens = self._to_token_balances(processed)  # the indexes still show what was before
        changed = [self.engine.get_account(key) or _to_absent(key, self.slot) for key in processed.changed]
        for account in changed:
            self._index_account(account)
        meta = to_meta(processed, pre_tokens, self._to_token_balances(processed))
        raw_meta = json.dumps(meta, separators=(",", ":")).encode()
        if self._ledger is not None:
            records = tuple(_to_record(account) for account in changed)
            self._ledger.append(TransactionRecord(raw_meta, records))
        self.history.add_transaction(
            LandedTransaction(
                signature=processed.signature,
                slot=processed.slot,
                unix_timestamp=processed.unix_timestamp,
                err=processed.err,
                memo=meta["memo"],
                account_keys=processed.account_keys,
                raw_meta=raw_meta,
            )
        )
        for listener in self.transaction_listeners:
            listener(processed, changed)

    def _to_token_balances(self, processed: ProcessedTransaction) -> list[dict[str, Any]]:
        """The transaction's token accounts as they are indexed now, in the shape of getTransaction."""
        balances: list[dict[str, Any]] = []
        for index, key in enumerate(processed.account_keys):
            token = self._tokens.get(key)
            if token is None:
                continue
            decimals = self.get_decimals(token.mint)
            if decimals is None:
                continue
            balances.append(
                {
                    "accountIndex": index,
                    "mint": str(token.mint),
                    "owner": str(token.owner),
                    "programId": str(self._owner_of[key]),
                    "uiTokenAmount": to_ui_amount(token.amount, decimals),
                }
            )
        return balances

    def _index_account(self, account: AccountInfo) -> None:
        pubkey = account.pubkey
        old_owner = self._owner_of.pop(pubkey, None)
        new_owner = account.owner if account.lamports > 0 else None
        if new_owner is not None:
            self._owner_of[pubkey] = new_owner
        if old_owner != new_owner:
            if old_owner is not None:
                self._by_owner[old_owner].pop(pubkey, None)
            if new_owner is not None:
                self._by_owner.setdefault(new_owner, {})[pubkey] = None
        token = read_token_account(account.owner, account.data)
        if token is not None:
            self._tokens[pubkey] = token
        else:
            self._tokens.pop(pubkey, None)

    # ---- the ledger ---------------------------------------------------------------------------------

    def _restore(self, records: Iterable[Record]) -> None:
        replayed = restore_engine(self.engine, records)
        for record in replayed.blocks:
            self.history.add_block(Block(record.slot, record.unix_timestamp, Hash(record.blockhash)))
        for landed in replayed.transactions:
            self.history.add_transaction(landed)

    def rewrite_ledger(self) -> None:
        """Write the ledger anew: the present accounts, the kept blocks and history, nothing else."""
        if self._ledger is not None:
            self._ledger.rewrite(self._iter_records())
            self._rewrite_at_bytes = max(REWRITE_MINIMUM_BYTES, REWRITE_GROWTH * self._ledger.num_bytes)

    def _iter_records(self) -> Iterator[Record]:
        for landed in self.history.iter_transactions():
            yield TransactionRecord(landed.raw_meta, ())
        for account in self.engine.iter_accounts():
            if account.pubkey not in self._built_in:
                yield _to_record(account)
        for block in self.history.blocks.values():
            yield SlotRecord(block.slot, block.unix_timestamp, bytes(block.blockhash))

    def close(self) -> None:
        """Flush and close the ledger."""
        if self._ledger is not None:
            self._ledger.close()


def _to_record(account: AccountInfo) -> AccountRecord:
    return AccountRecord(account.pubkey, account.lamports, account.owner, account.executable, account.data)


def _to_absent(pubkey: Pubkey, slot: int) -> AccountInfo:
    """What a node shows of an account that has just ceased to be."""
    return AccountInfo(pubkey, 0, SYSTEM_PROGRAM, b"", slot)
