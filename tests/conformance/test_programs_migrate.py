"""Accounts that an older program wrote go on under this one."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from programs_harness import ANYBODY, ProgramChain, RunHarness, refused

from psyche_py.coordinator.layout import DEFAULT_MAX_WITNESS_CONTRADICTIONS, RunState
from psyche_py.coordinator.state import AccountVersionError, read_account
from psyche_py.coordinator.transition import CoordinatorError, process_migrate

FIXTURES = Path(__file__).parent / "fixtures"


def read_fixture(name: str) -> bytes:
    """Bytes of an account that the program of commit 4cb6b64 (version 1) has written."""
    return gzip.decompress((FIXTURES / f"coordinator_account_{name}.bin.gz").read_bytes())


def put(name: str) -> RunHarness:
    """A run whose account is the fixture's, with the wallets that had joined it then."""
    chain = ProgramChain()
    run = RunHarness(chain, "older")
    run.create()
    chain.authorize(run.owner, ANYBODY)
    data = read_fixture(name)
    account = chain.svm.get_account(run.address)
    chain.svm.set_account(run.address, type(account)(account.lamports, data, account.owner))
    run.wallets = [chain.make_wallet(f"client {i}") for i in range(5)]
    return run


@pytest.mark.parametrize("name", ["v1_mid_round", "v1_paused"])
def test_version_1_is_brought_to_this_version(name: str) -> None:
    run = put(name)
    with pytest.raises(AccountVersionError, match="version 1"):
        read_account(read_fixture(name))
    with refused("WrongVersion"):
        run.act("tick", run.owner)
    with refused("WrongVersion"):
        run.own("set_future_epoch_rates", earning_rate_total_shared=1, slashing_rate_per_client=None)
    run.act("migrate", run.chain.make_wallet("anybody"))
    assert run.account == process_migrate(read_fixture(name))
    assert run.account.config.max_witness_contradictions == DEFAULT_MAX_WITNESS_CONTRADICTIONS
    assert [entry.claimed for entry in run.account.entries] == [0] * 5
    with refused("NothingToMigrate"):
        run.act("migrate", run.owner)


def test_a_round_that_version_1_began_ends_here() -> None:
    run = put("v1_mid_round")
    run.act("migrate", run.owner)
    before = run.account
    assert len(before.current_round.elected_indices) == 2
    assert before.current_round.num_witnesses == 1
    run.chain.now = before.run_state_start
    run.chain.advance(1)
    already = before.current_round.witnesses[0].index
    (left,) = (client for client in run.get_elected() if client.index != already)
    run.witness(left)
    assert run.account.current_round.height == before.current_round.height + 1


def test_a_run_that_version_1_paused_goes_on() -> None:
    run = put("v1_paused")
    run.act("migrate", run.owner)
    earned = [entry.earned for entry in run.account.entries]
    run.chain.now = run.account.run_state_start
    run.own("set_paused", paused=False)
    run.join_all()
    run.start_training()
    run.chain.advance(200)
    while run.state is RunState.RoundTrain:
        run.play_round()
    run.tick(10)
    assert run.state is RunState.WaitingForMembers
    assert sum(entry.earned for entry in run.account.entries) == sum(earned) + 1001


def test_the_rule_book_refuses_what_it_does_not_know() -> None:
    data = bytearray(read_fixture("v1_paused"))
    for version in (0, 2, 3):
        data[8] = version
        with pytest.raises(CoordinatorError) as caught:
            process_migrate(bytes(data))
        assert caught.value.code.name == "NothingToMigrate"
