"""A client that comes back under the same wallet while the epoch it was part of is still running."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from client_processes import RUN_ID, start_run

from psyche_py.chain.client import ProgramClient
from psyche_py.coordinator.layout import ClientState, RunState
from psyche_py.observe.tally import are_digests_equal

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]


async def pause(owner: ProgramClient) -> None:
    """End the run when its epoch has ended."""
    await owner.set_paused(await owner.fetch_run(RUN_ID), True)


def test_a_killed_client_comes_back(tmp_path: Path, shards: Path, nano: Path) -> None:
    """It leaves the running epoch, joins the next, takes the model from peers, ends with an equal digest."""
    with start_run(tmp_path, shards, nano, total_steps=10**6, epoch_time=70, warmup_time=45) as run:
        clients = [run.add_client() for _ in range(3)]
        run.wait_for(lambda: all(c.tally.step >= 4 for c in clients))
        restarted = clients[2]
        assert restarted.child is not None
        run.kill(restarted.child)
        restarted.update()
        num_events = len(restarted.events)
        assert restarted.tally.model_source == "Config"
        run.start_client(restarted)

        def is_withdrawn() -> bool:
            account = run.get_account()
            assert account.epoch == 0, "the epoch was over before the client was back"
            index = account.find_epoch_client(bytes(restarted.wallet.pubkey()))
            assert index is not None
            return account.epoch_clients[index].state is ClientState.Withdrawn

        run.wait_for(is_withdrawn)
        rounds = restarted.tally.num_rounds
        run.wait_for(lambda: restarted.tally.num_rounds >= rounds + 3)
        run.call(pause)
        run.wait_for(lambda: all(c.tally.run_state == "Paused" for c in clients))
        for client in clients:
            client.process.send_signal(signal.SIGINT)
        run.wait_for_end(clients)
        account = run.get_account()
        assert account.run_state is RunState.Paused
        assert len(account.entries) == 3, "one wallet is one client"
        assert restarted.get_first_source(num_events) == "P2P"
        since = restarted.events[num_events:]
        assert [event["epoch"] for event in since if event["kind"] == "digest"] == list(
            range(1, account.epoch)
        )
        assert are_digests_equal([c.tally for c in clients])
        assert len({c.tally.epoch_digests[account.epoch - 1] for c in clients}) == 1
        assert sum(entry.earned for entry in account.entries) == 1000 * account.epoch
