"""Whole runs in one process that end in: equal digests, every batch accounted for, every point paid."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from whole_run import RUN_ID, SimClient, WholeRun, make_config

from psyche_py.coordinator.layout import RunState
from psyche_py.observe.tally import are_digests_equal, compute_mean_losses, find_unaccounted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def get_trained(clients: list[SimClient]) -> dict[int, list[tuple[int, int]]]:
    """Batches trained by step, over all clients."""
    trained: dict[int, list[tuple[int, int]]] = {}
    for client in clients:
        for event in client.events:
            if event["kind"] == "train":
                trained.setdefault(event["step"], []).append((event["batch_start"], event["batch_end"]))
    return trained


def count_warnings(client: SimClient) -> list[str]:
    return [event["message"] for event in client.events if event["kind"] == "warning"]


def test_three_clients_train_two_epochs(shards: Path, nano: Path) -> None:
    """Two epochs to the end: digests equal, loss down, each sample trained once, points exact."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = make_config(shards, nano, total_steps=40, epoch_time=12, warmup_time=10)
            run = WholeRun(config, nursery, second=0.2)
            await run.start(earning_rate=1001)
            clients = [await run.add_client() for _ in range(3)]
            await run.wait_until_ended(clients)
            account = (await run.owner.fetch_run(RUN_ID)).account
            nursery.cancel_scope.cancel()
        assert account.run_state is RunState.Finished
        assert {c.tally.outcome for c in clients} == {"finished"}
        tallies = [c.tally for c in clients]
        assert are_digests_equal(tallies)
        assert len(tallies[0].epoch_digests) >= 2
        losses = list(compute_mean_losses(tallies).values())
        assert losses[-1] < losses[0] - 0.2
        samples = [
            s for batches in get_trained(clients).values() for a, b in batches for s in range(a, b + 1)
        ]
        assert sorted(samples) == list(range(len(samples))), "every sample once, none left out"
        assert not any(c.tally.untrained for c in clients)
        assert sum(entry.earned for entry in account.entries) == 1001 * account.epoch

    trio.run(main)


def test_a_client_killed_mid_epoch(shards: Path, nano: Path) -> None:
    """One of three vanishes: the others report it, go on, and end with equal digests."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = make_config(
                shards, nano, total_steps=16, epoch_time=60, init_min_clients=3, max_round_train_time=6
            )
            run = WholeRun(config, nursery, second=0.25)
            await run.start()
            clients = [await run.add_client() for _ in range(3)]
            await run.wait_for(lambda: clients[0].tally.step >= 5)
            clients[2].scope.cancel()
            await run.wait_until_ended(clients[:2])
            account = (await run.owner.fetch_run(RUN_ID)).account
            nursery.cancel_scope.cancel()
        assert account.run_state is RunState.Finished
        assert are_digests_equal([c.tally for c in clients[:2]])
        assert any(e["kind"] == "health_check" for c in clients[:2] for e in c.events)
        assert clients[0].tally.untrained, "it was killed with a batch in work"
        assert clients[0].tally.untrained == clients[1].tally.untrained
        assert not find_unaccounted([c.tally for c in clients], account.epoch_start_data_index)
        assert not any(c.tally.lost for c in clients), "the others have trained it"
        assert sum(entry.earned for entry in account.entries) == 1000 * account.epoch

    trio.run(main)


def test_a_fourth_client_joins_later(shards: Path, nano: Path) -> None:
    """A joiner waits for the next epoch, takes the model from peers and stays bit-identical."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = make_config(shards, nano, total_steps=70, epoch_time=14, warmup_time=12)
            run = WholeRun(config, nursery, second=0.2)
            await run.start()
            clients = [await run.add_client() for _ in range(3)]
            await run.wait_for(lambda: clients[0].tally.step >= 3)
            clients.append(await run.add_client())
            await run.wait_until_ended(clients)
            nursery.cancel_scope.cancel()
        assert clients[3].tally.model_source == "P2P"
        assert clients[3].tally.num_rounds > 0
        assert are_digests_equal([c.tally for c in clients])

    trio.run(main)


def test_a_client_leaves(shards: Path, nano: Path) -> None:
    """A client told to stop finishes its round, withdraws, and the others go on at once."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = make_config(shards, nano, total_steps=14)
            run = WholeRun(config, nursery, second=0.25)
            await run.start()
            clients = [await run.add_client() for _ in range(3)]
            await run.wait_for(lambda: clients[0].tally.step >= 4)
            clients[1].stop.set()
            await run.wait_until_ended(clients)
            account = (await run.owner.fetch_run(RUN_ID)).account
            nursery.cancel_scope.cancel()
        assert clients[1].tally.outcome == "left"
        assert account.run_state is RunState.Finished
        assert are_digests_equal([clients[0].tally, clients[2].tally])

    trio.run(main)
