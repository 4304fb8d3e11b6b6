"""Runs of the treasurer's to attack: each has a mint of its own, an owner, a vault, and clients that earn."""

from __future__ import annotations

from typing import Any

from attack_chain import AttackChain
from programs_harness import ANYBODY, RunHarness
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
from psyche_py.coordinator.layout import ACCOUNT_SIZE, RunState
from psyche_py.coordinator.model import Progress
from psyche_py.coordinator.pda import compute_treasurer_index

RATE = 100
VAULT = 80


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
            "collateral_mint": self.mint.pubkey(),
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "participant": find_participant(self.fund, user.pubkey()),
            "token_program": TOKEN_PROGRAM,
        }

    def get_migrate_accounts(self, payer: Keypair, user: Keypair) -> dict[str, Pubkey]:
        """Accounts of participant_migrate."""
        return {
            "payer": payer.pubkey(),
            "user": user.pubkey(),
            "run": self.fund,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "participant": find_participant(self.fund, user.pubkey()),
            "system_program": SYSTEM_PROGRAM,
        }

    def get_withdraw_accounts(self) -> dict[str, Pubkey]:
        """Accounts of run_withdraw."""
        return {
            "authority": self.owner.pubkey(),
            "authority_collateral": find_token_account(self.owner.pubkey(), self.mint.pubkey()),
            "run": self.fund,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.pubkey(),
            "coordinator_account": self.address,
            "token_program": TOKEN_PROGRAM,
        }

    def get_close_accounts(self) -> dict[str, Pubkey]:
        """Accounts of run_close."""
        return {
            "authority": self.owner.pubkey(),
            "spill": self.chain.make_wallet("spill").pubkey(),
            "run": self.fund,
            "run_collateral": self.vault,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "token_program": TOKEN_PROGRAM,
        }

    def finish(self) -> None:
        """The owner ends the run: paused, set to its last step, resumed."""
        self.own("set_paused", paused=True)
        self.update(progress=Progress(step=self.account.config.total_steps).to_bytes())
        self.own("set_paused", paused=False)

    def age_participant(self, user: Keypair, claimed: int) -> None:
        """The user's record as it was in the older layout, when it alone counted what was claimed."""
        address = find_participant(self.fund, user.pubkey())
        state = self.chain.get_state(address)
        data = state.data[:9] + 2 * claimed.to_bytes(8, "little")
        lamports = self.chain.svm.minimum_balance_for_rent_exemption(len(data))
        self.chain.set_state(address, state._replace(data=data, lamports=lamports))

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


def play_epoch(run: RunHarness) -> None:
    """A whole epoch, in which everybody attends every round."""
    run.start_training()
    run.chain.advance(200)
    while run.state is RunState.RoundTrain:
        run.play_round()
    run.tick(10)
    assert run.state is RunState.WaitingForMembers


def build_funded(chain: AttackChain, run_id: str, owner: str, thief: Keypair) -> FundedRun:
    """A run that has paid an epoch: clients 0 (enlisted) and 1 earned 50 each, the vault holds VAULT."""
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


def build_ended(chain: AttackChain, thief: Keypair) -> FundedRun:
    """A finished run that owes 100 points and holds 130; wait THIRTY_DAYS to withdraw."""
    run = build_funded(chain, "ended", "owner", thief)
    run.fill(50)
    run.open_wallet(run.owner)
    run.finish()
    return run


def build_empty(chain: AttackChain) -> FundedRun:
    """A finished run that owes and holds nothing."""
    run = FundedRun(chain, "empty", "owner")
    run.open(0, rate=RATE)
    run.finish()
    return run
