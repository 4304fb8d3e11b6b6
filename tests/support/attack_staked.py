"""Runs of the treasurer's that ask for a bond, with clients who have one: free, in debt, about to join."""

from __future__ import annotations

from typing import Any

from attack_chain import AttackChain
from attack_disputes import VERIFIED, accuse, decide, set_slashing
from attack_funded import RATE, VAULT, FundedRun
from programs_harness import make_p2p_key
from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from spl.token.instructions import MintToParams, create_associated_token_account, mint_to

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_PROGRAM, find_bond, find_token_account
from psyche_py.coordinator.layout import RunState

BOND, HELD = 40, 100
NUM_STAKED = 4


class StakedRun(FundedRun):
    """A funded run that asks for a bond of BOND, has verifiers, and slashes."""

    newcomer: Keypair
    """Has posted its bond and not joined."""
    poster: Keypair
    """Holds collateral; the token account of its bond is there, but not the bond."""
    free: Keypair
    """Took part in the last epoch, has joined no other, and owes nothing."""
    debtor: Keypair
    """Was found guilty in the last epoch."""

    def find_bond(self, user: Keypair) -> Pubkey:
        """Address of a wallet's bond."""
        return find_bond(self.fund, user.pubkey())

    def find_own(self, owner: Pubkey) -> Pubkey:
        """A token account of the run's collateral."""
        return find_token_account(owner, self.mint.pubkey())

    def get_amount(self, owner: Pubkey) -> int:
        """Base units of the run's collateral that ``owner`` has; 0 without an account."""
        data = self.chain.get_state(self.find_own(owner)).data
        return int.from_bytes(data[64:72], "little")

    def get_bond_accounts(self, user: Keypair) -> dict[str, Pubkey]:
        """Accounts of a bond that all its instructions name."""
        bond = self.find_bond(user)
        return {
            "collateral_mint": self.mint.pubkey(),
            "bond": bond,
            "bond_collateral": self.find_own(bond),
            "token_program": TOKEN_PROGRAM,
        }

    def make_post(self, user: Keypair, amount: int, /, **changes: Any) -> Instruction:
        """bond_post."""
        own = {"user": user.pubkey(), "user_collateral": self.find_own(user.pubkey()), "run": self.fund}
        accounts = {**own, **self.get_bond_accounts(user), "system_program": SYSTEM_PROGRAM, **changes}
        return get_program("treasurer").encode("bond_post", accounts, {"amount": amount})

    def make_return(self, user: Keypair, /, **changes: Any) -> Instruction:
        """bond_return."""
        own = {"user": user.pubkey(), "user_collateral": self.find_own(user.pubkey())}
        accounts = {**own, **self.get_bond_accounts(user), "coordinator_account": self.address, **changes}
        return get_program("treasurer").encode("bond_return", accounts, {})

    def make_slash(self, user: Keypair, /, **changes: Any) -> Instruction:
        """bond_slash."""
        accounts = {
            "run": self.fund,
            "run_collateral": self.vault,
            **self.get_bond_accounts(user),
            "coordinator_instance": self.instance,
            "coordinator_account": self.address,
            "coordinator_program": get_program_id("coordinator"),
            **changes,
        }
        return get_program("treasurer").encode("bond_slash", accounts, {})

    def make_join(self, user: Keypair, **changes: Any) -> Instruction:
        """join_run with the wallet's bond."""
        values = {"p2p": make_p2p_key(user), "address_hint": bytes(64), "bond": self.find_bond(user)}
        return self.encode("join_run", user, **{**values, **changes})

    def make_claim(self, user: Keypair, points: int) -> Instruction:
        """participant_claim."""
        arguments = {"claim_earned_points": points}
        return get_program("treasurer").encode("participant_claim", self.get_claim_accounts(user), arguments)

    def equip(self, user: Keypair, held: int = HELD) -> None:
        """A token account with collateral, and one for a bond."""
        chain, mint = self.chain, self.mint.pubkey()
        params = MintToParams(
            program_id=TOKEN_PROGRAM,
            mint=mint,
            dest=self.find_own(user.pubkey()),
            mint_authority=self.owner.pubkey(),
            amount=held,
        )
        chain.commit(
            create_associated_token_account(user.pubkey(), user.pubkey(), mint),
            create_associated_token_account(user.pubkey(), self.find_bond(user), mint),
            mint_to(params),
        )

    def join_staked(self) -> None:
        """Every wallet enters for the next epoch, with its bond."""
        for wallet in self.wallets:
            self.chain.commit(self.make_join(wallet))

    def end_epoch(self) -> None:
        """Through whatever is left of it."""
        self.chain.advance(200)
        while self.state is RunState.RoundTrain:
            self.play_round()
        self.tick(30)
        assert self.state is RunState.WaitingForMembers


def open_staked(
    chain: AttackChain, run_id: str, owner: str, num: int = NUM_STAKED, **config: int
) -> StakedRun:
    """A run whose clients have posted bonds of BOND and joined; each holds HELD - BOND more."""
    run = StakedRun(chain, run_id, owner)
    run.open(0, rate=RATE, **{**VERIFIED, "required_bond": BOND, **config})
    run.wallets = [chain.make_wallet(f"{run_id} client {i}") for i in range(num)]
    set_slashing(run)
    for wallet in run.wallets:
        run.equip(wallet)
        chain.commit(run.make_post(wallet, BOND))
        run.enlist(wallet)
    run.join_staked()
    return run


def build_staked(chain: AttackChain, run_id: str, owner: str) -> StakedRun:
    """A run after an epoch in which a client was found guilty."""
    run = open_staked(chain, run_id, owner)
    run.newcomer, run.poster = (chain.make_wallet(f"{run_id} {name}") for name in ("newcomer", "poster"))
    for wallet in (run.newcomer, run.poster):
        run.equip(wallet)
    chain.commit(run.make_post(run.newcomer, BOND))
    run.start_training()
    duty = accuse(run)
    run.play_round()
    decide(run, True)
    clients = run.account.epoch_clients
    run.debtor, run.free = run.get_wallet(clients[duty.trainer]), run.get_wallet(clients[duty.verifier])
    run.end_epoch()
    run.fill(VAULT)
    return run
