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
    find_bond,
    find_participant,
    find_treasurer_run,
)
from psyche_py.chain.token import create_token_account
from psyche_py.coordinator.layout import ACCOUNT_SIZE, RunState
from psyche_py.coordinator.model import Progress
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

    def open_funded(self, *, is_created: bool = False) -> None:
        """Created, configured and resumed, with two wallets that may join, at RATE points an epoch."""
        if not is_created:
            self.create()
        self.change(config=make_config().to_bytes(), epoch_earning_rate_total_shared=RATE)
        self.change(model=make_model().to_bytes(), paused=False)
        if self.chain.get_data(self.authorization) is None:
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
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "participant": find_participant(self.run, user.pubkey()),
            "token_program": self.mint.program,
            **changes,
        }
        args = {"claim_earned_points": points}
        self.chain.send([get_program("treasurer").encode("participant_claim", accounts, args)], [user])

    def migrate_participant(self, user: Pubkey, payer: Keypair, **changes: Pubkey) -> None:
        accounts = {
            "payer": payer.pubkey(),
            "user": user,
            "run": self.run,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "participant": find_participant(self.run, user),
            "system_program": SYSTEM_PROGRAM,
            **changes,
        }
        self.chain.send([get_program("treasurer").encode("participant_migrate", accounts, {})], [payer])

    # ---- bonds --------------------------------------------------------------------------------------

    def find_bond(self, user: Pubkey) -> Pubkey:
        return find_bond(self.run, user)

    def find_bond_collateral(self, user: Pubkey) -> Pubkey:
        return self.mint.find_account(self.find_bond(user))

    def post_bond(self, user: Keypair, amount: int, **changes: Pubkey) -> None:
        """The bond's token account is made with it, as clients do."""
        bond = self.find_bond(user.pubkey())
        accounts = {
            "user": user.pubkey(),
            "user_collateral": self.mint.find_account(user.pubkey()),
            "run": self.run,
            "collateral_mint": self.mint.address,
            "bond": bond,
            "bond_collateral": self.mint.find_account(bond),
            "token_program": self.mint.program,
            "system_program": SYSTEM_PROGRAM,
            **changes,
        }
        make = create_token_account(user.pubkey(), bond, self.mint.address, self.mint.program)
        post = get_program("treasurer").encode("bond_post", accounts, {"amount": amount})
        self.chain.send([make, post], [user])

    def slash_bond(self, user: Pubkey, payer: Keypair, **changes: Pubkey) -> None:
        bond = self.find_bond(user)
        accounts = {
            "run": self.run,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.address,
            "bond": bond,
            "bond_collateral": self.mint.find_account(bond),
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "token_program": self.mint.program,
            **changes,
        }
        self.chain.send([get_program("treasurer").encode("bond_slash", accounts, {})], [payer])

    def return_bond(self, user: Keypair, **changes: Pubkey) -> None:
        bond = self.find_bond(user.pubkey())
        accounts = {
            "user": user.pubkey(),
            "user_collateral": self.mint.find_account(user.pubkey()),
            "collateral_mint": self.mint.address,
            "bond": bond,
            "bond_collateral": self.mint.find_account(bond),
            "coordinator_account": self.address,
            "token_program": self.mint.program,
            **changes,
        }
        self.chain.send([get_program("treasurer").encode("bond_return", accounts, {})], [user])

    def get_bond(self, user: Pubkey) -> dict[str, Any] | None:
        """What the bond's account says; None when there is none."""
        data = self.chain.get_data(self.find_bond(user))
        return get_program("treasurer").decode_account("Bond", data) if data else None

    def encode_withdraw(self, signer: Keypair, amount: int, **changes: Pubkey) -> Instruction:
        accounts = {
            "authority": signer.pubkey(),
            "authority_collateral": self.mint.find_account(signer.pubkey()),
            "run": self.run,
            "run_collateral": self.vault,
            "collateral_mint": self.mint.address,
            "coordinator_account": self.address,
            "token_program": self.mint.program,
            **changes,
        }
        return get_program("treasurer").encode("run_withdraw", accounts, {"amount": amount})

    def withdraw(self, amount: int, signer: Keypair | None = None, **changes: Pubkey) -> None:
        signer = signer or self.owner
        self.chain.send([self.encode_withdraw(signer, amount, **changes)], [signer])

    def encode_close(self, signer: Keypair, **changes: Pubkey) -> Instruction:
        accounts = {
            "authority": signer.pubkey(),
            "spill": signer.pubkey(),
            "run": self.run,
            "run_collateral": self.vault,
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            "token_program": self.mint.program,
            **changes,
        }
        return get_program("treasurer").encode("run_close", accounts, {})

    def close(self, signer: Keypair | None = None, **changes: Pubkey) -> None:
        signer = signer or self.owner
        self.chain.send([self.encode_close(signer, **changes)], [signer])

    def finish(self) -> None:
        """The owner ends a run that waits for members: paused, set to its last step, resumed."""
        self.change(paused=True)
        last = Progress(step=self.account.config.total_steps)
        self.change(progress=last.to_bytes())
        self.change(paused=False)
        assert self.state is RunState.Finished

    def set_entry(self, number: int, **fields: int) -> None:
        """Points of an entry, behind the program's back."""
        account = self.chain.svm.get_account(self.address)
        record = self.account.copy().record
        for name, value in fields.items():
            record["entries"][number][name] = value
        changed = type(account)(account.lamports, record.tobytes(), account.owner)
        self.chain.svm.set_account(self.address, changed)

    def get_claimed(self, number: int) -> int:
        """Points of an entry that the coordinator knows to be paid."""
        return int(self.account.record["entries"][number]["claimed"])

    def get_participant(self, user: Pubkey) -> dict[str, Any]:
        """The record of what a user has claimed."""
        data = self.chain.get_data(find_participant(self.run, user))
        assert data is not None
        return get_program("treasurer").decode_account("Participant", data)

    def get_run(self) -> dict[str, Any]:
        """The treasurer's run account."""
        data = self.chain.get_data(self.run)
        assert data is not None
        return get_program("treasurer").decode_account("Run", data)
