"""What the treasurer's instructions about bonds may do, over whole accounts."""

from __future__ import annotations

import struct
from typing import Any

from attack_chain import ABSENT
from attack_coordinator import BOND, BOND_SIZE
from attack_model import Model, demand, handler
from attack_tokens import check_vault, load, read_held, read_u64, transfer
from attack_treasurer import call_owned, check_coordinator, load_run, read_points
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_bond
from psyche_py.coordinator.layout import DISCRIMINATOR, HALTED, RUNNING_EPOCH
from psyche_py.coordinator.state import CoordinatorAccount


def _load_bond(model: Model, a: dict[str, Pubkey]) -> bytes:
    return load(model, a["bond"], "treasurer", BOND, BOND_SIZE)


def _set_amount(model: Model, a: dict[str, Pubkey], amount: int) -> None:
    data = model.get(a["bond"]).data
    model.put(a["bond"], data=data[:105] + struct.pack("<Q", amount))


@handler("treasurer.bond_post")
def bond_post(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """Collateral of the user's goes into its bond, which is made if missing; gifts count as posted."""
    run = load_run(model, a)
    demand(run[145:177] == bytes(a["collateral_mint"]), "another mint")
    demand(args["amount"] > 0, "nothing")
    if not model.get(a["bond"]).data:
        program = get_program_id("treasurer")
        seeds = [b"Bond", bytes(a["run"]), bytes(a["user"])]
        _, bump = Pubkey.find_program_address(seeds, program)
        demand(a["bond"] == find_bond(a["run"], a["user"]), "not the bond's address")
        demand(a["system_program"] == SYSTEM_PROGRAM, "another program for the System program")
        data = BOND + bytes([bump]) + bytes(a["run"]) + bytes(a["user"]) + run[81:113] + bytes(8)
        model.create(a["user"], a["bond"], program, data)
    bond = _load_bond(model, a)
    demand(bond[9:73] == bytes(a["run"]) + bytes(a["user"]), "another's bond")
    check_vault(model, a["bond_collateral"], a["bond"], a["collateral_mint"])
    demand(read_held(model, a["user_collateral"]).owner == a["user"], "another's collateral")
    transfer(model, a, "user_collateral", "bond_collateral", args["amount"])
    _set_amount(model, a, read_held(model, a["bond_collateral"]).amount)


@handler("treasurer.bond_slash")
def bond_slash(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """What a client owes goes from its bond to the run's vault, as far as the bond reaches."""
    run, bond = load_run(model, a), _load_bond(model, a)
    user = Pubkey(bond[41:73])
    demand(bond[9:41] == bytes(a["run"]), "a bond in another run")
    check_coordinator(run, a)
    demand(run[145:177] == bytes(a["collateral_mint"]), "another mint")
    check_vault(model, a["run_collateral"], a["run"], a["collateral_mint"])
    held = check_vault(model, a["bond_collateral"], a["bond"], a["collateral_mint"])
    amount = min(_get_debt(read_points(model, a["coordinator_account"]), user), held.amount)
    demand(amount, "nothing is owed, or nothing is left")
    _set_amount(model, a, held.amount - amount)
    call_owned(model, a, "settle_debt", {"user": bytes(user), "points": amount})
    transfer(model, a, "bond_collateral", "run_collateral", amount)


@handler("treasurer.bond_return")
def bond_return(model: Model, a: dict[str, Pubkey], args: dict[str, Any]) -> None:
    """All that is in a bond goes to its user, who is free and owes nothing; the accounts go too."""
    bond = _load_bond(model, a)
    demand(bond[41:73] == bytes(a["user"]), "another's bond")
    demand(bond[73:105] == bytes(a["coordinator_account"]), "another run's account")
    held = check_vault(model, a["bond_collateral"], a["bond"], a["collateral_mint"])
    demand(held.amount >= read_u64(bond, 105), "not what the bond holds")
    state = model.get(a["coordinator_account"])
    if state.owner == get_program_id("coordinator") and state.data[:8] == DISCRIMINATOR:
        account = read_points(model, a["coordinator_account"])
        demand(not is_engaged(account, a["user"]), "in the run")
        demand(not _get_debt(account, a["user"]), "in debt")
    demand(a["token_program"] == held.program, "another program for the token program")
    if held.amount:
        transfer(model, a, "bond_collateral", "user_collateral", held.amount)
    for slot in ("bond_collateral", "bond"):
        model.move(a[slot], a["user"], model.get(a[slot]).lamports)
        assert model.get(a[slot]) == ABSENT


def is_engaged(account: CoordinatorAccount, user: Pubkey) -> bool:
    """Whether what the user did or will do in the run can still be judged."""
    number = account.find_entry(bytes(user))
    if number is None or account.run_state in HALTED:
        return False
    is_in = any(client.entry == number for client in account.epoch_clients)
    return number in account.pending or (is_in and account.run_state in RUNNING_EPOCH)


def _get_debt(account: CoordinatorAccount, user: Pubkey) -> int:
    number = account.find_entry(bytes(user))
    return 0 if number is None else account.entries[number].debt
