"""What may happen to money: the treasurer's rules over whole accounts, and laws for every program."""

from __future__ import annotations

import struct
from collections import Counter
from typing import Any

from attack_chain import Outcome
from attack_model import HANDLERS, Model, demand, handler
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    find_participant,
    find_token_account,
    find_treasurer_run,
)
from psyche_py.coordinator.layout import compute_account_discriminator
from psyche_py.coordinator.state import AccountFormatError, read_account

RUN = compute_account_discriminator("Run")
PARTICIPANT = compute_account_discriminator("Participant")
RUN_SIZE, PARTICIPANT_SIZE, TOKEN_SIZE = 193, 25, 165


def find_lawless(outcome: Outcome) -> list[str]:
    """What no transaction of ours may do, whatever its instruction: each breach in words.

    Tokens are neither made nor lost; lamports neither; only those who sign, or accounts of our own programs
    (which have their own rules), get poorer; nothing is left without rent.
    """
    breaches = []
    tokens: Counter[bytes] = Counter()
    for address, (before, after) in outcome.changes.items():
        for state, sign in ((before, -1), (after, 1)):
            if state.owner == TOKEN_PROGRAM and len(state.data) == TOKEN_SIZE:
                tokens[state.data[:32]] += sign * int.from_bytes(state.data[64:72], "little")
        is_poorer = after.lamports < before.lamports
        if is_poorer and before.owner == SYSTEM_PROGRAM and address not in outcome.signers:
            breaches.append(f"{address} pays without signing")
    total = sum(after.lamports - before.lamports for before, after in outcome.changes.values())
    if total:
        breaches.append(f"{total} lamports out of nowhere")
    if any(tokens.values()):
        breaches.append(f"tokens out of nowhere: {tokens}")
    return breaches


# ---- treasurer --------------------------------------------------------------------------------------------


def _read_u64(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _add(data: bytes, changes: dict[int, int]) -> bytes:
    """u64 fields at offsets, increased; Refusal when one leaves its range."""
    out = bytearray(data)
    for at, amount in changes.items():
        total = _read_u64(data, at) + amount
        demand(0 <= total < 2**64, "a number leaves its range")
        out[at : at + 8] = total.to_bytes(8, "little")
    return bytes(out)


def _load(model: Model, address: Pubkey, kind: bytes, size: int) -> bytes:
    state = model.get(address)
    demand(state.owner == get_program_id("treasurer"), "an account of another program")
    demand(state.data[:8] == kind and len(state.data) == size, "an account of another kind")
    return state.data


@handler("treasurer.run_create")
def run_create(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """A run, its vault, and the coordinator's run that it owns."""
    demand(model.get(a["collateral_mint"]).owner == TOKEN_PROGRAM, "no mint")
    programs = {
        "coordinator_program": get_program_id("coordinator"),
        "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
        "token_program": TOKEN_PROGRAM,
        "system_program": SYSTEM_PROGRAM,
    }
    demand(all(a[name] == program for name, program in programs.items()), "another program")
    program, seed = get_program_id("treasurer"), struct.pack("<Q", args["index"])
    _, bump = Pubkey.find_program_address([b"Run", seed], program)
    demand(a["run"] == find_treasurer_run(args["index"]), "not the run's address")
    keys = [bytes(a[name]) for name in ("coordinator_account", "coordinator_instance", "collateral_mint")]
    data = RUN + bytes([bump]) + seed + args["main_authority"] + args["join_authority"] + b"".join(keys)
    model.create(a["payer"], a["run"], program, data.ljust(RUN_SIZE, b"\0"))
    demand(
        a["run_collateral"] == find_token_account(a["run"], a["collateral_mint"]), "not the vault's address"
    )
    if model.get(a["run_collateral"]).owner != TOKEN_PROGRAM:  # else somebody made it before
        vault = keys[2] + bytes(a["run"]) + bytes(44) + b"\1" + bytes(56)
        model.create(a["payer"], a["run_collateral"], TOKEN_PROGRAM, vault)
    own = {"main_authority": bytes(a["run"]), "join_authority": args["join_authority"]}
    texts = {key: args[key] for key in ("run_id", "client_version")}
    inner = {key: a[key] for key in ("payer", "coordinator_account", "system_program")}
    instance = a["coordinator_instance"]
    HANDLERS["coordinator.init_coordinator"](model, {**inner, "instance": instance}, {**own, **texts})


@handler("treasurer.run_update")
def run_update(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """The owner's changes, passed on with the run's own address as authority."""
    run = _load(model, a["run"], RUN, RUN_SIZE)
    demand(run[17:49] == bytes(a["authority"]), "another's run")
    demand(run[81:113] == bytes(a["coordinator_account"]), "another run's account")
    demand(run[113:145] == bytes(a["coordinator_instance"]), "another run's instance")
    inner = {
        "authority": a["run"],
        "instance": a["coordinator_instance"],
        "coordinator_account": a["coordinator_account"],
    }
    parts = {key: args[key] for key in ("metadata", "config", "model", "progress")}
    rates = {key: args[f"epoch_{key}"] for key in ("earning_rate_total_shared", "slashing_rate_per_client")}
    calls = (
        ("update", parts),
        ("set_future_epoch_rates", rates),
        ("set_paused", {"paused": args["paused"]}),
        ("update_client_version", {"client_version": args["client_version"]}),
    )
    made = [(name, values) for name, values in calls if any(v is not None for v in values.values())]
    demand(not made or a["coordinator_program"] == get_program_id("coordinator"), "another program")
    for name, values in made:
        HANDLERS[f"coordinator.{name}"](model, inner, values)


@handler("treasurer.participant_create")
def participant_create(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """An empty record of claims."""
    _load(model, a["run"], RUN, RUN_SIZE)
    demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
    program = get_program_id("treasurer")
    seeds = [b"Participant", bytes(a["run"]), bytes(a["user"])]
    address, bump = Pubkey.find_program_address(seeds, program)
    demand(address == a["participant"], "not the participant's address")
    model.create(a["payer"], address, program, (PARTICIPANT + bytes([bump])).ljust(PARTICIPANT_SIZE, b"\0"))


@handler("treasurer.participant_claim")
def participant_claim(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Earned, not slashed, not yet claimed: so much goes from the run's vault to the user's own account."""
    points, user = args["claim_earned_points"], bytes(a["user"])
    run, participant = (
        _load(model, a["run"], RUN, RUN_SIZE),
        _load(model, a["participant"], PARTICIPANT, PARTICIPANT_SIZE),
    )
    demand(a["participant"] == find_participant(a["run"], a["user"]), "another's participant")
    demand(run[81:113] == bytes(a["coordinator_account"]), "another run's account")
    demand(a["token_program"] == TOKEN_PROGRAM, "another program for the token program")
    for slot, owner in (("user_collateral", user), ("run_collateral", bytes(a["run"]))):
        state = model.get(a[slot])
        demand(state.owner == TOKEN_PROGRAM and len(state.data) == TOKEN_SIZE, "no token account")
        demand(state.data[:32] == run[145:177] and state.data[32:64] == owner, "another's token account")
    earned = read_earned(model, a["coordinator_account"], user)
    demand(points <= earned - _read_u64(participant, 17), "more than is earned")
    model.put(a["participant"], data=_add(participant, {9: points, 17: points}))
    model.put(a["run"], data=_add(run, {177: points, 185: points}))
    for slot, amount in (("run_collateral", -points), ("user_collateral", points)):
        model.put(a[slot], data=_add(model.get(a[slot]).data, {64: amount}))


def read_earned(model: Model, address: Pubkey, user: bytes) -> int:
    """Points that the coordinator says the user has earned and not lost."""
    state = model.get(address)
    demand(state.owner == get_program_id("coordinator"), "points of another program")
    try:
        account = read_account(state.data)
    except AccountFormatError:
        demand(False, "no run")
        raise
    number = account.find_entry(user)
    if number is None:
        return 0
    entry = account.entries[number]
    return max(entry.earned - entry.slashed, 0)
