"""A run that pays: created through the treasurer, with a vault, claims and withdrawals."""

from __future__ import annotations

from typing import Any

from programs_harness import ANYBODY, ProgramChain, RunHarness, make_config, make_model
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from token_harness import TokenMint

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    find_participant,
    find_treasurer_run,
)
from psyche_py.coordinator.layout import ACCOUNT_SIZE, RunState
from psyche_py.coordinator.pda import compute_treasurer_index

RATE = 100


class Treasury(RunHarness):
    """A run created through the treasurer, with a mint of its own."""

    def __init__(self, chain: ProgramChain, run_id: str = "run", mint: TokenMint | None = None) -> None:
        super().__init__(chain, run_id)
        self.index = compute_treasurer_index(run_id)
        self.run = find_treasurer_run(self.index)
        self.mint = mint or TokenMint(chain, self.owner)
        self.vault = self.mint.find_account(self.run)

    def encode_create(self, **changes: Any) -> Instruction:
        accounts = {
            "payer": self.owner.pubkey(),
            "run": self.run,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.address,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
            "token_program": self.mint.program,
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
        self.mint.fund(self.vault, amount)

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
            "user_collateral": self.mint.find_account(user.pubkey()),
            "run": self.run,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.address,
            "coordinator_account": self.address,
            "participant": find_participant(self.run, user.pubkey()),
            "token_program": self.mint.program,
            **changes,
        }
        args = {"claim_earned_points": points}
        self.chain.send([get_program("treasurer").encode("participant_claim", accounts, args)], [user])

    def get_run(self) -> dict[str, Any]:
        """The treasurer's run account."""
        data = self.chain.get_data(self.run)
        assert data is not None
        return get_program("treasurer").decode_account("Run", data)
