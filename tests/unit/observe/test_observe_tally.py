"""Totals of a client's events, means over clients, and whether the replicas agree."""

from __future__ import annotations

from typing import Any

import pytest

from psyche_py.observe.events import Event
from psyche_py.observe.tally import (
    ClientTally,
    are_digests_equal,
    compute_mean_losses,
    find_unaccounted,
)

APPLY: dict[str, Any] = {"height": 0, "num_payloads": 1, "seconds": 0.1}


def make_event(kind: str, **fields: Any) -> Event:
    return {"t": 0.0, "kind": kind, **fields}


def make_tally(*events: Event) -> ClientTally:
    tally = ClientTally("client")
    for event in events:
        tally.add(event)
    return tally


def make_train(step: int, loss: float | None, tokens: int = 10) -> Event:
    return make_event(
        "train", step=step, height=0, loss=loss, tokens=tokens, seconds=0.5, batch_start=0, batch_end=1
    )


def make_apply(step: int, digest: str) -> Event:
    return make_event("apply", step=step, digest=digest, trained=[[1, 2]], untrained=[[3, 4]], **APPLY)


def test_totals_add_up() -> None:
    tally = make_tally(
        make_event("state", run_state="RoundTrain", epoch=2, step=7, height=1, num_healthy=3, data_index=12),
        make_event("peers", connected=2, known=3),
        make_train(7, 3.0),
        make_train(8, None),
        make_event("published", height=1, bytes=100, commitment="ab"),
        make_event("published", height=2, bytes=50, commitment="cd"),
        make_apply(7, "aa"),
        make_event("bytes", sent=5, received=6),
        make_event("lost", epoch=2, samples=[[3, 4]]),
        make_event("model_loaded", source="P2P", seconds=1.0, digest="aa", peers=2),
        make_event("checkpoint", path="/c", step=8),
        make_event("a-kind-of-the-future", x=1),
        make_event("finished", reason="finished"),
    )
    assert (tally.run_state, tally.epoch, tally.step, tally.num_healthy) == ("RoundTrain", 2, 7, 3)
    assert (tally.tokens, tally.train_seconds, tally.losses) == (20, 1.0, {7: 3.0})
    assert (tally.num_rounds, tally.payload_bytes) == (2, 150)
    assert (tally.bytes_sent, tally.bytes_received, tally.peers) == (5, 6, 2)
    assert (tally.untrained, tally.model_source, tally.checkpoint) == ([(3, 4)], "P2P", "/c")
    assert (tally.applied, tally.lost) == ({7: [(1, 2)]}, {2: [(3, 4)]})
    assert tally.outcome == "finished"


def test_a_view_keeps_the_newest_rounds_and_all_totals() -> None:
    short, whole = ClientTally("short", max_kept=5), ClientTally("whole")
    for step in range(1, 301):
        for tally in (short, whole):
            tally.add(
                {
                    "kind": "state",
                    "run_state": "RoundTrain",
                    "epoch": step // 10,
                    "step": step,
                    "height": 1,
                    "num_healthy": 2,
                }
            )
            tally.add({"kind": "train", "step": step, "loss": float(step), "tokens": 10, "seconds": 1.0})
            tally.add({"kind": "published", "bytes": 3})
            tally.add(
                {
                    "kind": "apply",
                    "step": step,
                    "digest": "d",
                    "trained": [[step, step]],
                    "untrained": [[0, step]],
                }
            )
            tally.add({"kind": "digest", "epoch": step, "digest": "d"})
            tally.add({"kind": "lost", "epoch": step, "samples": [[step, step]]})
            tally.add({"kind": "warning", "message": str(step)})
            tally.add({"kind": "dispute_opened", "evidence": str(step)})
    assert (short.tokens, short.num_rounds, short.payload_bytes) == (3000, 300, 900)
    assert list(short.losses) == list(short.applied) == [296, 297, 298, 299, 300]
    assert short.warnings == ["296", "297", "298", "299", "300"]
    kept = (short.digests, short.epoch_digests, short.lost, short.disputes, short.untrained)
    assert {len(items) for items in kept} == {5}
    assert len(whole.digests) == len(whole.warnings) == 300, "who accounts for a run needs all of it"


def test_mean_loss_is_over_the_clients_that_trained_in_the_step() -> None:
    tallies = [make_tally(make_train(1, 4.0), make_train(2, 3.0)), make_tally(make_train(1, 2.0))]
    assert compute_mean_losses(tallies) == {1: 3.0, 2: 3.0}


@pytest.mark.parametrize(
    ("first", "second", "equal"),
    [
        (["aa", "bb"], ["aa", "bb"], True),
        (["aa", "bb"], ["aa", "cc"], False),
        (["aa", "bb"], ["aa"], True),
        ([], [], False),
    ],
)
def test_digests_are_compared_wherever_two_clients_report(
    first: list[str], second: list[str], equal: bool
) -> None:
    tallies = [
        make_tally(*(make_apply(step, digest) for step, digest in enumerate(digests)))
        for digests in (first, second)
    ]
    assert are_digests_equal(tallies) is equal


def test_one_step_in_two_epochs_is_two_places() -> None:
    """A step is done again after an epoch that was cut; its digests are another model's."""

    def make(epoch: int, digest: str) -> list[Event]:
        state = make_event(
            "state", run_state="RoundTrain", epoch=epoch, step=1, height=0, num_healthy=1, data_index=0
        )
        return [state, make_apply(1, digest)]

    assert are_digests_equal([make_tally(*make(0, "aa")), make_tally(*make(1, "bb"))])


def test_samples_are_accounted_for_once() -> None:
    one = make_tally(make_event("apply", **APPLY, digest="aa", step=5, trained=[[0, 3]], untrained=[[4, 5]]))
    two = make_tally(
        make_event("apply", **APPLY, digest="aa", step=5, trained=[[0, 3]], untrained=[[4, 5]]),
        make_event("lost", epoch=0, samples=[[4, 5]]),
    )
    assert find_unaccounted([one, two], 6) == []
    assert find_unaccounted([one], 6) == [4, 5]
    assert find_unaccounted([one, two], 7) == [6]
    again = make_tally(make_event("apply", **APPLY, digest="aa", step=6, trained=[[3, 4]], untrained=[]))
    assert find_unaccounted([two, again], 6) == [3, 4], "applied twice, applied and lost"
