"""Random histories of a mining pool: program and plain model agree on every refusal and every amount."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mining_pool_harness import U64_MAX, PoolHarness
from mining_pool_model import PoolModel
from programs_harness import ProgramChain, refused
from solders.pubkey import Pubkey

from psyche_py.chain.mining_pool import PoolHandle, compute_pool_claimable
from psyche_py.chain.pda import TOKEN_2022_PROGRAM, TOKEN_PROGRAM

NUM_LENDERS = 3


@dataclass(frozen=True)
class Act:
    """``eighths`` of what is possible, and ``delta`` beyond: both sides of each limit are met often."""

    kind: str
    who: int
    eighths: int
    delta: int

    def scale(self, possible: int) -> int:
        return min(max(possible * self.eighths // 8 + self.delta, 0), U64_MAX)


KINDS = ("deposit", "deposit", "extract", "repay", "repay", "give_back", "claim", "claim", "claim", "limit")
acts = st.builds(
    Act,
    kind=st.sampled_from((*KINDS, "freeze", "enable")),
    who=st.integers(0, NUM_LENDERS - 1),
    eighths=st.sampled_from((0, 1, 3, 5, 8, 8)),
    delta=st.sampled_from((-1, 0, 0, 1)),
)
programs = st.sampled_from((TOKEN_PROGRAM, TOKEN_2022_PROGRAM))
fortunes = st.sampled_from((3, 1000, 10**9, U64_MAX // 8)).flatmap(
    lambda most: st.lists(st.integers(0, most), min_size=NUM_LENDERS, max_size=NUM_LENDERS)
)


class History:
    """The program and the model, side by side."""

    def __init__(self, held: list[int], same_mint: bool, token_program: Pubkey) -> None:
        self.pool = PoolHarness(ProgramChain(), same_mint=same_mint, token_program=token_program)
        self.pool.tokens.open(self.pool.authority.pubkey(), self.pool.collateral)
        self.pool.create()
        self.users = [self.pool.make_lender(f"lender {i}", amount) for i, amount in enumerate(held)]
        self.model = PoolModel(NUM_LENDERS)
        self.issued = sum(held) if same_mint else 0
        """Of the redeemable mint: a token's supply is a u64."""
        self.payouts = [0] * NUM_LENDERS
        """Tokens that came out of the vault, whatever became of them."""

    def play(self, act: Act) -> None:
        getattr(self, act.kind)(act)
        self.check()

    def agree(self, expected: str | None, call: Callable[..., None], *arguments: object) -> None:
        """The program gives the model's answer."""
        if expected is None:
            call(*arguments)
            return
        with refused(expected):
            call(*arguments)

    def deposit(self, act: Act) -> None:
        room = max(self.model.max_deposit - self.model.total, 0)
        held = self.get_held(act.who)
        # more than is held is the token program's refusal, which other tests see
        amount = min(act.scale(min(room, held)), held)
        self.agree(self.model.deposit(act.who, amount), self.pool.deposit, self.users[act.who], amount)

    def extract(self, act: Act) -> None:
        amount = act.scale(self.model.vault)
        self.agree(self.model.extract(amount), self.pool.extract, amount)

    def limit(self, act: Act) -> None:
        amount = act.scale(self.model.max_deposit if self.model.total else U64_MAX)
        self.agree(self.model.limit(amount), self.pool.update, amount)

    def freeze(self, act: Act) -> None:
        # thawed more often than frozen, or histories would stand still
        self.model.is_frozen = act.eighths == 1
        self.pool.update(freeze=self.model.is_frozen)

    def enable(self, act: Act) -> None:
        self.agree(self.model.enable(), self.pool.enable)

    def repay(self, act: Act) -> None:
        amount = act.scale(min(1000, U64_MAX - self.issued) if act.who else (U64_MAX - self.issued) // 4)
        amount = min(amount, U64_MAX - self.issued)
        self.issued += amount
        self.model.repaid += amount
        self.pool.repay(amount)

    def claim(self, act: Act) -> None:
        amount = act.scale(self.model.get_claimable(act.who))
        refusal = self.model.claim(act.who, amount)
        self.payouts[act.who] += amount if refusal is None else 0
        self.agree(refusal, self.pool.claim, self.users[act.who], amount)

    def give_back(self, act: Act) -> None:
        """A lender sends all it has of the token back: more is repaid in all than there are tokens."""
        user = self.users[act.who]
        source = self.pool.tokens.find(user.pubkey(), self.pool.redeemable)
        amount = self.pool.tokens.get_amount(source)
        self.model.repaid += amount
        self.pool.tokens.open(self.pool.redeemable_authority, self.pool.redeemable)
        self.pool.tokens.move(source, self.pool.redeemable_vault, user, amount)

    def get_held(self, who: int) -> int:
        return self.pool.tokens.get_amount(
            self.pool.tokens.find(self.users[who].pubkey(), self.pool.collateral)
        )

    def check(self) -> None:
        """Every number on chain is the model's."""
        model, account, tokens = self.model, self.pool.pool, self.pool.tokens
        assert account.max_deposit_collateral_amount == model.max_deposit
        assert account.total_deposited_collateral_amount == model.total <= model.max_deposit
        assert account.total_extracted_collateral_amount == model.extracted
        assert account.total_claimed_redeemable_amount == sum(model.claimed) == sum(self.payouts)
        assert (account.claiming_enabled, account.freeze) == (model.is_enabled, model.is_frozen)
        assert tokens.get_amount(self.pool.vault) == model.vault
        in_vault = model.redeemable
        if self.pool.chain.get_data(self.pool.redeemable_vault) is not None:
            assert tokens.get_amount(self.pool.redeemable_vault) == in_vault
        for who, user in enumerate(self.users):
            record = self.pool.get_lender(user)
            assert record.deposited_collateral_amount == model.deposited[who]
            assert record.claimed_redeemable_amount == model.claimed[who]
            handle = PoolHandle(self.pool.address, account, model.vault, in_vault, record)
            assert handle.claimable == model.get_claimable(who)

    def settle(self) -> None:
        """At the end everybody takes what is left: each has the floor of its share, and nobody more."""
        model = self.model
        if model.is_frozen:
            model.is_frozen = False
            self.pool.update(freeze=False)
        if not model.is_enabled:
            self.agree(model.enable(), self.pool.enable)
        if not model.is_enabled:
            return  # nobody has lent
        for who in reversed(range(NUM_LENDERS)):
            self.claim(Act("claim", who, 8, 1))
            self.claim(Act("claim", who, 8, 0))
        self.check()
        assert self.payouts == [model.get_share(who) for who in range(NUM_LENDERS)]
        assert model.repaid - NUM_LENDERS < sum(self.payouts) <= model.repaid


@pytest.mark.timeout(600)
@settings(max_examples=60, deadline=None)
@given(held=fortunes, same_mint=st.booleans(), program=programs, history=st.lists(acts, max_size=30))
def test_random_histories(held: list[int], same_mint: bool, program: Pubkey, history: list[Act]) -> None:
    play(History(held, same_mint, program), history)


@pytest.mark.timeout(600)
@settings(max_examples=60, deadline=None)
@given(held=fortunes, same_mint=st.booleans(), program=programs, history=st.lists(acts, max_size=30))
def test_random_histories_of_a_pool_that_pays(
    held: list[int], same_mint: bool, program: Pubkey, history: list[Act]
) -> None:
    """All that the lenders hold is lent first, so that most of what follows is about claims."""
    opening = [Act("limit", 0, 8, 0), *(Act("deposit", who, 8, 0) for who in range(NUM_LENDERS))]
    play(History(held, same_mint, program), [*opening, Act("enable", 0, 0, 0), *history])


def play(world: History, history: list[Act]) -> None:
    for act in history:
        world.play(act)
    world.settle()


@given(
    repaid=st.integers(0, 2**128 - 1),
    deposits=st.lists(st.integers(0, 2**62), min_size=1, max_size=4),
)
def test_floors_never_add_up_to_more_than_was_repaid(repaid: int, deposits: list[int]) -> None:
    total = sum(deposits)
    paid = [
        compute_pool_claimable(total_repaid=repaid, deposited=amount, total_deposited=total, claimed=0)
        for amount in deposits
    ]
    assert sum(paid) <= repaid
    if total:
        assert sum(paid) > repaid - len(deposits)
