"""Who may join, by the console script, against a localnet of its own process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from cli_process import TINY, Cli

from psyche_py.cli.expiry import parse_expiry, show_time
from psyche_py.errors import UsageError

NOW = 1_800_000_000
SYSTEM_PROGRAM = "1" * 32


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("45s", 45), ("90m", 5400), ("12h", 43_200), ("30d", 2_592_000), ("4w", 2_419_200)],
)
def test_durations_count_from_now(text: str, seconds: int) -> None:
    assert parse_expiry(text, NOW) == NOW + seconds


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2030-01-02", "2030-01-02T00:00:00Z"),
        ("2030-01-02T03:04", "2030-01-02T03:04:00Z"),
        ("2030-01-02T03:04:05Z", "2030-01-02T03:04:05Z"),
        ("2030-01-02T03:04:05+02:00", "2030-01-02T01:04:05Z"),
    ],
)
def test_dates_are_utc_unless_they_say_otherwise(text: str, shown: str) -> None:
    assert show_time(parse_expiry(text, NOW)) == shown


@pytest.mark.parametrize(
    "text", ["", "soon", "30", "d", "-3d", "0d", "1.5d", "2020-01-01", "2030-13-01", "1e9s"]
)
def test_what_is_no_time_to_come_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_expiry(text, NOW)
    assert "30d" in caught.value.remedy


def test_never_and_times_beyond_the_calendar() -> None:
    assert parse_expiry("never", NOW) == 0
    assert show_time(2**62) == f"second {2**62}"


@pytest.fixture(scope="module")
def club(chain: Cli) -> tuple[Path, str]:
    """The wallet and address of somebody whose run nobody may join yet."""
    owner = chain.make_wallet("another-owner", 20)
    assert chain("create-run", "-r", "strict-club", "--config", TINY, "-k", owner).code == 0
    return owner, chain("wallet", "address", owner).out.strip()


def _list(chain: Cli, authority: str) -> dict[str, str]:
    """State by grantee."""
    shown = chain("join-authorization-list", "--join-authority", authority, "--output", "json").json
    return {item["grantee"]: item["state"] for item in shown}


@pytest.mark.slow
def test_authorizations_let_in_and_keep_out(chain: Cli, club: tuple[Path, str], stranger: Path) -> None:
    owner, authority = club
    wallet = chain("wallet", "address", stranger).out.strip()
    guest = ("can-join", "-r", "strict-club", "-k", stranger)
    assert chain(*guest).code == 4
    assert chain("join-authorization-create", "--authorizer", wallet, "-k", owner).code == 0
    assert chain(*guest).code == 0
    shown = chain("join-authorization-read", "--join-authority", authority, "--authorizer", wallet).json
    assert (shown["state"], shown["grantee"], shown["scope"]) == ("active", wallet, "CoordinatorJoinRun")
    assert (shown["expires"], shown["expires_unix_timestamp"]) == ("never", 0)

    delegate = chain.make_wallet("delegate", 1)
    added = chain("wallet", "address", delegate).out.strip()
    give = ("join-authorization-delegate", "--join-authority", authority, "--delegates-added", added)
    assert chain(*give, "-k", stranger).code == 0
    mine = ("can-join", "-r", "strict-club", "--authorizer", wallet, "-k", delegate)
    assert chain(*mine).code == 0
    revoked = chain("join-authorization-revoke", "--authorizer", wallet, "-k", owner)
    assert (revoked.code, wallet in revoked.out) == (0, True)
    assert chain(*guest).code == 4
    assert chain(*mine).code == 4
    assert _list(chain, authority)[wallet] == "off"


@pytest.mark.slow
def test_everybody_for_a_month(chain: Cli, club: tuple[Path, str], stranger: Path) -> None:
    owner, authority = club
    everybody = ("join-authorization-create", "--permissionless", "-k", owner)
    made = chain(*everybody, "--expires", "30d")
    assert made.code == 0, made.err
    assert made.out.startswith("everybody may join until 20")
    assert "authorized until 20" in chain("can-join", "-r", "strict-club", "-k", stranger).out
    read = ("join-authorization-read", "--join-authority", authority, "--permissionless")
    shown = chain(*read).json
    assert shown["grantee"] == "permissionless"
    assert 29 < (shown["expires_unix_timestamp"] - time.time()) / 86_400 < 31
    table = chain("join-authorization-list", "--join-authority", authority).out
    assert "permissionless" in table
    assert shown["expires"] in table

    assert chain(*everybody, "--expires", "2099-01-01").code == 0
    assert chain(*read).json["expires"] == "2099-01-01T00:00:00Z"
    assert chain("join-authorization-delete", "--permissionless", "-k", owner).code == 0, "Psyche's name"
    shown = chain(*read).json
    assert (shown["state"], shown["expires"]) == ("off", "2099-01-01T00:00:00Z")
    assert chain(*everybody).code == 0
    assert chain(*read).json["expires"] == "never"


@pytest.mark.slow
def test_bad_words_are_answered(chain: Cli, club: tuple[Path, str], stranger: Path) -> None:
    owner, authority = club
    create = ("join-authorization-create", "-k", owner)
    chain(*create).check_error(2, "Say who", "--permissionless")
    chain(*create, "--authorizer", SYSTEM_PROGRAM).check_error(2, "write --permissionless")
    chain(*create, "--permissionless", "--expires", "soon").check_error(2, "no time", "30d")
    chain(*create, "--permissionless", "--expires", "2020-01-01").check_error(2, "not in the future")
    chain("join-authorization-revoke", "--authorizer", authority, "-k", stranger).check_error(
        4, "has not authorized", "join-authorization-list"
    )
    unknown = chain("wallet", "address", stranger).out.strip()
    assert "authorized nobody" in chain("join-authorization-list", "--join-authority", unknown).out
