"""When a link writes: at once after a silence, with pauses when it is busy."""

from __future__ import annotations

import pytest

from psyche_py.p2p.pacing import MAX_BURST_WRITES, PAUSE_SECONDS, Pacer


def test_a_quiet_link_does_not_wait() -> None:
    pacer, now = Pacer(100.0), 100.0
    for _ in range(20):
        assert pacer.compute_pause(now) == 0.0
        now += PAUSE_SECONDS


def test_a_few_writes_need_no_pause_and_then_each_waits_for_the_next() -> None:
    pacer = Pacer(0.0)
    pauses = [pacer.compute_pause(0.0) for _ in range(MAX_BURST_WRITES)]
    assert pauses == [0.0] * MAX_BURST_WRITES
    now = 0.0
    for _ in range(5):
        pause = pacer.compute_pause(now)
        assert pause == pytest.approx(PAUSE_SECONDS)
        now += pause


def test_a_busy_link_writes_no_more_often_than_its_pauses_allow() -> None:
    pacer, now, writes = Pacer(0.0), 0.0, 0
    while now < 60.0:
        now += pacer.compute_pause(now) + 0.001
        writes += 1
    assert writes <= 60.0 / PAUSE_SECONDS + MAX_BURST_WRITES + 1


def test_silence_earns_no_more_than_one_burst() -> None:
    pacer = Pacer(0.0)
    pauses = [pacer.compute_pause(1000.0) for _ in range(MAX_BURST_WRITES + 1)]
    assert pauses[-1] > 0.0
