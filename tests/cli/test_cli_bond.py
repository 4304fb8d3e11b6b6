"""``run-manager bond`` and joining a run that asks for one, by the console script over a localnet.

A run whose clients have bonds was played in LiteSVM until one was found guilty; the localnet's ledger has it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from attack_chain import AttackChain
from attack_disputes import SLASH
from attack_staked import BOND, HELD, StakedRun, build_staked
from cli_process import TINY, Cli
from ledger_writer import write_ledger
from localnet_process import running_localnet
from solders.pubkey import Pubkey

from psyche_py.chain.keypair import write_keypair

pytestmark = [pytest.mark.slow, pytest.mark.processes]
CHAIN, RUN_STATE, USAGE = 3, 4, 2
RUN = ("-r", "staked")


def _list_accounts(run: StakedRun) -> list[Pubkey]:
    users = [*run.wallets, run.newcomer, run.poster, run.owner]
    wallets = [user.pubkey() for user in users]
    bonds = [run.find_bond(user) for user in users]
    shared = [run.fund, run.vault, run.instance, run.address, run.authorization, run.mint.pubkey()]
    return [*shared, *wallets, *bonds, *(run.find_own(owner) for owner in (*wallets, *bonds))]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Wallets "free", "debtor", "poster" (has no bond), "joined" (the next epoch), and the run's "owner"."""
    home = tmp_path_factory.mktemp("bonds")
    chain = AttackChain()
    run = build_staked(chain, "staked", "owner")
    joined = next(wallet for wallet in run.wallets if wallet not in (run.free, run.debtor))
    chain.commit(run.make_join(joined))
    found = [key for key in _list_accounts(run) if chain.svm.get_account(key) is not None]
    write_ledger(home / "ledger", chain, dict.fromkeys(found))
    names = {
        "free": run.free,
        "debtor": run.debtor,
        "poster": run.poster,
        "owner": run.owner,
        "joined": joined,
    }
    for name, wallet in names.items():
        write_keypair(home / f"{name}.json", wallet)
    (home / "debtor.txt").write_text(str(run.debtor.pubkey()))
    with running_localnet("--ledger", str(home / "ledger")) as node:
        yield Cli(home, node.rpc_url)


def _show(world: Cli, name: str) -> dict[str, int]:
    facts = world("bond", "show", *RUN, "--output", "json", "-k", f"{name}.json").json
    facts.pop("address")
    return dict(facts)


def test_a_bond_is_posted_and_opens_the_run(world: Cli) -> None:
    wallet = ("-k", "poster.json")
    assert _show(world, "poster") == {"bond": 0, "required": BOND, "missing": BOND, "debt": 0}
    refused = world("join", *RUN, *wallet)
    remedy = f"run-manager bond post -r staked --amount {BOND}"
    refused.check_error(RUN_STATE, f"asks for a bond of {BOND}", remedy)
    part = world("bond", "post", *RUN, "--amount", BOND - 1, *wallet)
    assert part.code == 0, part.err
    assert part.out.startswith(f"bond {BOND - 1}  required {BOND}  missing 1  debt 0  address ")
    world("join", *RUN, *wallet).check_error(RUN_STATE, f"has posted {BOND - 1}", "--amount 1")
    rest = world("bond", "post", *RUN, "--output", "json", *wallet).json
    assert (rest["bond"], rest["missing"]) == (BOND, 0)
    world("bond", "post", *RUN, *wallet).check_error(USAGE, "no more than your bond", "--amount")
    # the bond is enough: what is missing now is the training data
    world("join", *RUN, "--data", "none", *wallet).check_error(USAGE, "shards at none")


def test_what_cannot_be_posted(world: Cli) -> None:
    too_much = world("bond", "post", *RUN, "--amount", 10 * HELD, "-k", "poster.json")
    too_much.check_error(CHAIN, f"not {10 * HELD}", "Get some of mint")
    assert world("bond", "post", *RUN, "--amount", 0, "-k", "poster.json").code == USAGE
    world("bond", "post", "-r", "missing", "--amount", 1, "-k", "poster.json").check_error(
        CHAIN, "no run 'missing'", "list-runs"
    )


def test_a_bond_is_not_returned_while_it_is_at_stake(world: Cli) -> None:
    refused = world("bond", "return", *RUN, "-k", "joined.json")
    refused.check_error(CHAIN, "BondInUse", "epoch")
    assert _show(world, "joined")["bond"] == BOND


def test_a_free_client_gets_its_bond_back_once(world: Cli) -> None:
    back = world("bond", "return", *RUN, "-k", "free.json")
    assert (back.code, back.out) == (0, f"returned {BOND}  slashed 0\n"), back.err
    assert _show(world, "free")["bond"] == 0
    world("bond", "return", *RUN, "-k", "free.json").check_error(RUN_STATE, "no bond", "nothing to return")


def test_a_debt_is_taken_from_the_bond_by_anybody_once(world: Cli) -> None:
    debtor = (world.home / "debtor.txt").read_text()
    assert _show(world, "debtor") == {"bond": BOND, "required": BOND, "missing": SLASH, "debt": SLASH}
    shown = world("bond", "show", *RUN, "--wallet", debtor)
    assert shown.out.startswith(f"bond {BOND}  required {BOND}  missing {SLASH}  debt {SLASH}  address "), (
        shown.err
    )
    refused = world("join", *RUN, "-k", "debtor.json")
    refused.check_error(RUN_STATE, f"owes {SLASH}", f"bond post -r staked --amount {SLASH}")
    taken = world("bond", "slash", *RUN, "--output", "json", "-k", "owner.json").json
    assert taken == {"slashed": {debtor: SLASH}}
    again = world("bond", "slash", *RUN, "-k", "owner.json")
    assert (again.code, again.out) == (0, "Nobody with a bond owes anything.\n")
    assert _show(world, "debtor") == {"bond": BOND - SLASH, "required": BOND, "missing": SLASH, "debt": 0}
    back = world("bond", "return", *RUN, "--output", "json", "-k", "debtor.json").json
    assert back == {"returned": BOND - SLASH, "slashed": 0}


def test_a_run_made_to_ask_for_a_bond(world: Cli) -> None:
    """By its configuration, when it is made or later; a run without treasurer has no bonds."""
    owner = ("-k", "owner.json")
    asks = world.home / "asks.toml"
    asks.write_text(TINY.read_text().replace("[config]\n", "[config]\nrequired_bond = 7\n", 1))
    rate = ("--new-mint", "--earning-rate", 10)
    made = world("create-run", "-r", "asks", "--config", asks, *rate, *owner)
    assert made.code == 0, made.err
    assert world("json-dump-run", "-r", "asks").json["config"]["required_bond"] == 7
    shown = world("bond", "show", "-r", "asks", "-k", "free.json")
    assert shown.out.startswith("bond 0  required 7  missing 7  debt 0  "), shown.err

    assert world("set-paused", "-r", "asks", *owner).code == 0
    asks.write_text(asks.read_text().replace("required_bond = 7", "required_bond = 9", 1))
    changed = world("update-config", "-r", "asks", "--config", asks, *owner)
    assert changed.code == 0, changed.err
    assert world("json-dump-run", "-r", "asks").json["config"]["required_bond"] == 9

    assert world("create-run", "-r", "gratis", "--config", TINY, "--permissionless", *owner).code == 0
    for command in (("post", "--amount", 1), ("show",), ("return",), ("slash",)):
        done = world("bond", command[0], "-r", "gratis", *command[1:], *owner)
        done.check_error(RUN_STATE, "gratis")
