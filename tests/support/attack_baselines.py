"""One honest call of every instruction of every program: what the generic attacks start from.

Those about money are in attack_money_baselines.py, those about disputes and bonds in
attack_dispute_baselines.py. A new instruction without a baseline fails tests/attacks, so that none goes
unattacked.
"""

from __future__ import annotations

from typing import Any

import attack_dispute_baselines
import attack_money_baselines
import pytest
from attack_calls import BASELINES, Baseline, baseline, list_instructions
from attack_scenes import REVOKED, Scene
from programs_harness import make_config
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.pda import SYSTEM_PROGRAM, find_authorization, find_instance
from psyche_py.coordinator.layout import CheckpointKind
from psyche_py.coordinator.model import Metadata

EXPIRY = 2**62
"""Unix second: after any time on the clock of a scene."""
SCOPE = b"CoordinatorJoinRun"
MORE = (attack_money_baselines, attack_dispute_baselines)
"""Imported for their baselines."""


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
    """Of a run that asks for a bond: one place more than in others."""
    return scene.staked.make_join(scene.staked.newcomer)


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
    accounts = {"grantor": made["grantor"], "authorization": made["authorization"]}
    return accounts, {"active": False, "expires_unix_timestamp": EXPIRY}


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


INSTRUCTIONS = list(list_instructions())
EVERY = pytest.mark.parametrize("key", INSTRUCTIONS, ids=[".".join(key) for key in INSTRUCTIONS])
"""A test for every instruction of every program."""


def get_honest(key: tuple[str, str]) -> tuple[Baseline, Scene, Instruction]:
    """The honest call of an instruction, which succeeds, and its scene."""
    base = BASELINES[key]
    scene, call = base.get()
    scene.chain.honest(call)
    return base, scene, call
