"""Worlds to attack: a run in every state, a rival's run, two runs with money, and people who want it.

Scenes are built by sending real transactions, and shared: attacks try transactions without keeping them.
Whoever keeps some (``AttackChain.commit``) builds a scene of its own with ``build_scene``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from airdrop_harness import AirdropHarness
from attack_chain import AttackChain
from attack_disputes import VERIFIED, play_dispute, set_slashing
from attack_funded import RATE, FundedRun, build_empty, build_ended, build_funded, play_epoch, set_owner
from attack_staked import StakedRun, build_staked
from attack_ventures import build_airdrops, build_pools
from mining_pool_harness import PoolHarness
from programs_harness import RunHarness, make_config
from solders.keypair import Keypair

from psyche_py.chain.artifacts import get_program_id
from psyche_py.coordinator.layout import ACCOUNT_SIZE, COORDINATOR_ACCOUNT, RunState
from psyche_py.coordinator.model import Progress

STATES = (
    "uninitialized", "waiting", "due", "warmup", "first_round", "training", "witnessing", "cooldown",
    "paused", "finished", "paid", "revoked", "older", "accusing", "judging", "indebted",
)  # fmt: skip
"""What a scene's main run can be doing.

"due" is waiting with its time up, "paid" is waiting after an epoch that earned points, "revoked" is waiting
with a client whose authorization was switched off after it joined, "older" is a round under layout version 1.
In "accusing", "judging" and "indebted" half of the clients verify (attack_disputes.play_dispute).
"""
REVOKED = "revoked client"
NUM_CLIENTS = 4


@dataclass
class Scene:
    """Who and what there is. ``thief`` has wallets and tokens but no part in any run of the others.

    ``run`` is in the scene's state; ``rival`` waits for members, and its clients are others. ``funded`` has
    paid an epoch: its two clients (0 enlisted, 1 not) have earned 50 points each, the vault holds 80.
    ``rival_funded`` is the same of another owner with another mint, and its client 1 has a record of the
    older layout, which says that it was paid 20. ``ended`` finished more than 30 days ago, owes 100 and holds
    130; ``empty`` owes and holds nothing.

    ``staked`` and ``rival_staked`` (another owner, another mint) ask for bonds: see attack_staked.

    ``pool`` takes deposits, ``rival_pool`` has ended them and been repaid. ``airdrop`` is guaranteed,
    ``rival_airdrop`` is not.
    """

    chain: AttackChain
    run: RunHarness
    rival: RunHarness
    funded: FundedRun
    rival_funded: FundedRun
    ended: FundedRun
    empty: FundedRun
    staked: StakedRun
    rival_staked: StakedRun
    pool: PoolHarness
    rival_pool: PoolHarness
    airdrop: AirdropHarness
    rival_airdrop: AirdropHarness
    thief: Keypair
    fresh: Keypair
    """Key of an allocated, still empty coordinator account."""

    def refresh(self) -> None:
        """Allocate ``fresh`` again, zeroed."""
        space = ACCOUNT_SIZE
        lamports = self.chain.svm.minimum_balance_for_rent_exemption(space)
        state = self.chain.get_state(self.fresh.pubkey())
        program = get_program_id("coordinator")
        self.chain.set_state(
            self.fresh.pubkey(), state._replace(lamports=lamports, owner=program, data=bytes(space))
        )


def build_scene(state: str = "waiting", *, is_signed: bool = True) -> Scene:
    """A scene whose main run is in one of STATES."""
    chain = AttackChain(is_signed=is_signed)
    thief = chain.make_wallet("thief")
    ended, empty = build_ended(chain, thief), build_empty(chain)
    chain.advance(31 * 24 * 3600)
    funded = build_funded(chain, "funded", "owner", thief)
    rival_funded = build_funded(chain, "rival funded", "rival owner", thief)
    rival_funded.enlist(rival_funded.wallets[1])
    rival_funded.age_participant(rival_funded.wallets[1], claimed=20)
    staked = build_staked(chain, "staked", "owner")
    rival_staked = build_staked(chain, "rival staked", "rival owner")
    ventures = build_pools(chain) | build_airdrops(chain)
    rival = RunHarness(chain, "rival")
    set_owner(rival, chain.make_wallet("rival owner"))
    rival.open(0)
    rival.wallets = [chain.make_wallet(f"rival client {i}") for i in range(2)]
    rival.join_all()
    run = RunHarness(chain, "run")
    chain.remember(run.account_key)
    play_to(run, state)
    runs = {"run": run, "rival": rival, "funded": funded, "rival_funded": rival_funded}
    runs |= {"staked": staked, "rival_staked": rival_staked}
    fresh = chain.make_key("fresh account")
    scene = Scene(chain, **runs, ended=ended, empty=empty, **ventures, thief=thief, fresh=fresh)
    scene.refresh()
    return scene


get_scene = cache(build_scene)


def build_verified(num: int, **config: int) -> Scene:
    """A run of so many clients in its first round, half of whom verify."""
    scene = build_scene("paused")
    run, chain = scene.run, scene.chain
    values = {**VERIFIED, "epoch_time": 10_000, **config}
    run.update(config=make_config(**values).to_bytes())
    set_slashing(run)
    run.own("set_paused", paused=False)
    run.wallets = [chain.make_wallet(f"client {i}") for i in range(num)]
    run.join_all()
    run.start_training()
    return scene


def play_to(run: RunHarness, state: str) -> None:
    """Take a run that does not exist yet to one of STATES."""
    if state == "uninitialized":
        run.create()
        run.update(config=make_config().to_bytes())
        return
    is_disputed = state in ("accusing", "judging", "indebted")
    run.open(NUM_CLIENTS, rate=RATE, **(VERIFIED if is_disputed else {}))
    if state == "due":
        run.chain.advance(4)
    elif state == "paid":
        play_epoch(run)
    elif is_disputed:
        play_dispute(run, state)
    elif state == "revoked":
        join_and_revoke(run)
    elif state == "older":
        _play_into_epoch(run, "training")
        make_older(run)
    elif state in ("paused", "finished"):
        run.own("set_paused", paused=True)
        if state == "finished":
            run.update(progress=Progress(step=run.account.config.total_steps).to_bytes())
            run.own("set_paused", paused=False)
    elif state == "warmup":
        run.tick(4)
    elif state != "waiting":
        _play_into_epoch(run, state)


def join_and_revoke(run: RunHarness) -> None:
    """Somebody joins with an authorization of its own, which is then switched off."""
    revoked = run.chain.make_wallet(REVOKED)
    own = run.chain.authorize(run.owner, revoked.pubkey())
    run.join(revoked, authorization=own)
    run.chain.switch(run.owner, own, active=False)


def make_older(run: RunHarness) -> None:
    """The account as the program of layout version 1 had written it: what version 2 added is zero."""
    state = run.chain.get_state(run.address)
    record = np.frombuffer(bytearray(state.data), dtype=COORDINATOR_ACCOUNT)
    record["version"] = 1
    record["config"]["max_witness_contradictions"] = 0
    record["epoch_state"]["rounds"]["elected"] = 0
    record["entries"]["authorization"] = 0
    run.chain.set_state(run.address, state._replace(data=record.tobytes()))


def _play_into_epoch(run: RunHarness, state: str) -> None:
    """Rounds 0 and 1 pass; nobody sees the last client take part in round 0, so it may be dropped."""
    run.start_training()
    if state == "first_round":
        return
    run.play_round()
    run.play_round(seen=range(NUM_CLIENTS - 1))
    run.tick(5)
    assert (run.state, run.account.current_round.height) == (RunState.RoundTrain, 2)
    if state in ("witnessing", "cooldown"):
        run.tick(20)
    if state == "cooldown":
        run.tick(5)
