"""Worlds to attack: a run in every state, a rival's run, two runs with money, and people who want it.

Scenes are built by sending real transactions, and shared: attacks try transactions without keeping them.
Whoever keeps some (``AttackChain.commit``) builds a scene of its own with ``build_scene``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from attack_chain import AttackChain
from programs_harness import ANYBODY, RunHarness, make_config
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import (
    InitializeMintParams,
    MintToParams,
    create_associated_token_account,
    initialize_mint,
    mint_to,
)

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_PROGRAM,
    find_authorization,
    find_participant,
    find_token_account,
    find_treasurer_run,
)
from psyche_py.coordinator.layout import ACCOUNT_SIZE, COORDINATOR_ACCOUNT, RunState
from psyche_py.coordinator.model import Progress
from psyche_py.coordinator.pda import compute_treasurer_index

STATES = (
    "uninitialized", "waiting", "due", "warmup", "first_round", "training", "witnessing", "cooldown",
    "paused", "finished", "paid", "revoked", "older",
)  # fmt: skip
"""What a scene's main run can be doing.

"due" is waiting with its time up, "paid" is waiting after an epoch that earned points, "revoked" is waiting with
a client whose authorization was switched off after it joined, "older" is a round under layout version 1.
"""
REVOKED = "revoked client"
RATE = 100
VAULT = 80
NUM_CLIENTS = 4


class FundedRun(RunHarness):
    """A run owned by the treasurer: the owner's instructions go through run_update."""

    def __init__(self, chain: AttackChain, run_id: str, owner: str) -> None:
        super().__init__(chain, run_id)
        set_owner(self, chain.make_wallet(owner))
        self.index = compute_treasurer_index(run_id)
        self.fund = find_treasurer_run(self.index)
        self.mint = chain.make_key(f"mint of {run_id}")
        self.vault = find_token_account(self.fund, self.mint.pubkey())
        allocate = chain.make_account(self.owner, self.mint, 82, TOKEN_PROGRAM)
        params = InitializeMintParams(
            decimals=6,
            program_id=TOKEN_PROGRAM,
            mint=self.mint.pubkey(),
            mint_authority=self.owner.pubkey(),
        )
        chain.commit(allocate, initialize_mint(params))

    def get_create_accounts(self) -> dict[str, Pubkey]:
        """Accounts of run_create."""
        return {
            "payer": self.owner.pubkey(),
            "run": self.fund,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.pubkey(),
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": TOKEN_PROGRAM,
            "system_program": SYSTEM_PROGRAM,
        }

    def get_create_args(self) -> dict[str, Any]:
        """Arguments of run_create."""
        return {
            "index": self.index,
            "run_id": self.run_id,
            "client_version": "test",
            "main_authority": self.owner.pubkey(),
            "join_authority": self.owner.pubkey(),
        }

    def create(self, **changes: Any) -> None:
        """Allocate the run's account and create it through the treasurer."""
        assert not changes
        program = get_program_id("coordinator")
        allocate = self.chain.make_account(self.owner, self.account_key, ACCOUNT_SIZE, program)
        accounts, args = self.get_create_accounts(), self.get_create_args()
        create = get_program("treasurer").encode("run_create", accounts, args)
        self.chain.send([allocate, create], [self.owner, self.account_key])

    def get_update_accounts(self) -> dict[str, Pubkey]:
        """Accounts of run_update."""
        return {
            "authority": self.owner.pubkey(),
            "run": self.fund,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
        }

    def own(self, name: str, signer: Keypair | None = None, **args: Any) -> None:
        """An owner's instruction of the coordinator, by way of run_update."""
        assert signer is None
        treasurer = get_program("treasurer")
        rates = {f"epoch_{key}": args.pop(key) for key in list(args) if key.endswith(("shared", "client"))}
        values = dict.fromkeys(treasurer.get_argument_names("run_update"))
        update = treasurer.encode("run_update", self.get_update_accounts(), {**values, **args, **rates})
        self.chain.send([update], [self.owner])

    def get_claim_accounts(self, user: Keypair) -> dict[str, Pubkey]:
        """Accounts of participant_claim."""
        return {
            "user": user.pubkey(),
            "user_collateral": find_token_account(user.pubkey(), self.mint.pubkey()),
            "run": self.fund,
            "run_collateral": self.vault,
            "coordinator_account": self.address,
            "participant": find_participant(self.fund, user.pubkey()),
            "token_program": TOKEN_PROGRAM,
        }

    def get_participant_accounts(self, user: Keypair) -> dict[str, Pubkey]:
        """Accounts of participant_create."""
        return {
            "payer": user.pubkey(),
            "user": user.pubkey(),
            "run": self.fund,
            "participant": find_participant(self.fund, user.pubkey()),
            "system_program": SYSTEM_PROGRAM,
        }

    def pay_an_epoch(self) -> None:
        """One epoch in which everybody attends every round; then the vault is filled, but not enough."""
        play_epoch(self)
        self.fill(VAULT)

    def fill(self, amount: int) -> None:
        """Mint base units into the vault."""
        params = MintToParams(
            program_id=TOKEN_PROGRAM,
            mint=self.mint.pubkey(),
            dest=self.vault,
            mint_authority=self.owner.pubkey(),
            amount=amount,
        )
        self.chain.commit(mint_to(params))

    def open_wallet(self, user: Keypair) -> None:
        """The user's own token account."""
        self.chain.commit(create_associated_token_account(user.pubkey(), user.pubkey(), self.mint.pubkey()))

    def enlist(self, user: Keypair) -> None:
        """participant_create."""
        accounts = self.get_participant_accounts(user)
        self.chain.commit(get_program("treasurer").encode("participant_create", accounts, {}))


def set_owner(run: RunHarness, owner: Keypair) -> None:
    """Another owner than the harness's usual one."""
    run.owner = owner
    run.authorization = find_authorization(owner.pubkey(), ANYBODY)


@dataclass
class Scene:
    """Who and what there is. ``thief`` has wallets and tokens but no part in any run of the others.

    ``run`` is in the scene's state; ``rival`` waits for members, and its clients are others. ``funded`` has
    paid an epoch: its two clients (0 enlisted, 1 not) have earned 50 points each, the vault holds 80.
    ``rival_funded`` is the same of another owner with another mint.
    """

    chain: AttackChain
    run: RunHarness
    rival: RunHarness
    funded: FundedRun
    rival_funded: FundedRun
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
    funded = _build_funded(chain, "funded", "owner", thief)
    rival_funded = _build_funded(chain, "rival funded", "rival owner", thief)
    rival = RunHarness(chain, "rival")
    set_owner(rival, chain.make_wallet("rival owner"))
    rival.open(0)
    rival.wallets = [chain.make_wallet(f"rival client {i}") for i in range(2)]
    rival.join_all()
    run = RunHarness(chain, "run")
    chain.remember(run.account_key)
    play_to(run, state)
    scene = Scene(chain, run, rival, funded, rival_funded, thief, chain.make_key("fresh account"))
    scene.refresh()
    return scene


get_scene = cache(build_scene)


def _build_funded(chain: AttackChain, run_id: str, owner: str, thief: Keypair) -> FundedRun:
    run = FundedRun(chain, run_id, owner)
    run.open(0, rate=RATE)
    run.wallets = [chain.make_wallet(f"{run_id} client {i}") for i in range(2)]
    run.join_all()
    run.pay_an_epoch()
    for wallet in (*run.wallets, thief):
        run.open_wallet(wallet)
    run.enlist(run.wallets[0])
    run.enlist(thief)
    return run


def play_to(run: RunHarness, state: str) -> None:
    """Take a run that does not exist yet to one of STATES."""
    if state == "uninitialized":
        run.create()
        run.update(config=make_config().to_bytes())
        return
    run.open(NUM_CLIENTS, rate=RATE)
    if state == "due":
        run.chain.advance(4)
    elif state == "paid":
        play_epoch(run)
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


def play_epoch(run: RunHarness) -> None:
    """A whole epoch, in which everybody attends every round."""
    run.start_training()
    run.chain.advance(200)
    while run.state is RunState.RoundTrain:
        run.play_round()
    run.tick(10)
    assert run.state is RunState.WaitingForMembers


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
