"""Whole runs with local steps: several AdamW steps of each client in a round, one exact outer step of all."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from whole_run import RUN_ID, WholeRun, make_config

from psyche_py.coordinator.layout import RunState
from psyche_py.observe.tally import are_digests_equal, compute_mean_losses, find_unaccounted

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOCAL = "local_steps = 4\nadam_beta2 = 0.99\n"


def test_three_clients_take_local_steps_and_one_joins_later(shards: Path, nano: Path) -> None:
    """Digests equal in every epoch, loss down, all samples accounted for; the joiner has only the weights."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            config = make_config(
                shards,
                nano,
                optimizer=LOCAL,
                total_steps=50,
                epoch_time=14,
                warmup_time=12,
                global_batch_size_start=24,
                global_batch_size_end=24,
            )
            run = WholeRun(config, nursery, second=0.2)
            assert run.config.model.local_steps == 4
            await run.start()
            clients = [await run.add_client() for _ in range(3)]
            await run.wait_for(lambda: clients[0].tally.step >= 3)
            clients.append(await run.add_client())
            await run.wait_until_ended(clients)
            account = (await run.owner.fetch_run(RUN_ID)).account
            nursery.cancel_scope.cancel()
        assert account.run_state is RunState.Finished
        assert account.model.local_steps == 4
        assert {c.tally.outcome for c in clients[:3]} == {"finished"}
        tallies = [c.tally for c in clients]
        assert clients[3].tally.model_source == "P2P"
        assert clients[3].tally.num_rounds > 0
        assert are_digests_equal(tallies)
        assert len(tallies[0].epoch_digests) >= 2
        losses = list(compute_mean_losses(tallies).values())
        assert losses[-1] < losses[0] - 0.2
        assert not find_unaccounted(tallies, account.epoch_start_data_index)

    trio.run(main)
