"""Who may stand in the door, and for how many of them there is room."""

from __future__ import annotations

import pytest

from psyche_py.p2p import doors as module
from psyche_py.p2p.doors import (
    FAILURE_BURST,
    MAX_HALF_OPEN,
    MAX_HALF_OPEN_PER_ADDRESS,
    MAX_KNOWN_ADDRESSES,
    Doors,
    get_source,
)


def test_one_address_and_all_together_have_a_limit() -> None:
    doors = Doors()
    assert [doors.enter("192.0.2.1", 0) for _ in range(MAX_HALF_OPEN_PER_ADDRESS + 1)].count(True) == (
        MAX_HALF_OPEN_PER_ADDRESS
    )
    assert doors.enter("192.0.2.2", 0)
    admitted = [doors.enter(f"192.0.3.{n % 250}", 0) for n in range(MAX_HALF_OPEN)]
    assert admitted.count(True) == MAX_HALF_OPEN - MAX_HALF_OPEN_PER_ADDRESS - 1
    doors.leave("192.0.2.1", 0, is_failure=False)
    assert doors.enter("192.0.2.1", 0)
    assert doors.num_half_open == MAX_HALF_OPEN


def test_failures_close_the_door_for_their_address_only_and_time_opens_it() -> None:
    doors = Doors()
    for _ in range(int(FAILURE_BURST)):
        assert doors.enter("192.0.2.1", 0)
        doors.leave("192.0.2.1", 0, is_failure=True)
    assert not doors.enter("192.0.2.1", 0)
    assert doors.enter("192.0.2.2", 0)
    assert doors.enter("192.0.2.1", 2.0)


def test_peers_that_are_let_in_use_nothing_up() -> None:
    doors = Doors()
    for _ in range(1000):
        assert doors.enter("192.0.2.1", 0)
        doors.leave("192.0.2.1", 0, is_failure=False)
    assert doors.num_half_open == 0


def test_memory_of_failures_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN_ADDRESSES", 10)
    doors = Doors()
    for number in range(30):
        doors.enter(f"192.0.2.{number}", 0)
        doors.leave(f"192.0.2.{number}", 0, is_failure=True)
    assert len(doors._failures) == 10
    assert MAX_KNOWN_ADDRESSES >= 10


@pytest.mark.parametrize(
    ("ip", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
    ],
)
def test_sources(ip: str, source: str) -> None:
    assert get_source(ip) == source
