"""The program pays at every moment exactly what ``Allocation.compute_vested`` says, for any numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from math import floor

import pytest
from airdrop_harness import AirdropHarness
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from programs_harness import ProgramChain, refused
from solders.account import Account

from psyche_py.chain.allocation_tree import AllocationTree
from psyche_py.chain.allocations import I64_MAX, I64_MIN, U32_MAX, U64_MAX, Allocation
from psyche_py.chain.pda import SYSTEM_PROGRAM, find_claim, find_token_account

times = st.one_of(
    st.integers(I64_MIN, I64_MAX),
    st.sampled_from([I64_MIN, I64_MIN + 1, -1, 0, 1, I64_MAX - 1, I64_MAX]),
    st.integers(1_600_000_000, 1_900_000_000),
)
durations = st.one_of(st.integers(0, U32_MAX), st.sampled_from([0, 1, 2, U32_MAX - 1, U32_MAX]))
amounts = st.one_of(st.integers(1, U64_MAX), st.sampled_from([1, 2, U64_MAX - 1, U64_MAX]))
offsets = st.one_of(st.none(), st.integers(-3, 3), st.integers(-U32_MAX, 2 * U32_MAX))


@pytest.fixture(scope="module")
def drop() -> AirdropHarness:
    """Without a guarantee, so that each example can put its own list in place; the vault is full."""
    drop = AirdropHarness(ProgramChain())
    drop.create()
    drop.fund(U64_MAX)
    drop.make_collateral(drop.wallets[0])
    drop.make_collateral(drop.authority)
    return drop


def compute_exactly(line: Allocation, now: int) -> int:
    """The rule as a sentence: the released share of the amount is the elapsed share of the duration."""
    if now < line.start:
        return 0
    elapsed = now - line.start
    share = Fraction(1) if line.duration == 0 else min(Fraction(elapsed, line.duration), Fraction(1))
    return floor(line.amount * share)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(start=times, duration=durations, amount=amounts, offset=offsets, absolute=times, nonce=amounts)
@example(start=I64_MIN, duration=U32_MAX, amount=U64_MAX, offset=None, absolute=I64_MAX, nonce=1)
@example(start=I64_MAX, duration=U32_MAX, amount=U64_MAX, offset=None, absolute=I64_MIN, nonce=1)
@example(start=0, duration=U32_MAX, amount=U64_MAX, offset=U32_MAX - 1, absolute=0, nonce=1)
def test_program_and_python_release_the_same(
    drop: AirdropHarness,
    start: int,
    duration: int,
    amount: int,
    offset: int | None,
    absolute: int,
    nonce: int,
) -> None:
    line = Allocation(drop.wallets[0].pubkey(), amount, nonce, start, duration)
    now = absolute if offset is None else min(max(start + offset, I64_MIN), I64_MAX)
    vested = line.compute_vested(now)
    assert vested == compute_exactly(line, now)
    drop.chain.now = now
    drop.chain.advance(0)
    drop.tree = AllocationTree([line])
    with undone(drop, line):
        drop.update(list=drop.pack_list(drop.tree))
        drop.create_claim(drop.wallets[0], nonce)
        if vested < amount:
            with refused("ParamsCollateralAmountIsTooLarge"):
                drop.redeem(line, vested + 1)
        drop.redeem(line, vested)
        assert drop.get_paid(drop.wallets[0]) == vested


@contextmanager
def undone(drop: AirdropHarness, line: Allocation) -> Iterator[None]:
    """Puts back what the block changes: no sum is used up, and the line has no claim."""
    keys = [drop.address, drop.vault, find_token_account(line.wallet, drop.mint)]
    before = [(key, drop.chain.svm.get_account(key)) for key in keys]
    claim = find_claim(drop.address, line.wallet, line.nonce)
    try:
        yield
    finally:
        for key, account in [*before, (claim, Account(0, b"", SYSTEM_PROGRAM))]:
            drop.chain.svm.set_account(key, account)
