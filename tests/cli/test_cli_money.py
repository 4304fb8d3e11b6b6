"""Claims, withdrawals and the end of runs that pay, by the console script.

The runs were played to their end in LiteSVM, at times of the test's choice, and are in the localnet's ledger.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from cli_process import TINY, Cli
from ledger_writer import write_ledger
from localnet_process import running_localnet
from programs_harness import ProgramChain
from solders.pubkey import Pubkey
from token_harness import TokenMint
from treasury_harness import Treasury

from psyche_py.chain.keypair import write_keypair
from psyche_py.chain.pda import TOKEN_2022_PROGRAM, find_participant

pytestmark = [pytest.mark.slow, pytest.mark.processes]
DAY = 24 * 3600


def _play(chain: ProgramChain, run_id: str, mint: TokenMint, end: int, vault: int) -> Treasury:
    """A run that finished at ``end``: two clients have earned 50 points each."""
    treasury = Treasury(chain, run_id, mint=mint)
    treasury.open_funded()
    treasury.play_paid_epoch()
    treasury.fund(vault)
    chain.advance(end - chain.now)
    treasury.finish()
    return treasury


def _list_accounts(treasury: Treasury) -> list[Pubkey]:
    parts = [treasury.run, treasury.vault, treasury.instance, treasury.address, treasury.authorization]
    return [*parts, *(wallet.pubkey() for wallet in treasury.wallets)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Runs "old" (over for 40 days, the vault 20 short) and "young" (for one day, 30 to spare)."""
    home = tmp_path_factory.mktemp("money")
    chain, now = ProgramChain(), int(time.time())
    owner = chain.make_wallet("owner")
    mint = TokenMint(chain, owner, token_program=TOKEN_2022_PROGRAM)
    taxed = TokenMint(chain, owner, "taxed", extensions=["MetadataPointer", "TransferFee"])
    old = _play(chain, "old", mint, now - 40 * DAY, 80)
    young = _play(chain, "young", mint, now - DAY, 130)
    mint.fund(mint.make_account(owner), 1000)
    # one wallet has a claim record of the treasurer's first version, which paid it nothing yet
    first = old.wallets[0].pubkey()
    old.create_participant(old.wallets[0])
    record = chain.svm.get_account(find_participant(old.run, first))
    rent = chain.svm.minimum_balance_for_rent_exemption(25)
    aged = type(record)(rent, bytes(record.data)[:25], record.owner)
    chain.svm.set_account(find_participant(old.run, first), aged)

    keys = [*_list_accounts(old), *_list_accounts(young), find_participant(old.run, first)]
    keys += [owner.pubkey(), mint.address, taxed.address, mint.find_account(owner.pubkey())]
    write_ledger(home / "ledger", chain, dict.fromkeys(keys))
    for name, wallet in (("owner", owner), ("first", old.wallets[0]), ("second", old.wallets[1])):
        write_keypair(home / f"{name}.json", wallet)
    (home / "mints.txt").write_text(f"{mint.address} {taxed.address}")
    with running_localnet("--ledger", str(home / "ledger")) as node:
        yield Cli(home, node.rpc_url)


def test_a_run_that_is_short_pays_partly_then_the_rest_and_ends(world: Cli) -> None:
    claim = ("claim", "-r", "old", "--output", "json", "-k")
    facts = world(*claim, "first.json").json
    assert (facts["claimed"], facts["left"], facts["vault"]) == (50, 0, 30)
    partly = world("claim-rewards", "-r", "old", "-k", "second.json")
    assert partly.code == 0, partly.err
    assert partly.out.splitlines() == [
        "claimed 30  claimed_in_all 30  earned 50  slashed 0  left 20  vault 0",
        "The vault was short: it paid 30 of 50. The rest stays yours to claim.",
    ]
    world(*claim, "second.json").check_error(3, "InsufficientVault", "treasurer-top-up")
    world("close-run", "-r", "old", "-k", "owner.json").check_error(3, "PointsNotClaimed", "claimed")
    nothing = world("withdraw", "-r", "old", "-k", "owner.json")
    nothing.check_error(4, "holds 0 base units, and 20 are earned")

    assert world("treasurer-top-up", "-r", "old", "--amount", 25, "-k", "owner.json").code == 0
    world("claim", "-r", "old", "--amount", 21, "-k", "second.json").check_error(3, "InsufficientPoints")
    facts = world(*claim, "second.json").json
    assert (facts["claimed"], facts["claimed_in_all"], facts["vault"]) == (20, 50, 5)
    world(*claim, "second.json").check_error(4, "nothing to claim")

    world("withdraw", "-r", "old", "-k", "first.json").check_error(3, "WrongAuthority")
    taken = world("withdraw", "-r", "old", "--amount", 2, "--output", "json", "-k", "owner.json").json
    assert taken == {"withdrawn": 2, "vault": 3, "promised": 0}
    closed = world("close-run", "-r", "old", "-k", "owner.json")
    assert (closed.code, closed.out) == (0, "run old closed\n"), closed.err
    assert "old" not in [run["run_id"] for run in world("list-runs", "--output", "json").json]


def test_a_run_that_ended_a_day_ago_keeps_its_vault_for_those_who_earned(world: Cli) -> None:
    owner = ("-r", "young", "-k", "owner.json")
    refused = world("withdraw", *owner)
    refused.check_error(4, "belongs to those who earned", "30 days")
    assert time.strftime("%Y-", time.gmtime(time.time() + 29 * DAY)) in refused.err
    world("close-run", *owner).check_error(3, "PointsNotClaimed")
    for name in ("first", "second"):
        assert world("claim", "-r", "young", "-k", f"{name}.json").code == 0
    world("close-run", *owner).check_error(3, "WithdrawDelayNotOver")


def test_a_mint_of_token_2022_is_judged_by_its_extensions(world: Cli) -> None:
    mint, taxed = (world.home / "mints.txt").read_text().split()
    create = ("create-run", "-r", "new", "--config", TINY, "--earning-rate", 10, "-k", "owner.json", "--mint")
    world(*create, taxed).check_error(3, "MintTransferFee", "metadata is fine")
    world(*create, "1" * 32).check_error(4, "no mint on this cluster")
    made = world(*create, mint)
    assert made.code == 0, made.err
    filled = world("treasurer-top-up", "-r", "new", "--amount", 7, "--mint-first", "-k", "owner.json")
    assert filled.code == 0, filled.err
    assert world("status", "-r", "new", "--output", "json").json["collateral_mint"] == mint
    world("withdraw", "-r", "new", "-k", "owner.json").check_error(3, "RunNotFinished")
