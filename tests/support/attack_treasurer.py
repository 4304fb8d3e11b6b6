"""What the treasurer's instructions may do, over whole accounts."""

from __future__ import annotations

import struct
from typing import Any

from attack_authorizer import THIRTY_DAYS
from attack_model import HANDLERS, Model, Refusal, demand, handler
from attack_tokens import check_holds, check_vault, create_vault, load, read_u64, transfer
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_participant, find_treasurer_run
from psyche_py.coordinator.layout import RunState, compute_account_discriminator
from psyche_py.coordinator.state import AccountFormatError, CoordinatorAccount, read_account

RUN = compute_account_discriminator("Run")
PARTICIPANT = compute_account_discriminator("Participant")
RUN_SIZE, OLD_PARTICIPANT_SIZE, PARTICIPANT_SIZE = 193, 25, 26
NEWEST = b"\2"


def load_run(model: Model, a: dict[str, Pubkey]) -> bytes:
    return load(model, a["run"], "treasurer", RUN, RUN_SIZE)


def _load_owned(model: Model, a: dict[str, Pubkey]) -> bytes:
    run = load_run(model, a)
    demand(run[17:49] == bytes(a["authority"]), "another's run")
    return run


def check_coordinator(run: bytes, a: dict[str, Pubkey]) -> None:
    demand(run[81:113] == bytes(a["coordinator_account"]), "another run's account")
    if "coordinator_instance" in a:
        demand(run[113:145] == bytes(a["coordinator_instance"]), "another run's instance")


def call_owned(model: Model, a: dict[str, Pubkey], name: str, args: dict[str, Any]) -> None:
    """An owner's instruction of the coordinator; the run's address is the owner."""
    demand(a["coordinator_program"] == get_program_id("coordinator"), "another program for the coordinator")
    inner = {
        "authority": a["run"],
        "instance": a["coordinator_instance"],
        "coordinator_account": a["coordinator_account"],
        "spill": a.get("spill", a["run"]),
    }
    HANDLERS[f"coordinator.{name}"](model, inner, args)


def _add_saturating(data: bytes, changes: dict[int, int]) -> bytes:
    """Lifetime sums, which stop at the most that they can hold."""
    out = bytearray(data)
    for at, amount in changes.items():
        out[at : at + 8] = min(read_u64(data, at) + amount, 2**64 - 1).to_bytes(8, "little")
    return bytes(out)


def read_points(model: Model, address: Pubkey) -> CoordinatorAccount:
    """What the coordinator says about everybody's points."""
    state = model.get(address)
    demand(state.owner == get_program_id("coordinator"), "points of another program")
    try:
        return read_account(state.data)
    except AccountFormatError as error:
        raise Refusal(str(error)) from None


def _get_claimable(account: CoordinatorAccount, user: Pubkey) -> int:
    number = account.find_entry(bytes(user))
    if number is None:
        return 0
    entry = account.entries[number]
    return max(entry.earned - entry.slashed - entry.claimed, 0)


def _get_promised(account: CoordinatorAccount) -> int:
    return sum(max(entry.earned - entry.slashed - entry.claimed, 0) for entry in account.entries)


@handler("treasurer.run_create")
def run_create(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A run, its vault, and the coordinator's run that it owns."""
    demand(a["coordinator_program"] == get_program_id("coordinator"), "another program")
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    program, seed = get_program_id("treasurer"), struct.pack("<Q", args["index"])
    _, bump = Pubkey.find_program_address([b"Run", seed], program)
    demand(a["run"] == find_treasurer_run(args["index"]), "not the run's address")
    keys = [bytes(a[name]) for name in ("coordinator_account", "coordinator_instance", "collateral_mint")]
    data = RUN + bytes([bump]) + seed + args["main_authority"] + args["join_authority"] + b"".join(keys)
    model.create(a["payer"], a["run"], program, data.ljust(RUN_SIZE, b"\0"))
    create_vault(model, a, "run_collateral", a["run"], "collateral_mint")
    own = {"main_authority": bytes(a["run"]), "join_authority": args["join_authority"]}
    texts = {key: args[key] for key in ("run_id", "client_version")}
    inner = {key: a[key] for key in ("payer", "coordinator_account", "system_program")}
    instance = a["coordinator_instance"]
    HANDLERS["coordinator.init_coordinator"](model, {**inner, "instance": instance}, {**own, **texts})


@handler("treasurer.run_update")
def run_update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner's changes, passed on with the run's own address as authority."""
    check_coordinator(_load_owned(model, a), a)
    parts = {key: args[key] for key in ("metadata", "config", "model", "progress")}
    rates = {key: args[f"epoch_{key}"] for key in ("earning_rate_total_shared", "slashing_rate_per_client")}
    calls = (
        ("update", parts),
        ("set_future_epoch_rates", rates),
        ("set_paused", {"paused": args["paused"]}),
        ("update_client_version", {"client_version": args["client_version"]}),
    )
    for name, values in calls:
        if any(value is not None for value in values.values()):
            call_owned(model, a, name, values)


@handler("treasurer.participant_create")
def participant_create(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """An empty record of claims."""
    load_run(model, a)
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    program = get_program_id("treasurer")
    seeds = [b"Participant", bytes(a["run"]), bytes(a["user"])]
    address, bump = Pubkey.find_program_address(seeds, program)
    demand(address == a["participant"], "not the participant's address")
    data = (PARTICIPANT + bytes([bump])).ljust(OLD_PARTICIPANT_SIZE, b"\0") + NEWEST
    model.create(a["payer"], address, program, data)


@handler("treasurer.participant_claim")
def participant_claim(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """What is claimable goes from the run's vault to the user's own account, as far as the vault reaches."""
    points, run = args["claim_earned_points"], load_run(model, a)
    participant = load(model, a["participant"], "treasurer", PARTICIPANT, PARTICIPANT_SIZE)
    demand(participant[25:] == NEWEST, "a record of an older layout")
    demand(a["participant"] == find_participant(a["run"], a["user"]), "another's participant")
    check_coordinator(run, a)
    mint = a["collateral_mint"]
    demand(run[145:177] == bytes(mint), "another mint")
    check_holds(model, a["user_collateral"], a["user"], mint)
    vault = check_vault(model, a["run_collateral"], a["run"], mint)
    claimable = _get_claimable(read_points(model, a["coordinator_account"]), a["user"])
    demand(0 < points <= claimable, "nothing, or more than is earned")
    amount = min(points, vault.amount)
    demand(amount, "the vault is empty")
    model.put(a["participant"], data=_add_saturating(participant, {9: amount, 17: amount}))
    model.put(a["run"], data=_add_saturating(run, {177: amount, 185: amount}))
    call_owned(model, a, "record_claim", {"user": bytes(a["user"]), "points": amount})
    transfer(model, a, "run_collateral", "user_collateral", amount)


@handler("treasurer.participant_migrate")
def participant_migrate(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """An older record's claims are told to the coordinator; the payer funds the longer record."""
    run = load_run(model, a)
    old = load(model, a["participant"], "treasurer", PARTICIPANT, OLD_PARTICIPANT_SIZE)
    demand(a["participant"] == find_participant(a["run"], a["user"]), "another's participant")
    check_coordinator(run, a)
    claimable = _get_claimable(read_points(model, a["coordinator_account"]), a["user"])
    claimed = min(read_u64(old, 17), claimable)
    if claimed:
        call_owned(model, a, "record_claim", {"user": bytes(a["user"]), "points": claimed})
    minimum = model.chain.svm.minimum_balance_for_rent_exemption(PARTICIPANT_SIZE)
    missing = max(minimum - model.get(a["participant"]).lamports, 0)
    demand(not missing or a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    model.move(a["payer"], a["participant"], missing)
    model.put(a["participant"], data=old + NEWEST)


@handler("treasurer.run_withdraw")
def run_withdraw(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Of a run that has been over for thirty days, the owner takes what nobody is owed."""
    run = _load_owned(model, a)
    check_coordinator(run, a)
    demand(run[145:177] == bytes(a["collateral_mint"]), "another mint")
    vault = check_vault(model, a["run_collateral"], a["run"], a["collateral_mint"])
    account = read_points(model, a["coordinator_account"])
    demand(account.run_state is RunState.Finished, "the run is not over")
    demand(model.now >= account.run_state_start + THIRTY_DAYS, "too early")
    demand(0 < args["amount"] <= vault.amount - _get_promised(account), "nothing, or what is owed to others")
    transfer(model, a, "run_collateral", "authority_collateral", args["amount"])


@handler("treasurer.run_close")
def run_close(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A finished run that owes nothing and holds nothing goes, with all its accounts."""
    run = _load_owned(model, a)
    check_coordinator(run, a)
    mint = Pubkey(run[145:177])
    vault = check_vault(model, a["run_collateral"], a["run"], mint)
    account = read_points(model, a["coordinator_account"])
    demand(account.run_state is RunState.Finished, "the run is not over")
    demand(not _get_promised(account) and not vault.amount, "owes or holds collateral")
    demand(a["token_program"] == vault.program, "another program for the token program")
    demand(a["spill"] not in (a["run"], a["run_collateral"]), "the spill is closed itself")
    call_owned(model, a, "free_coordinator", {})
    for slot in ("run_collateral", "run"):
        model.move(a[slot], a["spill"], model.get(a[slot]).lamports)
