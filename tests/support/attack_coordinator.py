"""What the coordinator's instructions may do: psyche_py.coordinator, asked over whole accounts."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from attack_authorizer import is_authorized
from attack_chain import ABSENT
from attack_model import INSTANCE, INSTANCE_SIZE, Model, Refusal, demand, handler
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.coordinator import transition as rules
from psyche_py.coordinator.layout import (
    ACCOUNT_SIZE,
    DISCRIMINATOR,
    HALTED,
    compute_account_discriminator,
)
from psyche_py.coordinator.state import CoordinatorAccount

BOND, BOND_SIZE = compute_account_discriminator("Bond"), 113


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


@handler("coordinator.join_run")
def join_run(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """An authorized wallet enters itself, with a p2p key that signs."""
    account, user = model.load(a), bytes(a["user"])
    demand(is_authorized(model, a, user), "not authorized")
    keys = {"p2p_key": bytes(a["p2p"]), "authorization": bytes(a["authorization"])}
    keys["bond"] = read_bond(model, a, user)
    time = {"now": model.now, "seed": model.seed}
    model.save(a, rules.process_join(account, signer=user, **keys, **args, **time))


def read_bond(model: Model, a: dict[str, Pubkey], user: bytes) -> int:
    """Units in the account in the place of the bond; none if it is no bond of ``user``'s in this run."""
    state = model.get(a["bond"]) if "bond" in a else ABSENT
    named = model.get(a["instance"]).data[9:41], user, bytes(a["coordinator_account"])
    is_bond = state.owner == get_program_id("treasurer") and state.data[:8] == BOND
    is_right = is_bond and len(state.data) == BOND_SIZE and state.data[9:105] == b"".join(named)
    return int.from_bytes(state.data[105:], "little") if is_right else 0


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


@handler("coordinator.settle_debt")
def settle_debt(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner says what a bond has paid."""
    model.save(a, rules.process_settle_debt(model.load_as_owner(a), **args))


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


def _make_timeless_handler(name: str, process: Callable[..., CoordinatorAccount]) -> None:
    """The same for those that let no time act."""

    @handler(f"coordinator.{name}")
    def handle(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
        model.save(a, process(model.load(a), signer=bytes(a["user"]), **args))


_make_timeless_handler("verdict", rules.process_verdict)
_make_timeless_handler("vote", rules.process_vote)
_make_timeless_handler("announce", rules.process_announce)


@handler("coordinator.tick")
def tick(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Anybody lets time act."""
    model.save(a, rules.process_tick(model.load(a), now=model.now, seed=model.seed))
