"""The machine's clock against the chain's: small offsets are made up for, large ones refused."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from psyche_py.chain.litesvm import LiteSvmBackend
from psyche_py.client.clock import RESYNC_SECONDS, ChainClock, ClockError
from psyche_py.observe.events import Event, EventSink


class Machine:
    """A chain in this process, and a clock that is so many seconds off."""

    def __init__(self, offset: float) -> None:
        self.backend = LiteSvmBackend.create()
        self.offset = offset
        self.events: list[Event] = []
        sink = EventSink(None, self.read, self.events.append)
        self.clock = ChainClock(self.backend, sink, self.read)

    def read(self) -> float:
        return self.backend.engine.unix_timestamp + self.offset

    @property
    def error(self) -> int:
        """How far the client's idea of the chain's time is off."""
        return self.clock.now() - self.backend.engine.unix_timestamp


@pytest.mark.parametrize(("offset", "num_warnings"), [(0.9, 0), (4.0, 0), (-4.0, 0), (6.0, 1), (-59.0, 1)])
def test_an_offset_is_made_up_for(offset: float, num_warnings: int) -> None:
    machine = Machine(offset)
    trio.run(machine.clock.check)
    assert abs(machine.error) <= 1
    assert len(machine.events) == num_warnings


@pytest.mark.parametrize(("offset", "direction"), [(60.0, "ahead of"), (-61.0, "behind"), (9e9, "ahead of")])
def test_a_minute_is_refused_with_the_remedy(offset: float, direction: str) -> None:
    with pytest.raises(ClockError, match=direction) as caught:
        trio.run(Machine(offset).clock.check)
    assert caught.value.exit_code == 2
    assert "timedatectl" in caught.value.remedy


def test_a_clock_that_jumps_later_is_told_once_and_followed() -> None:
    """A laptop that slept: the run goes on."""
    machine = Machine(0.0)

    async def main() -> None:
        await machine.clock.check()
        machine.offset = 300.0
        await machine.clock.keep()
        assert machine.error == 300, "measured a moment ago"
        await trio.sleep(RESYNC_SECONDS + 1)
        await machine.clock.keep()
        assert machine.error == 0
        await trio.sleep(RESYNC_SECONDS + 1)
        await machine.clock.keep()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(machine.events) == 1
    assert "300 s off" in machine.events[0]["message"]


def test_a_clock_that_drifts_is_told_of_and_again_when_it_has_drifted_on() -> None:
    """Each comparison differs by less than a second from the one before."""
    machine = Machine(0.0)

    async def main() -> None:
        await machine.clock.check()
        for tenths in range(0, 80, 5):
            machine.offset = tenths / 10
            await machine.clock.measure()

    trio.run(main, clock=MockClock(autojump_threshold=0))
    assert len(machine.events) == 2
    assert all("s off the chain's" in event["message"] for event in machine.events)
