"""A chain to attack: transactions are tried without being kept, and every attempt is counted.

``AttackChain.attempt`` runs a transaction on the real programs and says what it would change; nothing stays,
so that thousands of attacks share one world. ``attack`` demands a refusal of a given name, ``honest`` demands
success. ``LEDGER`` counts for benchmarks/bench_attacks.py.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from programs_harness import ProgramChain, make_p2p_key
from solders.account import Account
from solders.hash import Hash
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.message import Message
from solders.pubkey import Pubkey
from solders.signature import Signature
from solders.transaction import Transaction
from solders.transaction_metadata import FailedTransactionMetadata

from psyche_py.chain.anchor import find_program, get_program
from psyche_py.chain.pda import SYSTEM_PROGRAM

LAMPORTS_PER_SIGNATURE = 5000
CRASHES = ("ProgramFailedToComplete", "ComputationalBudgetExceeded", "InsufficientFundsForRent")
"""A panic, a wild memory access, an endless loop, an account left to die: never a fit answer."""


class AccountState(NamedTuple):
    """What an account is; an absent one equals ABSENT."""

    lamports: int
    owner: Pubkey
    data: bytes


ABSENT = AccountState(0, SYSTEM_PROGRAM, b"")


def make_state(account: Any) -> AccountState:
    """From a solders Account or None."""
    if account is None or not account.lamports:
        return ABSENT
    return AccountState(account.lamports, account.owner, bytes(account.data))


@dataclass(frozen=True)
class Outcome:
    """What a transaction would do. ``error`` is None when it is accepted.

    The fee is taken out of ``changes``: the payer shows only what the instructions did to it.
    """

    error: str | None
    logs: Sequence[str]
    units: int
    changes: dict[Pubkey, tuple[AccountState, AccountState]]
    signers: frozenset[Pubkey]


@dataclass
class Ledger:
    """Attacks tried in this process, and those that got through."""

    attempts: int = 0
    through: list[str] = field(default_factory=list)


LEDGER = Ledger()


class AttackChain(ProgramChain):
    """A ProgramChain that knows every wallet's key and can try a transaction without keeping it.

    ``is_signed`` False spares the signatures (for fuzzing): the signer flags of a message then stand for
    them, and only wallets of this chain are ever flagged.
    """

    def __init__(self, *, is_signed: bool = True) -> None:
        super().__init__()
        self.is_signed = is_signed
        if not is_signed:
            self.svm = self.svm.with_sigverify(False)
        self.keys: dict[Pubkey, Keypair] = {}
        self.payer = self.make_wallet("fee payer")

    def make_wallet(self, name: str) -> Keypair:
        """A funded wallet that follows from its name; this chain can sign for it and for its p2p key."""
        wallet = self.remember(super().make_wallet(name))
        self.remember(make_p2p_key(wallet))
        return wallet

    def make_key(self, name: str) -> Keypair:
        """A key without an account."""
        return self.remember(Keypair.from_seed(hashlib.sha256(f"key {name}".encode()).digest()))

    def remember(self, key: Keypair) -> Keypair:
        """Sign with ``key`` from now on, wherever an instruction names it as a signer."""
        self.keys[key.pubkey()] = key
        return key

    def switch(self, grantor: Keypair, authorization: Pubkey, *, active: bool) -> None:
        """Switch an authorization on or off for its grantor."""
        accounts = {"grantor": grantor.pubkey(), "authorization": authorization}
        args = {"active": active, "expires_unix_timestamp": 0}
        self.commit(get_program("authorizer").encode("authorization_grantor_update", accounts, args))

    def get_state(self, address: Pubkey) -> AccountState:
        """The account at ``address``."""
        return make_state(self.svm.get_account(address))

    def set_state(self, address: Pubkey, state: AccountState) -> None:
        """Put an account in place behind the programs' backs."""
        self.svm.set_account(address, Account(state.lamports, state.data, state.owner))

    @contextmanager
    def altered(self, address: Pubkey, **changes: Any) -> Iterator[None]:
        """Within the block the account has another ``data``, ``owner`` or number of ``lamports``."""
        state = self.get_state(address)
        self.set_state(address, state._replace(**changes))
        try:
            yield
        finally:
            self.set_state(address, state)

    def set_now(self, now: int) -> None:
        """Move the clock to any unix second."""
        self.now = now
        self._set_clock()

    @contextmanager
    def undone(self, *addresses: Pubkey) -> Iterator[None]:
        """What happens within the block to the accounts at ``addresses`` and to the clock is undone."""
        states = {address: self.get_state(address) for address in addresses}
        clock = self.now, self.slot
        try:
            yield
        finally:
            for address, state in states.items():
                self.set_state(address, state)
            self.now, self.slot = clock
            self._set_clock()

    def make_transaction(self, instructions: Sequence[Instruction]) -> tuple[Transaction, frozenset[Pubkey]]:
        """Signed by every key that an instruction names as a signer, paid for by ``payer``."""
        message = Message(list(instructions), self.payer.pubkey())
        names = message.account_keys[: message.header.num_required_signatures]
        if self.is_signed:
            return Transaction([self.keys[name] for name in names], message, Hash.default()), frozenset(names)
        assert all(name in self.keys for name in names), "an address without a key cannot sign"
        return Transaction.populate(message, [Signature.default()] * len(names)), frozenset(names)

    def attempt(self, *instructions: Instruction) -> Outcome:
        """Run a transaction and keep nothing of it."""
        transaction, signers = self.make_transaction(instructions)
        result = self.svm.simulate_transaction(transaction)
        if isinstance(result, FailedTransactionMetadata):
            meta = result.meta()
            error, logs = name_error(result.err(), meta.logs()), meta.logs()
            return Outcome(error, logs, meta.compute_units_consumed(), {}, signers)
        changes = {}
        for address, account in result.post_accounts():
            before, after = self.get_state(address), make_state(account)
            if address == self.payer.pubkey():
                after = after._replace(lamports=after.lamports + LAMPORTS_PER_SIGNATURE * len(signers))
            if before != after:
                changes[address] = (before, after)
        meta = result.meta()
        return Outcome(None, meta.logs(), meta.compute_units_consumed(), changes, signers)

    def commit(self, *instructions: Instruction) -> None:
        """Run a transaction and keep what it does. AssertionError when it is refused."""
        transaction, _ = self.make_transaction(instructions)
        result = self.svm.send_transaction(transaction)
        if isinstance(result, FailedTransactionMetadata):
            logs = result.meta().logs()
            raise AssertionError(f"{name_error(result.err(), logs)}: {logs}")  # noqa: TRY004

    def honest(self, *instructions: Instruction) -> Outcome:
        """The twin of an attack: it must succeed. Nothing is kept."""
        outcome = self.attempt(*instructions)
        assert outcome.error is None, (outcome.error, outcome.logs)
        return outcome

    def attack(self, what: str, names: str | Sequence[str], *instructions: Instruction) -> Outcome:
        """An attack that must be refused with one of the errors ``names``. Nothing is kept."""
        outcome = self.attempt(*instructions)
        self.judge(what, outcome.error in ([names] if isinstance(names, str) else names), outcome, names)
        return outcome

    def judge(self, what: str, is_held: bool, outcome: Outcome, expected: object) -> None:
        """Count an attack; AssertionError when it is not held off as it should be."""
        LEDGER.attempts += 1
        if is_held:
            return
        verdict = "got through" if outcome.error is None else f"was refused with {outcome.error}"
        if outcome.error is None:
            LEDGER.through.append(what)
        raise AssertionError(f"{what} {verdict}, expected {expected}: {list(outcome.logs)}")


def name_error(error: Any, logs: Sequence[str]) -> str:
    """Name of a refusal: of our programs' errors, of the runtime's, or `<program> <code>` of another's."""
    inner = error
    while type(inner).__name__ in ("TransactionErrorInstructionError", "InstructionErrorTagged", "Tagged"):
        inner = getattr(inner, "err", None) or inner[0]
    code = getattr(inner, "code", None)
    if code is None:
        return str(inner).rsplit(".", 1)[-1]
    # the innermost program that failed comes first in the logs
    failed = [line.split()[1] for line in logs if " failed: " in line]
    program = find_program(failed[0]) if failed else None
    if program is None:
        return f"{failed[0] if failed else '?'} {code}"
    entry = program.errors.get(code)
    return entry.name if entry else f"{program.name} {code}"


def replace_account(instruction: Instruction, slot: int, **changes: Any) -> Instruction:
    """The instruction with another ``pubkey``, ``is_signer`` or ``is_writable`` in one place."""
    metas = list(instruction.accounts)
    old = metas[slot]
    metas[slot] = AccountMeta(
        changes.get("pubkey", old.pubkey),
        changes.get("is_signer", old.is_signer),
        changes.get("is_writable", old.is_writable),
    )
    return Instruction(instruction.program_id, bytes(instruction.data), metas)


def replace_data(instruction: Instruction, data: bytes) -> Instruction:
    """The instruction with other data."""
    return Instruction(instruction.program_id, data, instruction.accounts)
