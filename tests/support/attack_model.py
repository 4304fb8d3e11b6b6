"""What a transaction may do, over whole accounts; the rules of each program are in a file of their own.

``Model.apply`` takes the accounts as they were and an instruction, checks signers, asks the instruction's
handler, and holds the accounts as they must be afterwards; Refusal when the instruction must not succeed. A
program that accepts what this refuses, or writes another byte, has let an attack through.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from attack_arguments import Malformed, read_call
from attack_chain import ABSENT, AccountState, AttackChain
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import to_snake
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id, read_idl
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.errors import CoordinatorError
from psyche_py.coordinator.layout import compute_account_discriminator
from psyche_py.coordinator.state import AccountFormatError, CoordinatorAccount, read_account

INSTANCE = compute_account_discriminator("CoordinatorInstance")
INSTANCE_SIZE = 141


class Refusal(Exception):
    """The instruction must not succeed."""


def demand(condition: object, why: str) -> None:
    """Raises Refusal(why) unless ``condition`` is true."""
    if not condition:
        raise Refusal(why)


class Model:
    """Accounts as they are while a transaction runs. ``chain`` gives those not touched yet, and the time."""

    def __init__(self, chain: AttackChain, signers: Collection[Pubkey]) -> None:
        self.chain = chain
        self.signers = signers
        self.accounts: dict[Pubkey, AccountState] = {}
        self.now = max(chain.now, 0)
        self.seed = rules.compute_seed(chain.now, chain.slot, chain.get_slot_hash())

    def get(self, address: Pubkey) -> AccountState:
        """An account as the transaction has left it so far."""
        if address not in self.accounts:
            self.accounts[address] = self.chain.get_state(address)
        return self.accounts[address]

    def put(self, address: Pubkey, **changes: Any) -> None:
        """Change an account."""
        state = self.get(address)._replace(**changes)
        self.accounts[address] = state if state.lamports else ABSENT

    def move(self, source: Pubkey, target: Pubkey, lamports: int) -> None:
        """Lamports from one account to another."""
        self.put(source, lamports=self.get(source).lamports - lamports)
        self.put(target, lamports=self.get(target).lamports + lamports)

    def create(self, payer: Pubkey, address: Pubkey, owner: Pubkey, data: bytes) -> None:
        """A new account at a derived address, exempt from rent at the payer's cost."""
        state = self.get(address)
        demand(state.owner == SYSTEM_PROGRAM and not state.data, "the address is taken")
        minimum = self.chain.svm.minimum_balance_for_rent_exemption(len(data))
        self.move(payer, address, max(minimum - state.lamports, 0))
        self.put(address, owner=owner, data=data)

    def apply(self, instruction: Instruction) -> None:
        """One instruction of the coordinator or the authorizer. Raises Refusal."""
        name, accounts, args = resolve(instruction)
        for slot, (is_signer, address) in accounts.items():
            demand(not is_signer or address in self.signers, f"{slot} does not sign")
        handler = HANDLERS.get(name)
        assert handler is not None, f"no rules for {name}"
        try:
            handler(self, {slot: address for slot, (_, address) in accounts.items()}, args)
        except CoordinatorError as error:
            raise Refusal(error.code.name) from None

    def check_accounts(self, a: dict[str, Pubkey]) -> bytes:
        """That the instance belongs to the account, and both to the program; the account's bytes."""
        program = get_program_id("coordinator")
        instance, account = self.get(a["instance"]), self.get(a["coordinator_account"])
        demand(instance.owner == program, "instance of another program")
        demand(len(instance.data) == INSTANCE_SIZE and instance.data[:8] == INSTANCE, "no instance")
        demand(instance.data[73:105] == bytes(a["coordinator_account"]), "instance of another run")
        demand(account.owner == program, "account of another program")
        return account.data

    def load(self, a: dict[str, Pubkey]) -> CoordinatorAccount:
        """The run of an instruction."""
        try:
            return read_account(self.check_accounts(a))
        except AccountFormatError as error:
            raise Refusal(str(error)) from None

    def load_as_owner(self, a: dict[str, Pubkey]) -> CoordinatorAccount:
        """The same for an owner's instruction."""
        account = self.load(a)
        demand(self.get(a["instance"]).data[9:41] == bytes(a["authority"]), "another's run")
        return account

    def save(self, a: dict[str, Pubkey], account: CoordinatorAccount) -> None:
        """The run as the rule book leaves it."""
        self.put(a["coordinator_account"], data=account.to_bytes())


def resolve(instruction: Instruction) -> tuple[str, dict[str, tuple[bool, Pubkey]], dict[str, Any]]:
    """(`program.instruction`, slot -> (must sign, address), arguments). Raises Refusal."""
    programs = {get_program_id(name): name for name in PROGRAM_NAMES}
    program = programs.get(instruction.program_id)
    demand(program is not None, "not one of our programs")
    assert program is not None
    try:
        name, args = read_call(program, bytes(instruction.data))
    except Malformed as error:
        raise Refusal(str(error)) from None
    entry = next(e for e in read_idl(program)["instructions"] if to_snake(e["name"]) == name)
    num_needed = sum(not wanted.get("isOptional") for wanted in entry["accounts"])
    demand(len(instruction.accounts) >= num_needed, "accounts are missing")
    accounts = {
        to_snake(wanted["name"]): (bool(wanted["isSigner"]), meta.pubkey)
        for wanted, meta in zip(entry["accounts"], instruction.accounts, strict=False)
    }
    return f"{program}.{name}", accounts, args


Handler = Callable[[Model, dict[str, Pubkey], dict[str, Any]], None]
HANDLERS: dict[str, Handler] = {}


def handler(name: str) -> Callable[[Handler], Handler]:
    """Register what `program.instruction` may do."""

    def register(function: Handler) -> Handler:
        HANDLERS[name] = function
        return function

    return register
