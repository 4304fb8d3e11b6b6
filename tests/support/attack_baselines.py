"""One honest call of every instruction of every program: what the generic attacks start from.

A new instruction without a baseline fails tests/attacks, so that none goes unattacked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from attack_scenes import REVOKED, Scene, get_scene
from programs_harness import NO_HINT, make_config
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program, to_snake
from psyche_py.chain.artifacts import PROGRAM_NAMES, read_idl
from psyche_py.chain.pda import (
    SYSTEM_PROGRAM,
    find_authorization,
    find_instance,
    find_token_account,
    find_treasurer_run,
)
from psyche_py.coordinator.layout import CheckpointKind
from psyche_py.coordinator.model import Metadata

SCOPE = b"CoordinatorJoinRun"


@dataclass(frozen=True)
class Baseline:
    """An honest call: in which scene it is right, and how it is made there."""

    program: str
    name: str
    state: str
    build: Callable[[Scene], Instruction]

    @property
    def slots(self) -> list[str]:
        """Names of the instruction's accounts."""
        return get_slots(self.program, self.name)

    def get(self) -> tuple[Scene, Instruction]:
        """The shared scene and the call."""
        scene = get_scene(self.state)
        return scene, self.build(scene)


BASELINES: dict[tuple[str, str], Baseline] = {}


def baseline(
    program: str, name: str, state: str = "waiting"
) -> Callable[[Callable[[Scene], Any]], Callable[[Scene], Any]]:
    """Register a function of a scene that returns an Instruction, or (accounts, arguments) of one."""

    def register(make: Callable[[Scene], Any]) -> Callable[[Scene], Any]:
        def build(scene: Scene) -> Instruction:
            made = make(scene)
            return made if isinstance(made, Instruction) else get_program(program).encode(name, *made)

        BASELINES[program, name] = Baseline(program, name, state, build)
        return make

    return register


def get_slots(program: str, name: str) -> list[str]:
    """Names of an instruction's accounts, in snake_case."""
    entries = read_idl(program)["instructions"]
    entry = next(entry for entry in entries if to_snake(entry["name"]) == name)
    return [to_snake(account["name"]) for account in entry["accounts"]]


def list_instructions() -> Iterator[tuple[str, str]]:
    """(program, instruction) of everything in the IDLs."""
    for program in PROGRAM_NAMES:
        for name in get_program(program).instruction_names:
            yield program, name


# ---- coordinator ------------------------------------------------------------------------------------------


def get_owner_accounts(scene: Scene) -> dict[str, Pubkey]:
    """Accounts of an owner's instruction on the main run."""
    run = scene.run
    return {
        "authority": run.owner.pubkey(),
        "instance": run.instance,
        "coordinator_account": run.address,
    }


@baseline("coordinator", "init_coordinator")
def _init_coordinator(scene: Scene) -> Any:
    owner = scene.run.owner.pubkey()
    accounts = {
        "payer": owner,
        "instance": find_instance("fresh"),
        "coordinator_account": scene.fresh.pubkey(),
        "system_program": SYSTEM_PROGRAM,
    }
    texts = {"run_id": "fresh", "client_version": "test"}
    return accounts, {"main_authority": owner, "join_authority": owner, **texts}


@baseline("coordinator", "update", "paused")
def _update(scene: Scene) -> Any:
    parts = {"metadata": Metadata(name="changed").to_bytes(), "config": make_config(epoch_time=90).to_bytes()}
    return get_owner_accounts(scene), {**parts, "model": None, "progress": None}


@baseline("coordinator", "update_client_version", "paused")
def _update_client_version(scene: Scene) -> Any:
    return get_owner_accounts(scene), {"client_version": "changed"}


@baseline("coordinator", "set_future_epoch_rates")
def _set_future_epoch_rates(scene: Scene) -> Any:
    return get_owner_accounts(scene), {"earning_rate_total_shared": 7, "slashing_rate_per_client": 8}


@baseline("coordinator", "set_paused")
def _set_paused(scene: Scene) -> Any:
    return get_owner_accounts(scene), {"paused": True}


@baseline("coordinator", "free_coordinator", "paused")
def _free_coordinator(scene: Scene) -> Any:
    return {**get_owner_accounts(scene), "spill": scene.chain.make_wallet("spill").pubkey()}, {}


@baseline("coordinator", "join_run")
def _join_run(scene: Scene) -> Any:
    user = scene.chain.make_wallet("joiner")
    key = scene.chain.make_key("p2p key of joiner")
    return scene.run.encode("join_run", user, p2p=key, address_hint=NO_HINT)


@baseline("coordinator", "leave_run", "training")
def _leave_run(scene: Scene) -> Any:
    return scene.run.encode("leave_run", scene.run.wallets[0])


@baseline("coordinator", "tick", "due")
def _tick(scene: Scene) -> Any:
    return scene.run.encode("tick", scene.run.wallets[0])


@baseline("coordinator", "witness", "training")
def _witness(scene: Scene) -> Any:
    run = scene.run
    client = run.get_elected()[0]
    return run.encode("witness", run.get_wallet(client), **run.make_witness(client))


@baseline("coordinator", "warmup_witness", "warmup")
def _warmup_witness(scene: Scene) -> Any:
    client = scene.run.account.epoch_clients[1]
    return scene.run.encode("warmup_witness", scene.run.get_wallet(client), index=client.index)


@baseline("coordinator", "health_check", "training")
def _health_check(scene: Scene) -> Any:
    index = scene.run.account.epoch_clients[-1].index
    return scene.run.encode("health_check", scene.run.wallets[0], index=index)


@baseline("coordinator", "checkpoint", "training")
def _checkpoint(scene: Scene) -> Any:
    place = {"repo": b"someone/new".ljust(128, b"\0"), "revision": bytes(64)}
    return scene.run.encode("checkpoint", scene.run.wallets[0], kind=int(CheckpointKind.Hub), **place)


@baseline("coordinator", "record_claim", "paid")
def _record_claim(scene: Scene) -> Any:
    user = scene.run.wallets[0].pubkey()
    return get_owner_accounts(scene), {"user": user, "points": 10}


@baseline("coordinator", "remove_unauthorized", "revoked")
def _remove_unauthorized(scene: Scene) -> Any:
    revoked = scene.chain.make_wallet(REVOKED)
    entry = scene.run.account.find_entry(bytes(revoked.pubkey()))
    authorization = find_authorization(scene.run.owner.pubkey(), revoked.pubkey())
    return scene.run.encode(
        "remove_unauthorized", scene.run.wallets[0], entry=entry, authorization=authorization
    )


@baseline("coordinator", "migrate", "older")
def _migrate(scene: Scene) -> Any:
    return scene.run.encode("migrate", scene.run.wallets[0])


# ---- authorizer -------------------------------------------------------------------------------------------


@baseline("authorizer", "authorization_create")
def _authorization_create(scene: Scene) -> Any:
    grantor, grantee = scene.run.owner.pubkey(), scene.chain.make_wallet("grantee").pubkey()
    accounts = {
        "payer": grantor,
        "grantor": grantor,
        "authorization": find_authorization(grantor, grantee),
        "system_program": SYSTEM_PROGRAM,
    }
    return accounts, {"grantee": grantee, "scope": SCOPE}


def make_authorization(scene: Scene, *, active: bool) -> dict[str, Pubkey]:
    """An authorization of its own for the run's owner and a grantee; grantor, grantee and address of it."""
    chain, grantor = scene.chain, scene.run.owner
    grantee = chain.make_wallet("active grantee" if active else "inactive grantee")
    address = find_authorization(grantor.pubkey(), grantee.pubkey())
    if chain.get_data(address) is None:
        chain.authorize(grantor, grantee.pubkey(), active=active)
    return {"grantor": grantor.pubkey(), "grantee": grantee.pubkey(), "authorization": address}


@baseline("authorizer", "authorization_grantor_update")
def _grantor_update(scene: Scene) -> Any:
    made = make_authorization(scene, active=True)
    return {"grantor": made["grantor"], "authorization": made["authorization"]}, {"active": False}


@baseline("authorizer", "authorization_grantee_update")
def _grantee_update(scene: Scene) -> Any:
    made = make_authorization(scene, active=True)
    accounts = {
        "payer": made["grantee"],
        "grantee": made["grantee"],
        "authorization": made["authorization"],
        "system_program": SYSTEM_PROGRAM,
    }
    delegates = [scene.chain.make_wallet(f"delegate {i}").pubkey() for i in range(2)]
    return accounts, {"delegates_clear": False, "delegates_added": delegates}


@baseline("authorizer", "authorization_close")
def _authorization_close(scene: Scene) -> Any:
    made = make_authorization(scene, active=False)
    spill = scene.chain.make_wallet("spill").pubkey()
    return {"grantor": made["grantor"], "spill": spill, "authorization": made["authorization"]}, {}


# ---- treasurer --------------------------------------------------------------------------------------------


@baseline("treasurer", "run_create")
def _run_create(scene: Scene) -> Any:
    funded = scene.funded
    args = {**funded.get_create_args(), "index": 4711, "run_id": "fresh"}
    fund = find_treasurer_run(4711)
    accounts = {
        **funded.get_create_accounts(),
        "run": fund,
        "run_collateral": find_vault(fund, scene),
        "coordinator_instance": find_instance("fresh"),
        "coordinator_account": scene.fresh.pubkey(),
    }
    return accounts, args


def find_vault(fund: Pubkey, scene: Scene) -> Pubkey:
    """Vault of treasurer run ``fund`` in the funded run's mint."""
    return find_token_account(fund, scene.funded.mint.pubkey())


@baseline("treasurer", "run_update")
def _run_update(scene: Scene) -> Any:
    values = dict.fromkeys(get_program("treasurer").get_argument_names("run_update"))
    changes = {"metadata": Metadata(name="changed").to_bytes(), "paused": True, "client_version": "changed"}
    return scene.funded.get_update_accounts(), {**values, **changes, "epoch_earning_rate_total_shared": 3}


@baseline("treasurer", "participant_create")
def _participant_create(scene: Scene) -> Any:
    return scene.funded.get_participant_accounts(scene.funded.wallets[1]), {}


@baseline("treasurer", "participant_claim")
def _participant_claim(scene: Scene) -> Any:
    return scene.funded.get_claim_accounts(scene.funded.wallets[0]), {"claim_earned_points": 40}


INSTRUCTIONS = list(list_instructions())
EVERY = pytest.mark.parametrize("key", INSTRUCTIONS, ids=[".".join(key) for key in INSTRUCTIONS])
"""A test for every instruction of every program."""


def get_honest(key: tuple[str, str]) -> tuple[Baseline, Scene, Instruction]:
    """The honest call of an instruction, which succeeds, and its scene."""
    base = BASELINES[key]
    scene, call = base.get()
    scene.chain.honest(call)
    return base, scene, call
