"""What a transaction may do: the coordinator's rule book and the authorizer's rules, over whole accounts.

``Model.apply`` takes the accounts as they were and an instruction, checks signers, owners and kinds, asks
psyche_py.coordinator, and holds the accounts as they must be afterwards; Refusal when the instruction must
not succeed. A program that accepts what this refuses, or writes another byte, has let an attack through.
"""

from __future__ import annotations

import struct
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
from psyche_py.coordinator.layout import (
    ACCOUNT_SIZE,
    DISCRIMINATOR,
    HALTED,
    compute_account_discriminator,
)
from psyche_py.coordinator.pda import ANYBODY, JOIN_SCOPE
from psyche_py.coordinator.state import AccountFormatError, CoordinatorAccount, read_account

INSTANCE = compute_account_discriminator("CoordinatorInstance")
AUTHORIZATION = compute_account_discriminator("Authorization")
INSTANCE_SIZE = 141
THIRTY_DAYS = 30 * 24 * 3600


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
        assert handler is not None, f"attack_model.py does not know {name}"
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
    demand(len(instruction.accounts) >= len(entry["accounts"]), "accounts are missing")
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


# ---- coordinator ------------------------------------------------------------------------------------------


def decode_text(raw: bytes) -> str:
    """UTF-8, or a Refusal."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise Refusal("not UTF-8") from None


@handler("coordinator.init_coordinator")
def init_coordinator(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A new run at a new address, in a zeroed account of the right size."""
    program = get_program_id("coordinator")
    version = decode_text(args["client_version"])
    run = rules.process_init(decode_text(args["run_id"]), version).to_bytes()
    old = model.get(a["coordinator_account"])
    demand(old.owner == program and len(old.data) == len(run), "account not allocated for a run")
    demand(not any(old.data[:8]), "account in use")
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    address, bump = Pubkey.find_program_address([b"coordinator", args["run_id"]], program)
    demand(address == a["instance"], "not the run's address")
    data = INSTANCE + bytes([bump]) + args["main_authority"] + args["join_authority"]
    data += bytes(a["coordinator_account"]) + struct.pack("<I", len(args["run_id"])) + args["run_id"]
    model.create(a["payer"], address, program, data.ljust(INSTANCE_SIZE, b"\0"))
    model.put(a["coordinator_account"], data=run)


@handler("coordinator.free_coordinator")
def free_coordinator(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A halted run goes, its rent to ``spill``."""
    demand(model.load_as_owner(a).run_state in HALTED, "running")
    for name in ("coordinator_account", "instance"):
        demand(a["spill"] != a[name], "the spill is closed itself")
        model.move(a[name], a["spill"], model.get(a[name]).lamports)


@handler("coordinator.update")
def update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner's description and configuration."""
    model.save(a, rules.process_update(model.load_as_owner(a), **args))


@handler("coordinator.update_client_version")
def update_client_version(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner's client version."""
    version = decode_text(args["client_version"])
    model.save(a, rules.process_update_client_version(model.load_as_owner(a), version))


@handler("coordinator.set_future_epoch_rates")
def set_future_epoch_rates(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner's rates."""
    model.save(a, rules.process_set_future_epoch_rates(model.load_as_owner(a), **args))


@handler("coordinator.set_paused")
def set_paused(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner's pause."""
    account = model.load_as_owner(a)
    model.save(a, rules.process_set_paused(account, args["paused"], now=model.now, seed=model.seed))


def is_authorized(model: Model, a: dict[str, Pubkey], user: bytes) -> bool:
    """Whether the account in the place of the authorization lets ``user`` join."""
    state, grantor = model.get(a["authorization"]), model.get(a["instance"]).data[41:73]
    if state.owner != get_program_id("authorizer"):
        return False
    try:
        found = read_authorization(state.data)
    except Refusal:
        return False
    is_named = found["grantee"] in (ANYBODY, user) or user in found["delegates"]
    is_for_this = found["grantor"] == grantor and found["scope"] == JOIN_SCOPE
    return bool(is_named and is_for_this and found["active"])


@handler("coordinator.join_run")
def join_run(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """An authorized wallet enters itself, with a p2p key that signs."""
    account, user = model.load(a), bytes(a["user"])
    demand(is_authorized(model, a, user), "not authorized")
    keys = {"p2p_key": bytes(a["p2p"]), "authorization": bytes(a["authorization"])}
    time = {"now": model.now, "seed": model.seed}
    model.save(a, rules.process_join(account, signer=user, **keys, **args, **time))


@handler("coordinator.remove_unauthorized")
def remove_unauthorized(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Anybody reports a client whose authorization no longer lets it join."""
    account, number = model.load(a), args["entry"]
    demand(number < len(account.entries), "no such entry")
    entry = account.entries[number]
    demand(any(entry.authorization), "nobody knows what the client has joined with")
    says = {"authorization": bytes(a["authorization"]), "is_valid": is_authorized(model, a, entry.signer)}
    time = {"now": model.now, "seed": model.seed}
    model.save(a, rules.process_remove_unauthorized(account, entry=number, **says, **time))


@handler("coordinator.record_claim")
def record_claim(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner says what it has paid."""
    model.save(a, rules.process_record_claim(model.load_as_owner(a), **args))


@handler("coordinator.migrate")
def migrate(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Anybody brings an older account to this version."""
    data = model.check_accounts(a)
    demand(len(data) == ACCOUNT_SIZE and data[:8] == DISCRIMINATOR, "no run")
    model.put(a["coordinator_account"], data=rules.process_migrate(data).to_bytes())


def _make_client_handler(name: str, process: Callable[..., CoordinatorAccount], *ignored: str) -> None:
    """An instruction that a client sends about itself; arguments in ``ignored`` leave no trace."""

    @handler(f"coordinator.{name}")
    def handle(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
        args = {key: value for key, value in args.items() if key not in ignored}
        account, user = model.load(a), bytes(a["user"])
        model.save(a, process(account, signer=user, now=model.now, seed=model.seed, **args))


_make_client_handler("leave_run", rules.process_leave)
_make_client_handler("witness", rules.process_witness, "metadata")
_make_client_handler("warmup_witness", rules.process_warmup_witness)
_make_client_handler("health_check", rules.process_health_check)
_make_client_handler("checkpoint", rules.process_checkpoint)


@handler("coordinator.tick")
def tick(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Anybody lets time act."""
    model.save(a, rules.process_tick(model.load(a), now=model.now, seed=model.seed))


# ---- authorizer -------------------------------------------------------------------------------------------


def read_authorization(data: bytes) -> dict[str, Any]:
    """Fields of an authorization; Refusal when the bytes are none."""
    demand(data[:8] == AUTHORIZATION and len(data) >= 90, "no authorization")
    scope_end = 77 + int.from_bytes(data[73:77], "little")
    num = int.from_bytes(data[scope_end + 1 : scope_end + 5], "little")
    end = scope_end + 5 + 32 * num
    demand(len(data) == end + 8, "an authorization of another length")
    delegates = data[scope_end + 5 : end]
    return {
        "bump": data[8],
        "grantor": data[9:41],
        "grantee": data[41:73],
        "scope": data[77:scope_end],
        "active": data[scope_end] == 1,
        "delegates": [delegates[i : i + 32] for i in range(0, len(delegates), 32)],
        "updated": int.from_bytes(data[end : end + 8], "little", signed=True),
    }


def write_authorization(f: dict[str, Any]) -> bytes:
    """The inverse of :func:`read_authorization`."""
    return b"".join(
        (
            AUTHORIZATION,
            bytes([f["bump"]]),
            f["grantor"],
            f["grantee"],
            struct.pack("<I", len(f["scope"])) + f["scope"],
            bytes([f["active"]]),
            struct.pack("<I", len(f["delegates"])) + b"".join(f["delegates"]),
            struct.pack("<q", f["updated"]),
        )
    )


def _load_authorization(model: Model, address: Pubkey) -> dict[str, Any]:
    state = model.get(address)
    demand(state.owner == get_program_id("authorizer"), "authorization of another program")
    return read_authorization(state.data)


@handler("authorizer.authorization_create")
def authorization_create(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A new authorization, switched off."""
    program, grantor, scope = get_program_id("authorizer"), bytes(a["grantor"]), args["scope"]
    demand(len(scope) <= 32 and a["system_program"] == SYSTEM_PROGRAM, "scope or System program")
    seeds = [b"Authorization", grantor, args["grantee"], scope]
    address, bump = Pubkey.find_program_address(seeds, program)
    demand(address == a["authorization"], "not the authorization's address")
    fields = {"bump": bump, "grantor": grantor, "active": False, "delegates": [], "updated": model.chain.now}
    model.create(a["payer"], address, program, write_authorization({**fields, **args}))


@handler("authorizer.authorization_grantor_update")
def authorization_grantor_update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The grantor's switch."""
    fields = _load_authorization(model, a["authorization"])
    demand(fields["grantor"] == bytes(a["grantor"]), "another's authorization")
    data = write_authorization({**fields, **args, "updated": model.chain.now})
    model.put(a["authorization"], data=data)


@handler("authorizer.authorization_grantee_update")
def authorization_grantee_update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The grantee's delegates; the payer funds the growth."""
    fields = _load_authorization(model, a["authorization"])
    demand(fields["grantee"] == bytes(a["grantee"]), "another's authorization")
    kept = [] if args["delegates_clear"] else fields["delegates"]
    delegates = kept + args["delegates_added"]
    demand(len(delegates) <= 256, "too many delegates")
    data = write_authorization({**fields, "delegates": delegates})
    lamports = model.get(a["authorization"]).lamports
    missing = max(model.chain.svm.minimum_balance_for_rent_exemption(len(data)) - lamports, 0)
    demand(not missing or a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    model.move(a["payer"], a["authorization"], missing)
    model.put(a["authorization"], data=data)


@handler("authorizer.authorization_close")
def authorization_close(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The grantor takes an authorization back, not from under its delegates."""
    fields = _load_authorization(model, a["authorization"])
    demand(fields["grantor"] == bytes(a["grantor"]) and not fields["active"], "another's, or switched on")
    is_protected = fields["delegates"] and model.chain.now < fields["updated"] + THIRTY_DAYS
    demand(not is_protected and a["spill"] != a["authorization"], "delegates are protected")
    model.move(a["authorization"], a["spill"], model.get(a["authorization"]).lamports)
