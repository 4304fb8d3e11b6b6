"""Real processes over loopback: a client joins the second epoch and takes the model from two peers."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from client_processes import RUN_ID, start_run

from psyche_py.chain.client import ProgramClient
from psyche_py.observe.tally import are_digests_equal

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.timeout(1800)]


async def pause(owner: ProgramClient) -> None:
    """End the run when its epoch has ended."""
    await owner.set_paused(await owner.fetch_run(RUN_ID), True)


def test_a_late_client_takes_the_attested_model_from_its_peers(
    tmp_path: Path, shards: Path, nano: Path
) -> None:
    settings = {"total_steps": 10**6, "epoch_time": 25, "warmup_time": 20, "init_min_clients": 2}
    with start_run(tmp_path, shards, nano, **settings) as run:
        donors = [run.add_client() for _ in range(2)]
        run.wait_for(lambda: all(c.tally.step >= 3 for c in donors))
        joiner = run.add_client()
        run.wait_for(lambda: joiner.tally.num_rounds >= 3)
        run.call(pause)
        run.wait_for(lambda: all(c.tally.run_state == "Paused" for c in run.clients))
        for client in run.clients:
            client.process.send_signal(signal.SIGINT)
        run.wait_for_end(run.clients)

        loaded = next(event for event in joiner.events if event["kind"] == "model_loaded")
        assert loaded["source"] == "P2P"
        # on a slow machine it may have come a whole epoch later
        ended = {event["digest"] for event in donors[0].events if event["kind"] == "digest"}
        assert loaded["digest"] in ended, "what the donors ended an epoch with"
        progress = [event for event in joiner.events if event["kind"] == "model_progress"][-1]
        assert progress["pieces"] == progress["of"] >= 1
        known = {entry.p2p_key.hex()[:12] for entry in run.get_account().entries}
        assert {peer["peer"] for peer in progress["peers"]} <= known
        messages = [event["message"] for event in joiner.events if event["kind"] == "warning"]
        assert not [text for text in messages if "we did not see which model was attested" in text]
        assert are_digests_equal([c.tally for c in run.clients])
