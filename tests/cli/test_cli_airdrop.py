"""``run-manager airdrop`` by the console script, against a localnet of its own process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_process import Cli
from localnet_process import Localnet

pytestmark = pytest.mark.slow

USAGE, CHAIN, RUN_STATE = 2, 3, 4
NOBODY = "11111111111111111111111111111111"


@pytest.fixture(scope="module")
def wallets(chain: Cli, owner: Path, stranger: Path) -> dict[str, str]:
    """Addresses by name."""
    found = {"owner": owner, "stranger": stranger}
    return {name: chain("wallet", "address", path).out.strip() for name, path in found.items()}


@pytest.fixture(scope="module")
def listed(chain: Cli, wallets: dict[str, str]) -> Path:
    """The stranger gets 700 at once, in two lines, and 1000 after 2100; the owner 300."""
    path = chain.home / "list.csv"
    path.write_text(
        "wallet,nonce,start,duration,amount\n"
        f"{wallets['stranger']},0,2020-01-01,86400,500\n"
        f"{wallets['stranger']},1,0,0,200\n"
        f"{wallets['stranger']},2,2100-01-01,86400,1000\n"
        f"{wallets['owner']},0,0,0,300\n"
    )
    return path


def show(chain: Cli, airdrop_id: int, *arguments: object) -> dict[str, Any]:
    facts = chain("airdrop", "show", "--id", airdrop_id, "--output", "json", *arguments).json
    assert isinstance(facts, dict)
    return facts


def create(chain: Cli, airdrop_id: int, listed: Path, owner: Path, *arguments: object) -> dict[str, Any]:
    flags = ("--id", airdrop_id, "--allocations", listed, "--output", "json", "-k", owner)
    facts = chain("airdrop", "create", *flags, *arguments).json
    assert isinstance(facts, dict)
    return facts


def test_a_list_is_paid_and_guarded(
    chain: Cli, owner: Path, stranger: Path, wallets: dict[str, str], listed: Path
) -> None:
    made = create(chain, 7, listed, owner, "--new-mint", "--metadata", "for testers")
    assert (made["authority"], made["allocated"], made["vault_amount"]) == (wallets["owner"], 2000, 2000)
    # 90 days after the last line has vested
    assert (made["guaranteed"], made["guaranteed_until_unix_timestamp"]) == (True, 4102444800 + 91 * 86400)

    mine = ("--allocations", listed, "--wallet", wallets["stranger"])
    lines = show(chain, 7, *mine)["lines"]
    assert [(line["amount"], line["vested"], line["redeemable"]) for line in lines] == [
        (500, 500, 500),
        (200, 200, 200),
        (1000, 0, 0),
    ]
    redeem = ("airdrop", "redeem", "--id", 7, "--allocations", listed, "-k", stranger)
    several = chain(*redeem, "--amount", 10)
    several.check_error(USAGE, "2 lines", "--nonce")
    assert chain(*redeem, "--nonce", 0, "--amount", 10, "--output", "json").json == {
        "redeemed": 10,
        "redeemed_in_all": 10,
        "left": 490,
    }
    done = chain(*redeem)
    assert (done.code, done.out) == (0, "redeemed 690  redeemed_in_all 700  left 0\n"), done.err
    chain(*redeem).check_error(RUN_STATE, "0 base units", "500 have vested, 500 were redeemed")
    chain(*redeem, "--nonce", 2).check_error(RUN_STATE, "0 have vested", "Wait")
    chain(*redeem, "--nonce", 0, "--amount", 1).check_error(RUN_STATE, "no more")
    facts = show(chain, 7)
    assert (facts["redeemed"], facts["vault_amount"], facts["still_promised"]) == (700, 1300, 1300)

    withdraw = ("airdrop", "withdraw", "--id", 7)
    chain(*withdraw, "-k", owner).check_error(RUN_STATE, "0 base units", "1300 are promised until 2100-04-02")
    chain(*withdraw, "--amount", 1, "-k", owner).check_error(RUN_STATE, "not 1", "guarantee ends")
    second = chain.home / "second.csv"
    second.write_text(f"wallet,amount\n{wallets['owner']},2000\n")
    update = ("airdrop", "update", "--id", 7, "-k", owner)
    chain(*update, "--allocations", second).check_error(CHAIN, "AirdropIsGuaranteed", "guarantee ends")
    chain(*update, "--guaranteed-until", "2030-01-01").check_error(CHAIN, "ParamsGuaranteeIsTooShort")


def test_claims_are_frozen_and_thawed(chain: Cli, owner: Path, stranger: Path, listed: Path) -> None:
    create(chain, 8, listed, owner, "--new-mint", "--guaranteed-until", 4102444800)
    freeze = ("airdrop", "freeze", "--id", 8)
    chain(*freeze, "-k", stranger).check_error(RUN_STATE, "belongs to", "-k")
    assert chain(*freeze, "-k", owner).out == "claims of airdrop 8 are frozen\n"
    redeem = ("airdrop", "redeem", "--id", 8, "--allocations", listed, "-k", stranger)
    chain(*redeem).check_error(RUN_STATE, "frozen", "stays yours")
    assert show(chain, 8)["claims_frozen"] is True
    assert chain(*freeze, "--thaw", "-k", owner).out == "claims of airdrop 8 are open\n"
    assert chain(*redeem).code == 0


def test_without_guarantee_the_list_is_replaced_and_the_rest_taken_back(
    chain: Cli, owner: Path, stranger: Path, wallets: dict[str, str], listed: Path
) -> None:
    made = create(chain, 9, listed, owner, "--new-mint", "--no-guarantee")
    assert (made["guaranteed"], made["withdrawable"]) == (False, 2000)
    second = chain.home / "replaced.csv"
    second.write_text(f"wallet,amount\n{wallets['stranger']},42\n")
    update = ("airdrop", "update", "--id", 9, "--allocations", second, "-k", owner)
    changed = chain(*update, "--guaranteed-until", 4102444800, "--metadata", "again", "--output", "json").json
    assert (changed["allocated"], changed["metadata"], changed["withdrawable"]) == (42, "again", 1958)
    old = chain("airdrop", "redeem", "--id", 9, "--allocations", listed, "-k", stranger)
    old.check_error(USAGE, "not the list of airdrop 9", wallets["owner"])
    withdraw = ("airdrop", "withdraw", "--id", 9, "-k", owner)
    assert chain(*withdraw, "--amount", 1000, "--to", wallets["stranger"]).code == 0
    assert chain(*withdraw).out == "958 base units withdrawn\n"
    assert show(chain, 9)["vault_amount"] == 42
    assert chain("airdrop", "fund", "--id", 9, "--amount", 8, "-k", owner).code == 0
    assert chain("airdrop", "fund", "--id", 9, "--amount", 1000, "-k", stranger).code == 0
    assert show(chain, 9)["vault_amount"] == 1050
    poor = chain("airdrop", "fund", "--id", 9, "--amount", 1, "-k", stranger)
    poor.check_error(CHAIN, "holds 0 base units")
    given = chain("airdrop", "show", "--id", 9)
    assert given.code == 0
    assert "guaranteed until 2100-01-01 00:00:00 UTC" in given.out


def test_funding_happens_with_the_creation_or_not_at_all(
    chain: Cli, owner: Path, stranger: Path, listed: Path
) -> None:
    mint = create(chain, 14, listed, owner, "--new-mint", "--no-guarantee")["mint"]
    assert chain("airdrop", "withdraw", "--id", 14, "-k", owner).out == "2000 base units withdrawn\n"
    flags = ("--mint", mint, "--fund")
    missing = chain("airdrop", "create", "--id", 10, "--allocations", listed, *flags, "-k", stranger)
    missing.check_error(CHAIN, "holds 0 base units")
    chain("airdrop", "show", "--id", 10).check_error(CHAIN, "no airdrop 10")
    assert create(chain, 10, listed, owner, *flags)["vault_amount"] == 2000
    assert create(chain, 15, listed, owner, "--mint", mint)["vault_amount"] == 0


def test_an_id_that_is_taken_costs_nothing(
    chain: Cli, owner: Path, stranger: Path, wallets: dict[str, str], listed: Path, localnet: Localnet
) -> None:
    create(chain, 11, listed, owner, "--new-mint")
    before = localnet.call("getBalance", wallets["stranger"])["value"]
    again = chain("airdrop", "create", "--id", 11, "--allocations", listed, "--new-mint", "-k", stranger)
    again.check_error(RUN_STATE, "an airdrop 11 already", "another id")
    assert localnet.call("getBalance", wallets["stranger"])["value"] == before


def test_metadata_cannot_write_to_the_terminal(chain: Cli, owner: Path, listed: Path) -> None:
    text = "\x1b[2Jgone\nid 99"
    create(chain, 12, listed, owner, "--new-mint", "--metadata", text)
    shown = chain("airdrop", "show", "--id", 12).out
    assert "\x1b" not in shown
    assert "metadata         ?[2Jgone?id 99\n" in shown
    assert show(chain, 12)["metadata"] == text


def test_wallets_that_are_not_listed(chain: Cli, owner: Path, listed: Path) -> None:
    create(chain, 13, listed, owner, "--new-mint")
    other = chain.make_wallet("unlisted", 1)
    redeem = ("airdrop", "redeem", "--id", 13, "--allocations", listed)
    chain(*redeem, "-k", other).check_error(RUN_STATE, "not in the list", "-k")
    chain(*redeem, "--nonce", 9, "-k", owner).check_error(RUN_STATE, "with nonce 9")
    seen = chain("airdrop", "show", "--id", 13, "--allocations", listed, "--wallet", NOBODY)
    seen.check_error(RUN_STATE, "not in the list")


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("create",), ("which token", "--new-mint")),
        (("create", "--new-mint", "--mint", NOBODY), ("which token",)),
        (("create", "--mint", "nobody"), ("no public key", "base58")),
        (("create", "--new-mint", "--no-guarantee", "--guaranteed-until", "1"), ("contradict",)),
        (("create", "--new-mint", "--guaranteed-until", "soon"), ("no moment", "ISO 8601")),
        (("create", "--new-mint", "--guaranteed-until", str(2**63)), ("no moment",)),
        (("update", "--guaranteed-until", "soon"), ("no moment",)),
    ],
)
def test_flags_that_say_nothing_or_too_much(cli: Cli, flags: tuple[str, ...], parts: tuple[str, ...]) -> None:
    (cli.home / "list.csv").write_text(f"wallet,amount\n{NOBODY},1\n")
    name, *rest = flags
    done = cli("airdrop", name, "--id", 1, "--allocations", "list.csv", *rest, "-u", "http://127.0.0.1:9")
    done.check_error(USAGE, *parts)


def test_lists_that_cannot_be_read(cli: Cli) -> None:
    create = ("airdrop", "create", "--id", 1, "--new-mint", "--allocations")
    cli(*create, "none.csv").check_error(USAGE, "none.csv", "--allocations")
    (cli.home / "bad.csv").write_text(f"wallet,amount\n{NOBODY},1\n{NOBODY},many\n")
    cli(*create, "bad.csv").check_error(USAGE, "bad.csv, line 3", "'many'")
    cli("airdrop", "update", "--id", 1).check_error(USAGE, "nothing to change", "--allocations")
    cli("airdrop", "show", "--id", 1, "--wallet", NOBODY).check_error(USAGE, "--allocations")
    long = cli("airdrop", "create", "--id", 2**64, "--new-mint", "--allocations", "bad.csv")
    assert long.code == USAGE
