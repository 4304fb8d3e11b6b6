"""Whole runs in one process with verification on: honest clients are left alone, cheats are ejected."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from cheating_jobs import KINDS
from whole_run import RUN_ID, WholeRun, make_config

from psyche_py.coordinator.layout import ClientState, DisputeState, RunState
from psyche_py.observe.tally import are_digests_equal

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

VERIFIED = {
    "verification_percent": 40,
    "global_batch_size_start": 10,
    "global_batch_size_end": 10,
    "init_min_clients": 5,
    "total_steps": 26,
    "epoch_time": 400,
    "max_round_train_time": 20,
}


def test_five_honest_clients(shards: Path, nano: Path) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            run = WholeRun(make_config(shards, nano, **VERIFIED), nursery, second=0.25)
            await run.start()
            clients = [await run.add_client() for _ in range(5)]
            await run.wait_until_ended(clients)
            account = (await run.owner.fetch_run(RUN_ID)).account
            nursery.cancel_scope.cancel()
        assert account.run_state is RunState.Finished
        assert {c.tally.outcome for c in clients} == {"finished"}
        assert are_digests_equal([c.tally for c in clients])
        assert account.disputes == ()
        checks = [e for c in clients for e in c.events if e["kind"] == "verified"]
        assert len(checks) >= 20
        assert {e["reason"] for e in checks} <= {"NONE", "ILL_CONDITIONED"}
        # in full, with the root before and every foreseen message known
        assert sum(e["jaccard"] > 0 for e in checks) >= len(checks) // 2
        assert sum(c.tally.num_verified for c in clients) == len(checks)

    trio.run(main)


@pytest.mark.parametrize("kind", ["negate", "idle", "accuse", "silent"])
def test_a_cheat_is_ejected(shards: Path, nano: Path, kind: str) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            run = WholeRun(make_config(shards, nano, **VERIFIED), nursery, second=0.25)
            await run.start(slashing_rate=50)
            clients = [await run.add_client() for _ in range(4)]
            cheat = await run.add_client(KINDS[kind])
            await run.wait_until_ended([*clients, cheat])
            account = (await run.owner.fetch_run(RUN_ID)).account
            nursery.cancel_scope.cancel()
        events = [(e["kind"], e) for c in clients for e in c.events if "dispute" in e["kind"]]
        index = account.find_epoch_client(bytes(cheat.wallet.pubkey()))
        assert index is not None
        assert account.epoch_clients[index].state is ClientState.Ejected, events
        outcome = DisputeState.NotGuilty if kind == "accuse" else DisputeState.Guilty
        assert {d.state for d in account.disputes} == {outcome}
        # two rounds may have been looked at before the first was judged: each conviction costs the rate
        slashed = 50 * len(account.disputes)
        assert account.entries[account.epoch_clients[index].entry].slashed == slashed
        assert account.entries[account.epoch_clients[index].entry].claimable == 0
        assert sum(entry.slashed for entry in account.entries) == slashed
        assert cheat.error is not None
        assert cheat.error.remedy
        assert {c.tally.outcome for c in clients} == {"finished"}
        assert are_digests_equal([c.tally for c in clients])

    trio.run(main)
