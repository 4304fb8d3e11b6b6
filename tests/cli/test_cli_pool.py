"""``run-manager pool`` by the console script, against a localnet of its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import Cli

pytestmark = pytest.mark.slow

USAGE, CHAIN, RUN_STATE = 2, 3, 4


@pytest.fixture(scope="module")
def authority(chain: Cli) -> Path:
    return chain.make_wallet("authority", 20)


@pytest.fixture(scope="module")
def lender(chain: Cli, authority: Path) -> Path:
    return chain.make_wallet("lender", 5)


def show(chain: Cli, name: str, *arguments: object) -> Any:
    return chain("pool", "show", "-p", name, "--output", "json", *arguments).json


def act(chain: Cli, command: str, name: str, wallet: Path, *arguments: object) -> str:
    done = chain("pool", command, "-p", name, *arguments, "-k", wallet)
    assert done.code == 0, done.err
    return done.out


def test_a_pool_from_creation_to_the_last_claim(chain: Cli, authority: Path, lender: Path) -> None:
    made = act(chain, "create", "gpus", authority, "--new-mint", "--max-deposit", 1000)
    assert made.startswith("pool gpus created, account ")
    facts = show(chain, "gpus")
    assert (facts["metadata"], facts["max_deposit"], facts["deposited"]) == ("gpus", 1000, 0)
    assert facts["claiming_enabled"] is facts["is_frozen"] is False
    assert facts["redeemable_mint"] is None
    assert "gpus" in chain("pool", "list").out
    assert facts["index"] in [pool["index"] for pool in chain("pool", "list", "--output", "json").json]

    # the token is the authority's: it lends 300 of its own, and gives the lender 100
    lent = act(chain, "deposit", "gpus", authority, "--amount", 300, "--mint-first")
    assert lent == "300 of 300 base units in gpus are yours\n"
    assert act(chain, "extract", "gpus", authority, "--amount", 100).startswith("100 base units of ")
    assert act(chain, "extract", "gpus", authority).startswith("200 base units of ")
    assert act(chain, "update", "gpus", authority, "--max-deposit", 300, "--metadata", "full")
    facts = show(chain, "gpus")
    assert (facts["extracted"], facts["collateral_in_vault"], facts["max_deposit"]) == (300, 0, 300)

    enabled = act(chain, "enable-claims", "gpus", authority, "--new-mint")
    facts = show(chain, "gpus")
    assert facts["redeemable_mint"] in enabled
    assert facts["repay_to"] in enabled
    assert act(chain, "repay", "gpus", authority, "--amount", 1000, "--mint-first").startswith("1000 ")
    wallet = chain("wallet", "address", authority).out.strip()
    assert show(chain, "gpus", "--lender", wallet)["lender_claimable"] == 1000
    part = chain("pool", "claim", "-p", "gpus", "--amount", 400, "--output", "json", "-k", authority).json
    assert (part["claimed"], part["claimed_in_all"], part["left"]) == (400, 400, 600)
    assert act(chain, "claim", "gpus", authority).startswith("claimed 600  claimed_in_all 1000  left 0")
    shown = chain("pool", "show", "-p", "gpus", "--lender", wallet).out
    for part_of_it in ("pays lenders", "300 of at most 300", "100.00 %", "claimed 1000", "full"):
        assert part_of_it in shown, shown


def test_a_pool_that_is_repaid_in_the_token_that_was_lent(chain: Cli, authority: Path, lender: Path) -> None:
    """By its index; what is lent is not taken for a repayment."""
    act(chain, "create", "7", lender, "--new-mint", "--max-deposit", 10**12)
    assert show(chain, "7")["index"] == 7
    mint = show(chain, "7")["collateral_mint"]
    act(chain, "deposit", "7", lender, "--amount", 999, "--mint-first")
    act(chain, "enable-claims", "7", lender, "--mint", mint)
    act(chain, "repay", "7", lender, "--amount", 50, "--mint-first")
    facts = show(chain, "7", "--lender", chain("wallet", "address", lender).out.strip())
    assert (facts["collateral_in_vault"], facts["repaid"], facts["lender_claimable"]) == (999, 50, 50)
    nothing = chain("pool", "claim", "-p", "7", "-k", authority)
    nothing.check_error(RUN_STATE, "nothing to claim")


def test_a_frozen_pool_says_so_until_it_goes_on(chain: Cli, authority: Path, lender: Path) -> None:
    act(chain, "create", "cold", authority, "--new-mint", "--max-deposit", 10)
    assert act(chain, "freeze", "cold", authority) == "pool cold is frozen\n"
    assert ", frozen" in chain("pool", "show", "-p", "cold").out
    refused = chain("pool", "deposit", "-p", "cold", "--amount", 5, "--mint-first", "-k", authority)
    refused.check_error(CHAIN, "PoolFreezeIsTrue", "unfreezes it")
    stranger = chain("pool", "freeze", "-p", "cold", "--unfreeze", "-k", lender)
    stranger.check_error(CHAIN, "WrongAuthority", "the pool")
    assert act(chain, "freeze", "cold", authority, "--unfreeze") == "pool cold goes on\n"
    act(chain, "deposit", "cold", authority, "--amount", 5)


def test_metadata_cannot_drive_the_terminal(chain: Cli, authority: Path) -> None:
    hostile = "\x1b[2Jhello\nworld\x07"
    act(chain, "create", "hostile", authority, "--new-mint", "--max-deposit", 1, "--metadata", hostile)
    for shown in (chain("pool", "show", "-p", "hostile").out, chain("pool", "list").out):
        assert "\x1b" not in shown
        assert "\x07" not in shown
        assert "hello\N{REPLACEMENT CHARACTER}world" in shown
    assert show(chain, "hostile")["metadata"] == hostile


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (("show", "-p", "nope"), CHAIN, ("no mining pool", "pool list")),
        (("show", "-p", ""), USAGE, ("cannot be empty",)),
        (("show", "-p", str(2**64)), USAGE, ("no pool's index", "below 2^64")),
        (("show", "-p", "9" * 5000), USAGE, ("no pool's index",)),
        (("show", "-p", "nope", "--lender", "x"), USAGE, ("'x' is no public key",)),
        (("create", "-p", "bad", "--max-deposit", "1"), USAGE, ("Say which token", "--new-mint")),
        (("create", "-p", "bad", "--max-deposit", "1", "--mint", "x"), USAGE, ("no public key",)),
        (
            ("create", "-p", "bad", "--max-deposit", "1", "--new-mint", "--metadata", "x" * 401),
            USAGE,
            ("401 bytes", "400"),
        ),
        (("update", "-p", "bad"), USAGE, ("nothing to change", "--max-deposit")),
        (("deposit", "-p", "nope", "--amount", "1"), CHAIN, ("no mining pool",)),
        (("enable-claims", "-p", "nope"), USAGE, ("Say which token",)),
    ],
)
def test_bad_input_ends_in_one_error_with_a_remedy(
    chain: Cli, authority: Path, arguments: tuple[str, ...], code: int, parts: tuple[str, ...]
) -> None:
    signed = () if arguments[0] == "show" else ("-k", authority)
    chain("pool", *arguments, *signed).check_error(code, *parts)


def test_what_a_pool_refuses_is_explained(chain: Cli, authority: Path, lender: Path) -> None:
    act(chain, "create", "small", authority, "--new-mint", "--max-deposit", 10)
    again = chain("pool", "create", "-p", "small", "--new-mint", "--max-deposit", 10, "-k", lender)
    again.check_error(RUN_STATE, "already")
    empty = chain("pool", "extract", "-p", "small", "-k", authority)
    empty.check_error(RUN_STATE, "is empty")
    early = chain("pool", "repay", "-p", "small", "--amount", 5, "-k", authority)
    early.check_error(RUN_STATE, "no redeemable vault", "enable-claims")
    poor = chain("pool", "deposit", "-p", "small", "--amount", 5, "-k", lender)
    poor.check_error(CHAIN, "holds 0 base units")
    nobody = chain("pool", "enable-claims", "-p", "small", "--new-mint", "-k", authority)
    nobody.check_error(CHAIN, "PoolTotalDepositedCollateralAmountIsZero", "first deposit")
    much = chain("pool", "deposit", "-p", "small", "--amount", 11, "--mint-first", "-k", authority)
    much.check_error(CHAIN, "ParamsCollateralAmountIsTooLarge", "pool show")
    act(chain, "deposit", "small", authority, "--amount", 10)
    raised = chain("pool", "update", "-p", "small", "--max-deposit", 11, "-k", authority)
    raised.check_error(CHAIN, "ParamsMaxDepositIsRaised", "another pool")
    act(chain, "enable-claims", "small", authority, "--new-mint")
    late = chain("pool", "deposit", "-p", "small", "--amount", 1, "-k", authority)
    late.check_error(CHAIN, "PoolClaimingEnabledIsTrue", "pool list")
