"""Real client processes that are killed, join late, lose their chain, and are asked to leave."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from client_processes import RUN_ID, ProcessClient, ProcessRun, start_run

from psyche_py.chain.client import ProgramClient
from psyche_py.coordinator.layout import RunState
from psyche_py.observe.tally import are_digests_equal, find_unaccounted

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]


def check_samples(clients: list[ProcessClient], run: ProcessRun) -> None:
    """Every sample of the run was applied exactly once, or reported lost by number."""
    end = run.get_account().epoch_start_data_index
    assert end > 0
    assert not find_unaccounted([client.tally for client in clients], end)


def test_one_of_three_clients_is_killed(tmp_path: Path, shards: Path, nano: Path) -> None:
    """SIGKILL in the middle of an epoch: the others report it and end with equal digests."""
    with start_run(tmp_path, shards, nano, total_steps=22) as run:
        clients = [run.add_client() for _ in range(3)]
        run.wait_for(lambda: all(c.tally.step >= 5 for c in clients))
        assert clients[2].child is not None
        run.kill(clients[2].child)
        run.wait_for_end(clients[:2])
        account = run.get_account()
        assert account.run_state is RunState.Finished
        assert are_digests_equal([c.tally for c in clients[:2]])
        assert any(event["kind"] == "health_check" for c in clients[:2] for event in c.events)
        check_samples(clients, run)
        assert sum(entry.earned for entry in account.entries) == 1000 * account.epoch


def test_a_fourth_client_joins_during_an_epoch(tmp_path: Path, shards: Path, nano: Path) -> None:
    """It waits, takes the model from its peers in the next warm-up and ends with the same digest."""
    # three are enough for an epoch: all four have to have joined before it begins
    times = {"epoch_time": 25, "warmup_time": 20, "waiting_for_members_extra_time": 5}
    with start_run(tmp_path, shards, nano, total_steps=10**6, **times) as run:
        clients = [run.add_client() for _ in range(3)]
        run.wait_for(lambda: clients[0].tally.step >= 4)
        clients.append(run.add_client())
        run.wait_for(lambda: clients[3].tally.num_rounds >= 3)
        run.call(pause)
        run.wait_for(lambda: all(c.tally.run_state == "Paused" for c in clients))
        for client in clients:
            client.process.send_signal(signal.SIGINT)
        run.wait_for_end(clients)
        assert clients[3].get_first_source() == "P2P"
        assert are_digests_equal([c.tally for c in clients])
        last = max(clients[3].tally.epoch_digests)
        assert len({c.tally.epoch_digests[last] for c in clients}) == 1


async def pause(owner: ProgramClient) -> None:
    """End the run when its epoch has ended."""
    await owner.set_paused(await owner.fetch_run(RUN_ID), True)


def test_the_chain_is_restarted(tmp_path: Path, shards: Path, nano: Path) -> None:
    """The local validator is killed and started again on its ledger: clients ride through it."""
    with start_run(tmp_path, shards, nano, total_steps=40) as run:
        clients = [run.add_client() for _ in range(3)]
        run.wait_for(lambda: clients[0].tally.step >= 8)
        run.kill(run.localnet)
        run.start_localnet()
        run.wait_for_end(clients)
        assert run.get_account().run_state is RunState.Finished
        assert are_digests_equal([c.tally for c in clients])
        check_samples(clients, run)


def test_sigint_finishes_the_round_and_leaves(tmp_path: Path, shards: Path, nano: Path) -> None:
    """Once: the client withdraws and exits with 0, the others go on. Twice: it exits at once."""
    with start_run(tmp_path, shards, nano, total_steps=10**6) as run:
        clients = [run.add_client() for _ in range(3)]
        polite, hasty, last = clients
        run.wait_for(lambda: last.tally.step >= 4)
        polite.process.send_signal(signal.SIGINT)
        run.wait_for_end([polite])
        assert polite.tally.outcome == "left"
        assert polite.tally.num_rounds > 0
        run.wait_for(lambda: last.tally.num_healthy == 2)
        step = last.tally.step
        run.wait_for(lambda: last.tally.step >= step + 4)
        # a chain that does not answer would make a polite leave take seconds
        run.localnet.process.send_signal(signal.SIGSTOP)
        hasty.process.send_signal(signal.SIGINT)
        run.wait_for(lambda: any(event["kind"] == "leaving" for event in hasty.events))
        hasty.process.send_signal(signal.SIGINT)
        run.wait_for(lambda: hasty.process.poll() is not None)
        assert hasty.process.returncode == 130
        run.localnet.process.send_signal(signal.SIGCONT)
        last.process.send_signal(signal.SIGINT)
        run.wait_for_end([last])
        assert are_digests_equal([c.tally for c in clients])
