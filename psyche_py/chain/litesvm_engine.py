"""A chain in one object: slots, blockhashes, signatures, history, around solders' LiteSVM.

LiteSVM runs transactions, and that is all it does. What a cluster adds is here: a slot that advances, recent
blockhashes that expire after 150 slots, a signature that lands once, fees paid by transactions that fail,
fresh SlotHashes, and the memory of what happened. It is synchronous and reads no clock: ``advance_slot`` is
told the time. The test backend (``litesvm``) and the local validator (``localnet``) stand on it.

Not thread-safe, as LiteSVM is not.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from solders.account import Account
from solders.clock import Clock
from solders.compute_budget import set_compute_unit_limit
from solders.hash import Hash
from solders.keypair import Keypair
from solders.litesvm import LiteSVM
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction
from solders.transaction_metadata import (
    FailedTransactionMetadata,
    SimulatedTransactionInfo,
    TransactionMetadata,
)

from psyche_py.chain import engine_snapshot
from psyche_py.chain.engine_transaction import (
    ProcessedTransaction,
    RecentBlockhash,
    SimulatedTransaction,
    get_account_keys,
    get_return_data,
    to_err_json,
)
from psyche_py.chain.errors import AirdropRefused, ProgramLoadError
from psyche_py.chain.port import AccountInfo

__all__ = ["LiteSvmEngine", "ProcessedTransaction", "RecentBlockhash", "SimulatedTransaction"]

MAX_BLOCKHASH_AGE_SLOTS = 150
LAMPORTS_PER_SIGNATURE = 5000
NUM_SLOT_HASHES = 512
SLOTS_PER_EPOCH = 432_000
MAX_AIRDROP_LAMPORTS = 10**15
FAUCET_LAMPORTS = 2**62

SYSTEM_PROGRAM = Pubkey.from_string("11111111111111111111111111111111")
LANDS_WITH_ERROR = ("InstructionError", "InsufficientFundsForRent")
"""With these errors a transaction still lands: it pays its fee and changes nothing else."""


class LiteSvmEngine:
    """See the module. Block height and slot are the same number here: no slot is skipped."""

    def __init__(
        self,
        *,
        unix_timestamp: int = 0,
        genesis_seed: bytes = b"psyche-py",
        programs: Mapping[Pubkey, bytes] | None = None,
        history_capacity: int = 5000,
    ) -> None:
        """Start at slot 1. ``history_capacity``: transactions remembered in full."""
        builder: Any = LiteSVM()  # solders' stub names the builder methods wrongly (set_* for with_*)
        # duplicates, blockhashes and signatures are checked here, as a cluster does and LiteSVM does not
        self._svm: LiteSVM = (
            builder.with_sigverify(False).with_blockhash_check(False).with_transaction_history(0)
        )
        self.genesis_hash = Hash(hashlib.sha256(b"genesis" + genesis_seed).digest())
        self.slot = 1
        self.unix_timestamp = unix_timestamp
        self.num_transactions = 0
        self._block_digest = hashlib.sha256()
        self._blockhashes: OrderedDict[Hash, int] = OrderedDict({self.genesis_hash: 0})  # -> slot made in
        self._history_capacity = history_capacity
        self._history: OrderedDict[Signature, ProcessedTransaction] = OrderedDict()
        self._old_signatures: dict[Signature, tuple[int, Any]] = {}  # restored: slot and err are all we have
        self._known: dict[Pubkey, None] = {}  # LiteSVM cannot list its accounts
        self._slot_listeners: list[Callable[[int], None]] = []
        self._transaction_listeners: list[Callable[[ProcessedTransaction], None]] = []
        self._faucet = Keypair.from_seed(hashlib.sha256(b"faucet" + genesis_seed).digest())
        self._num_airdrops = 0
        self.set_account(self._faucet.pubkey(), Account(FAUCET_LAMPORTS, b"", SYSTEM_PROGRAM))
        self._publish_sysvars()
        for program_id, elf in (programs or {}).items():
            self.add_program(program_id, elf)

    # ---- slots and blockhashes ----------------------------------------------------------------------

    @property
    def block_height(self) -> int:
        """Height of the block being made."""
        return self.slot

    @property
    def faucet(self) -> Pubkey:
        """The account that airdrops come from."""
        return self._faucet.pubkey()

    def get_latest_blockhash(self) -> RecentBlockhash:
        """The newest finished block's hash."""
        blockhash, slot = next(reversed(self._blockhashes.items()))
        return RecentBlockhash(blockhash, slot + MAX_BLOCKHASH_AGE_SLOTS)

    def is_blockhash_valid(self, blockhash: Hash) -> bool:
        """Whether a transaction that names it can land in the present slot."""
        made = self._blockhashes.get(blockhash)
        return made is not None and self.slot - made <= MAX_BLOCKHASH_AGE_SLOTS

    def advance_slot(self, unix_timestamp: int) -> int:
        """Finish the block and begin the next slot; returns its number.

        The clock never goes back: an earlier time than the present slot's leaves the time as it is.
        A block's hash depends on the transactions in it, so it cannot be known before the block is done.
        """
        previous = next(reversed(self._blockhashes))
        self._block_digest.update(bytes(previous) + self.slot.to_bytes(8, "little"))
        self._blockhashes[Hash(self._block_digest.digest())] = self.slot
        self._block_digest = hashlib.sha256()
        while len(self._blockhashes) > NUM_SLOT_HASHES:
            self._blockhashes.popitem(last=False)
        self.slot += 1
        self.unix_timestamp = max(self.unix_timestamp, unix_timestamp)
        self._publish_sysvars()
        for listener in list(self._slot_listeners):
            listener(self.slot)
        return self.slot

    def set_unix_timestamp(self, unix_timestamp: int) -> None:
        """Set the clock within the slot, forward or back; for tests."""
        self.unix_timestamp = unix_timestamp
        self._publish_clock()

    def _publish_clock(self) -> None:
        epoch = self.slot // SLOTS_PER_EPOCH
        self._svm.set_clock(Clock(self.slot, 0, epoch, epoch + 1, self.unix_timestamp))

    def _publish_sysvars(self) -> None:
        self._publish_clock()
        newest_first = [(slot, blockhash) for blockhash, slot in reversed(self._blockhashes.items())]
        self._svm.set_slot_hashes(newest_first)

    # ---- accounts -----------------------------------------------------------------------------------

    def add_program(self, program_id: Pubkey, elf: bytes) -> None:
        """Install a program. Raises ProgramLoadError when the bytes are no SBF program."""
        try:
            self._svm.add_program(program_id, elf)
        except BaseException as error:
            # solders 0.26 panics on a bad ELF, and pyo3's PanicException is no Exception
            if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
                raise
            raise ProgramLoadError(
                f"The bytes for program {program_id} are no program the runtime can load.",
                "Build it again with `make programs`.",
            ) from error
        self._known[program_id] = None

    def set_account(self, pubkey: Pubkey, account: Account) -> None:
        """Write an account from outside, no questions asked."""
        self._svm.set_account(pubkey, account)
        self._known[pubkey] = None

    def get_account(self, pubkey: Pubkey) -> AccountInfo | None:
        """An account at the present slot, sysvars included; None when there is none."""
        account = self._svm.get_account(pubkey)
        if account is None or account.lamports == 0:
            return None
        return AccountInfo(
            pubkey, account.lamports, account.owner, account.data, self.slot, account.executable
        )

    def iter_accounts(self) -> Iterator[AccountInfo]:
        """Every account that was ever set or written and still exists, oldest first."""
        for pubkey in list(self._known):
            account = self.get_account(pubkey)
            if account is not None:
                yield account

    def get_program_accounts(self, program_id: Pubkey) -> list[AccountInfo]:
        """The accounts that ``program_id`` owns."""
        return [account for account in self.iter_accounts() if account.owner == program_id]

    def get_minimum_balance(self, num_bytes: int) -> int:
        """Lamports that make an account of ``num_bytes`` rent exempt."""
        return self._svm.minimum_balance_for_rent_exemption(num_bytes)

    def airdrop(self, pubkey: Pubkey, lamports: int) -> ProcessedTransaction:
        """Pay from the faucet, by an ordinary transaction. Raises AirdropRefused over the limit."""
        if not 0 < lamports <= MAX_AIRDROP_LAMPORTS:
            raise AirdropRefused(
                f"{lamports} lamports cannot be airdropped.", f"Ask for 1 to {MAX_AIRDROP_LAMPORTS}."
            )
        self._num_airdrops += 1
        instructions = [
            # the limit differs each time, so that two equal airdrops are two transactions
            set_compute_unit_limit(10_000 + self._num_airdrops % 1_000_000),
            transfer(TransferParams(from_pubkey=self.faucet, to_pubkey=pubkey, lamports=lamports)),
        ]
        blockhash = self.get_latest_blockhash().blockhash
        message = Message.new_with_blockhash(instructions, self.faucet, blockhash)
        processed = self.process_transaction(VersionedTransaction(message, [self._faucet]))
        if processed.err is not None:
            raise AirdropRefused(f"The airdrop to {pubkey} failed: {processed.err}.")
        return processed

    # ---- transactions -------------------------------------------------------------------------------

    def check_transaction(self, transaction: VersionedTransaction, *, verify_signatures: bool = True) -> Any:
        """The err with which a cluster turns the transaction away unexecuted, or None."""
        if verify_signatures and not all(transaction.verify_with_results()):
            return "SignatureFailure"
        if not self.is_blockhash_valid(transaction.message.recent_blockhash):
            return "BlockhashNotFound"
        if self.get_signature_status(transaction.signatures[0]) is not None:
            return "AlreadyProcessed"
        return None

    def process_transaction(
        self, transaction: VersionedTransaction, *, verify_signatures: bool = True
    ) -> ProcessedTransaction:
        """Check and execute a transaction in the present slot. Never raises for what the sender did."""
        keys, writable = get_account_keys(transaction, self._svm.get_account)
        before = self._read(keys)
        refusal = self.check_transaction(transaction, verify_signatures=verify_signatures)
        if refusal is not None:
            return self._conclude(transaction, None, refusal, keys, before, before)
        outcome = self._svm.send_transaction(transaction)
        meta = outcome.meta() if isinstance(outcome, FailedTransactionMetadata) else outcome
        err = to_err_json(outcome.err()) if isinstance(outcome, FailedTransactionMetadata) else None
        after = self._read(keys)
        processed = self._conclude(transaction, meta, err, keys, before, after)
        if processed.is_landed:
            self._known.update(dict.fromkeys(writable))
            self._remember(processed)
            for listener in list(self._transaction_listeners):
                listener(processed)
        return processed

    def simulate_transaction(
        self,
        transaction: VersionedTransaction,
        *,
        verify_signatures: bool = False,
        replace_recent_blockhash: bool = False,
    ) -> SimulatedTransaction:
        """What :meth:`process_transaction` would do, without doing it.

        ``replace_recent_blockhash``: the transaction's own blockhash is not looked at.
        """
        refusal = self.check_transaction(transaction, verify_signatures=verify_signatures)
        if refusal == "BlockhashNotFound" and replace_recent_blockhash:
            refusal = None
        if refusal is not None:
            return SimulatedTransaction(self.slot, refusal, (), 0, [], None, {})
        outcome = self._svm.simulate_transaction(transaction)
        meta = outcome.meta()
        return SimulatedTransaction(
            self.slot,
            to_err_json(outcome.err()) if isinstance(outcome, FailedTransactionMetadata) else None,
            tuple(meta.logs()),
            meta.compute_units_consumed(),
            meta.inner_instructions(),
            get_return_data(meta),
            dict(outcome.post_accounts()) if isinstance(outcome, SimulatedTransactionInfo) else {},
        )

    def get_transaction(self, signature: Signature) -> ProcessedTransaction | None:
        """A landed transaction, while it is remembered."""
        return self._history.get(signature)

    def get_signature_status(self, signature: Signature) -> tuple[int, Any] | None:
        """(slot, err) of a landed transaction, None when it is unknown."""
        processed = self._history.get(signature)
        if processed is not None:
            return processed.slot, processed.err
        return self._old_signatures.get(signature)

    def iter_history(self) -> Iterator[ProcessedTransaction]:
        """Remembered transactions, newest first."""
        return iter(list(reversed(self._history.values())))

    def add_transaction_listener(
        self, listener: Callable[[ProcessedTransaction], None]
    ) -> Callable[[], None]:
        """Call ``listener`` after every landed transaction; returns the function that ends it."""
        self._transaction_listeners.append(listener)
        return lambda: self._transaction_listeners.remove(listener)

    def add_slot_listener(self, listener: Callable[[int], None]) -> Callable[[], None]:
        """Call ``listener`` with every new slot; returns the function that ends it."""
        self._slot_listeners.append(listener)
        return lambda: self._slot_listeners.remove(listener)

    def _read(self, keys: tuple[Pubkey, ...]) -> list[Account | None]:
        return [self._svm.get_account(key) for key in keys]

    def _conclude(
        self,
        transaction: VersionedTransaction,
        meta: TransactionMetadata | None,
        err: Any,
        keys: tuple[Pubkey, ...],
        before: list[Account | None],
        after: list[Account | None],
    ) -> ProcessedTransaction:
        is_landed = err is None or (isinstance(err, dict) and any(name in err for name in LANDS_WITH_ERROR))
        changed = tuple(key for key, old, new in zip(keys, before, after, strict=True) if old != new)
        return ProcessedTransaction(
            signature=transaction.signatures[0],
            transaction=transaction,
            slot=self.slot,
            unix_timestamp=self.unix_timestamp,
            err=err,
            is_landed=is_landed,
            logs=tuple(meta.logs()) if meta else (),
            compute_units=meta.compute_units_consumed() if meta else 0,
            fee=LAMPORTS_PER_SIGNATURE * len(transaction.signatures) if is_landed else 0,
            account_keys=keys,
            pre_balances=tuple(account.lamports if account else 0 for account in before),
            post_balances=tuple(account.lamports if account else 0 for account in after),
            changed=changed,
            inner_instructions=meta.inner_instructions() if meta else [],
            return_data=get_return_data(meta) if meta else None,
        )

    def _remember(self, processed: ProcessedTransaction) -> None:
        self.num_transactions += 1
        self._block_digest.update(bytes(processed.signature))
        self._history[processed.signature] = processed
        while len(self._history) > self._history_capacity:
            oldest = next(iter(self._history.values()))
            if self.slot - oldest.slot <= MAX_BLOCKHASH_AGE_SLOTS:
                break  # forgetting it would let it land twice
            self._history.popitem(last=False)

    # ---- a ledger on disk ---------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Accounts (programs excepted), clock, blockhashes and signatures; for :meth:`restore`."""
        statuses = dict(self._old_signatures)
        statuses.update((signature, (p.slot, p.err)) for signature, p in self._history.items())
        oldest = self.slot - MAX_BLOCKHASH_AGE_SLOTS
        return engine_snapshot.pack(
            engine_snapshot.Snapshot(
                slot=self.slot,
                unix_timestamp=self.unix_timestamp,
                num_transactions=self.num_transactions,
                num_airdrops=self._num_airdrops,
                genesis_hash=self.genesis_hash,
                blockhashes=list(self._blockhashes.items()),
                signatures={s: status for s, status in statuses.items() if status[0] >= oldest},
                accounts=[account for account in self.iter_accounts() if not account.executable],
            )
        )

    def restore(self, data: bytes) -> None:
        """Become the chain that ``snapshot`` saved; programs stay as they are installed.

        Raises StorageError when the bytes are damaged or of another version; nothing has changed then.
        """
        saved = engine_snapshot.unpack(data)
        for account in list(self.iter_accounts()):
            if not account.executable:
                self.set_account(account.pubkey, Account(0, b"", SYSTEM_PROGRAM))
        self.slot, self.unix_timestamp = saved.slot, saved.unix_timestamp
        self.num_transactions, self._num_airdrops = saved.num_transactions, saved.num_airdrops
        self.genesis_hash = saved.genesis_hash
        self._blockhashes = OrderedDict(saved.blockhashes)
        self._block_digest = hashlib.sha256()
        self._history.clear()
        self._old_signatures = dict(saved.signatures)
        for info in saved.accounts:
            self.set_account(info.pubkey, Account(info.lamports, info.data, info.owner))
        self._publish_sysvars()
