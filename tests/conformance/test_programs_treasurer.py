"""The treasurer: it owns runs through its own address, and pays what was earned, once, from the vault."""

from __future__ import annotations

from typing import Any

import pytest
from programs_harness import ANYBODY, ProgramChain, RunHarness, make_config, make_model, refused
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import (
    ApproveParams,
    InitializeMintParams,
    MintToParams,
    approve,
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
    find_participant,
    find_token_account,
    find_treasurer_run,
)
from psyche_py.coordinator.layout import ACCOUNT_SIZE, RunState
from psyche_py.coordinator.model import Metadata
from psyche_py.coordinator.pda import compute_treasurer_index

RATE = 100


class Treasury(RunHarness):
    """A run created through the treasurer, with a mint of its own."""

    def __init__(self, chain: ProgramChain, run_id: str = "run") -> None:
        super().__init__(chain, run_id)
        self.index = compute_treasurer_index(run_id)
        self.run = find_treasurer_run(self.index)
        self.mint = Keypair.from_seed(bytes([7] * 32))
        self.vault = find_token_account(self.run, self.mint.pubkey())
        if chain.get_data(self.mint.pubkey()) is None:
            self._create_mint()

    def _create_mint(self) -> None:
        allocate = self.chain.make_account(self.owner, self.mint, 82, TOKEN_PROGRAM)
        owner = self.owner.pubkey()
        initialise = initialize_mint(
            InitializeMintParams(
                decimals=6, program_id=TOKEN_PROGRAM, mint=self.mint.pubkey(), mint_authority=owner
            )
        )
        self.chain.send([allocate, initialise], [self.owner, self.mint])

    def encode_create(self, **changes: Any) -> Instruction:
        accounts = {
            "payer": self.owner.pubkey(),
            "run": self.run,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.pubkey(),
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": TOKEN_PROGRAM,
            "system_program": SYSTEM_PROGRAM,
        }
        args = {
            "index": self.index,
            "run_id": self.run_id,
            "client_version": "test",
            "main_authority": self.owner.pubkey(),
            "join_authority": self.owner.pubkey(),
        }
        accounts |= {key: value for key, value in changes.items() if key in accounts}
        args |= {key: value for key, value in changes.items() if key in args}
        return get_program("treasurer").encode("run_create", accounts, args)

    def create(self, **changes: Any) -> None:
        allocate = self.chain.make_account(
            self.owner, self.account_key, ACCOUNT_SIZE, get_program_id("coordinator")
        )
        self.chain.send([allocate, self.encode_create(**changes)], [self.owner, self.account_key])

    def change(self, signer: Keypair | None = None, **changes: Any) -> None:
        """run_update; everything left out is absent."""
        signer = signer or self.owner
        accounts = {
            "authority": signer.pubkey(),
            "run": self.run,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
        }
        args = dict.fromkeys(
            (
                "metadata",
                "config",
                "model",
                "progress",
                "epoch_earning_rate_total_shared",
                "epoch_slashing_rate_per_client",
                "paused",
                "client_version",
            )
        )
        accounts |= {key: changes.pop(key) for key in list(changes) if key in accounts}
        self.chain.send(
            [get_program("treasurer").encode("run_update", accounts, {**args, **changes})], [signer]
        )

    def open_funded(self) -> None:
        """Created, configured, resumed and joined by two clients, at RATE points an epoch."""
        self.create()
        self.change(config=make_config().to_bytes(), epoch_earning_rate_total_shared=RATE)
        self.change(model=make_model().to_bytes(), paused=False)
        self.chain.authorize(self.owner, ANYBODY)
        self.wallets = [self.chain.make_wallet(f"client {i}") for i in range(2)]

    def play_paid_epoch(self) -> None:
        """One epoch in which both clients attend every round."""
        self.join_all()
        self.start_training()
        self.chain.advance(200)
        while self.state is RunState.RoundTrain:
            self.play_round()
        self.tick(10)
        assert self.state is RunState.WaitingForMembers

    def fund(self, amount: int) -> None:
        """Mint collateral into the vault."""
        owner = self.owner.pubkey()
        params = MintToParams(
            program_id=TOKEN_PROGRAM,
            mint=self.mint.pubkey(),
            dest=self.vault,
            mint_authority=owner,
            amount=amount,
        )
        self.chain.send([mint_to(params)], [self.owner])

    def make_collateral(self, user: Keypair) -> Pubkey:
        """The user's own token account."""
        address = find_token_account(user.pubkey(), self.mint.pubkey())
        if self.chain.get_data(address) is None:
            create = create_associated_token_account(user.pubkey(), user.pubkey(), self.mint.pubkey())
            self.chain.send([create], [user])
        return address

    def create_participant(self, user: Keypair, **changes: Pubkey) -> None:
        accounts = {
            "payer": user.pubkey(),
            "user": user.pubkey(),
            "run": self.run,
            "participant": find_participant(self.run, user.pubkey()),
            "system_program": SYSTEM_PROGRAM,
            **changes,
        }
        self.chain.send([get_program("treasurer").encode("participant_create", accounts, {})], [user])

    def claim(self, user: Keypair, points: int, **changes: Pubkey) -> None:
        accounts = {
            "user": user.pubkey(),
            "user_collateral": find_token_account(user.pubkey(), self.mint.pubkey()),
            "run": self.run,
            "run_collateral": self.vault,
            "coordinator_account": self.address,
            "participant": find_participant(self.run, user.pubkey()),
            "token_program": TOKEN_PROGRAM,
            **changes,
        }
        args = {"claim_earned_points": points}
        self.chain.send([get_program("treasurer").encode("participant_claim", accounts, args)], [user])

    def get_amount(self, token_account: Pubkey) -> int:
        """Base units in a token account."""
        data = self.chain.get_data(token_account)
        assert data is not None
        return int.from_bytes(data[64:72], "little")

    def get_run(self) -> dict[str, Any]:
        """The treasurer's run account."""
        data = self.chain.get_data(self.run)
        assert data is not None
        return get_program("treasurer").decode_account("Run", data)


@pytest.fixture
def treasury() -> Treasury:
    return Treasury(ProgramChain())


@pytest.fixture
def paid(treasury: Treasury) -> Treasury:
    """One epoch is over: two clients have earned 50 points each, the vault holds 80."""
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(80)
    for wallet in treasury.wallets:
        treasury.make_collateral(wallet)
        treasury.create_participant(wallet)
    return treasury


def test_create_makes_run_vault_and_coordinator(treasury: Treasury) -> None:
    treasury.create()
    run = treasury.get_run()
    assert (
        run.pop("bump")
        == Pubkey.find_program_address(
            [b"Run", treasury.index.to_bytes(8, "little")], get_program_id("treasurer")
        )[1]
    )
    assert run == {
        "index": treasury.index,
        "main_authority": treasury.owner.pubkey(),
        "join_authority": treasury.owner.pubkey(),
        "coordinator_account": treasury.address,
        "coordinator_instance": treasury.instance,
        "collateral_mint": treasury.mint.pubkey(),
        "total_claimed_collateral_amount": 0,
        "total_claimed_earned_points": 0,
    }
    data = treasury.chain.get_data(treasury.instance)
    assert data is not None
    instance = get_program("coordinator").decode_account("CoordinatorInstance", data)
    assert instance["main_authority"] == treasury.run
    assert (instance["join_authority"], instance["run_id"]) == (treasury.owner.pubkey(), "run")
    assert treasury.get_amount(treasury.vault) == 0
    assert treasury.account.run_id == "run"


def test_create_is_strict(treasury: Treasury) -> None:
    with refused("RunIdInvalidLength"):
        treasury.create(run_id="x" * 33)
    with refused("InvalidParameter"):
        treasury.create(client_version="x" * 97)
    with refused("WrongPda"):
        treasury.create(index=treasury.index ^ 1)
    with refused("WrongProgram"):
        treasury.create(coordinator_program=get_program_id("authorizer"))
    with refused("WrongProgram"):
        treasury.create(associated_token_program=get_program_id("authorizer"))
    with refused("WrongOwner"):
        treasury.create(collateral_mint=treasury.owner.pubkey())
    treasury.create()
    other = Treasury(treasury.chain, "other")
    with refused("AlreadyInitialized"):
        other.create(index=treasury.index, run=treasury.run, run_collateral=treasury.vault)


def test_update_passes_everything_on(treasury: Treasury) -> None:
    treasury.create()
    treasury.change(
        metadata=Metadata(name="Paid").to_bytes(),
        config=make_config().to_bytes(),
        epoch_earning_rate_total_shared=5,
        epoch_slashing_rate_per_client=6,
        client_version="v2",
    )
    treasury.change(model=make_model().to_bytes(), paused=False)
    account = treasury.account
    assert (account.metadata.name, account.client_version) == ("Paid", "v2")
    assert (
        account.future_rates.earning_rate_total_shared,
        account.future_rates.slashing_rate_per_client,
    ) == (5, 6)
    assert account.run_state is RunState.WaitingForMembers
    with refused("UpdateConfigNotHalted"):
        treasury.change(client_version="v3")
    treasury.change()


def test_only_the_owner_updates(treasury: Treasury) -> None:
    treasury.create()
    thief = treasury.chain.make_wallet("thief")
    with refused("WrongAuthority"):
        treasury.change(signer=thief, paused=False)
    with refused("WrongAuthority"):
        treasury.own("set_paused", signer=treasury.owner, paused=False)
    other = Treasury(treasury.chain, "other")
    other.create(main_authority=thief.pubkey())
    with refused("WrongAccount"):
        other.change(
            signer=thief, epoch_earning_rate_total_shared=10**9, coordinator_account=treasury.address
        )
    with refused("WrongAccount"):
        other.change(
            signer=thief, epoch_earning_rate_total_shared=10**9, coordinator_instance=treasury.instance
        )
    with refused("WrongProgram"):
        treasury.change(epoch_earning_rate_total_shared=1, coordinator_program=get_program_id("authorizer"))


def test_claims_are_paid_exactly_and_once(paid: Treasury) -> None:
    first, second = paid.wallets
    wallet = paid.make_collateral(first)
    assert [entry.earned for entry in paid.account.entries] == [50, 50]
    with refused("InsufficientPoints"):
        paid.claim(first, 51)
    paid.claim(first, 20)
    assert (paid.get_amount(wallet), paid.get_amount(paid.vault)) == (20, 60)
    with refused("InsufficientPoints"):
        paid.claim(first, 31)
    paid.claim(first, 30)
    paid.claim(first, 0)
    with refused("InsufficientPoints"):
        paid.claim(first, 1)
    assert (paid.get_amount(wallet), paid.get_amount(paid.vault)) == (50, 30)
    with refused("InsufficientVault"):
        paid.claim(second, 50)
    paid.claim(second, 30)
    paid.fund(20)
    paid.claim(second, 20)
    run = paid.get_run()
    assert (run["total_claimed_collateral_amount"], run["total_claimed_earned_points"]) == (100, 100)


def test_later_epochs_add_up(paid: Treasury) -> None:
    first = paid.wallets[0]
    paid.claim(first, 50)
    paid.play_paid_epoch()
    with refused("InsufficientPoints"):
        paid.claim(first, 51)
    paid.fund(1000)
    paid.claim(first, 50)
    assert paid.get_amount(paid.make_collateral(first)) == 100


def test_slashed_points_cannot_be_claimed(paid: Treasury) -> None:
    account = paid.chain.svm.get_account(paid.address)
    record = paid.account.copy().record
    record["entries"][0]["slashed"] = 45
    paid.chain.svm.set_account(paid.address, type(account)(account.lamports, record.tobytes(), account.owner))
    with refused("InsufficientPoints"):
        paid.claim(paid.wallets[0], 6)
    paid.claim(paid.wallets[0], 5)
    record["entries"][0]["slashed"] = 1000
    paid.chain.svm.set_account(paid.address, type(account)(account.lamports, record.tobytes(), account.owner))
    with refused("InsufficientPoints"):
        paid.claim(paid.wallets[0], 1)


def test_nobody_claims_for_another(paid: Treasury) -> None:
    first, second = paid.wallets
    thief = paid.chain.make_wallet("thief")
    loot = paid.make_collateral(thief)
    with refused("WrongPda"):
        paid.claim(first, 10, participant=find_participant(paid.run, second.pubkey()))
    with refused("WrongAccount"):
        paid.claim(first, 10, user_collateral=loot)
    paid.create_participant(thief)
    with refused("InsufficientPoints"):
        paid.claim(thief, 1)
    with refused("WrongPda"):
        paid.create_participant(thief, participant=find_participant(paid.run, first.pubkey()))
    with refused("AlreadyInitialized"):
        paid.create_participant(first)


def test_claims_read_only_the_runs_own_account(paid: Treasury) -> None:
    first = paid.wallets[0]
    rich = RunHarness(paid.chain, "rich")
    rich.create()
    with refused("WrongAccount"):
        paid.claim(first, 10, coordinator_account=rich.address)
    other = Treasury(paid.chain, "other")
    other.create()
    with refused("WrongPda"):
        paid.claim(first, 10, run=other.run)
    with refused("WrongAccount"):
        paid.claim(first, 10, run_collateral=other.vault)
    with refused("WrongProgram"):
        paid.claim(first, 10, token_program=SYSTEM_PROGRAM)


def test_a_token_account_with_a_delegate_is_refused(paid: Treasury) -> None:
    first = paid.wallets[0]
    source = paid.make_collateral(first)
    params = ApproveParams(
        program_id=TOKEN_PROGRAM, source=source, delegate=paid.owner.pubkey(), owner=first.pubkey(), amount=1
    )
    paid.chain.send([approve(params)], [first])
    with refused("WrongAccount"):
        paid.claim(first, 10)


def test_claims_work_while_the_run_is_paused(paid: Treasury) -> None:
    paid.change(paused=True)
    assert paid.state is RunState.Paused
    paid.claim(paid.wallets[0], 50)
