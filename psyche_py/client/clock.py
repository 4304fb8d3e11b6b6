"""The chain's time as a client sees it: the machine's clock, and how far it is off."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from psyche_py.errors import ChainError, UsageError

if TYPE_CHECKING:
    from psyche_py.chain.port import ChainBackend
    from psyche_py.observe.events import EventSink

RESYNC_SECONDS = 15.0
WARN_SECONDS = 5
REFUSE_SECONDS = 60
ROUNDING_SECONDS = 1.5
"""The chain counts whole seconds, so what is within one is no offset at all."""


class ClockError(UsageError):
    """The machine's clock is too far off the chain's to take part."""


class ChainClock:
    """``clock``: unix seconds of this machine.

    Once a client takes part, an offset of any size is only warned of: it is added to the machine's clock, and
    it may be the chain that stood still.
    """

    def __init__(self, backend: ChainBackend, sink: EventSink, clock: Callable[[], float]) -> None:
        self._backend, self._sink, self._clock = backend, sink, clock
        self._offset = 0.0
        self._warned_of = 0.0
        self._measured = float("-inf")

    def now(self) -> int:
        """The chain's unix time, as far as we know."""
        return int(self._clock() + self._offset)

    async def check(self) -> None:
        """Measure before joining. Raises ClockError when the two clocks are a minute apart."""
        await self.measure()
        if abs(self._offset) < REFUSE_SECONDS:
            return
        direction = "behind" if self._offset > 0 else "ahead of"
        raise ClockError(
            f"This machine's clock is {abs(self._offset):.0f} s {direction} the chain's.",
            "Set it: timedatectl set-ntp true, or the time settings of your system. If it is right, the "
            "endpoint lags: choose another with -u.",
        )

    async def keep(self) -> None:
        """Measure again when the last time is long ago."""
        if trio.current_time() - self._measured > RESYNC_SECONDS:
            await self.measure()

    async def measure(self) -> None:
        """Compare the clocks. Without an answer the last offset stays."""
        self._measured = trio.current_time()
        try:
            chain_time = await self._backend.get_chain_time()
        except ChainError as error:
            self._sink.emit("warning", message=f"cannot read the chain's time: {error.what}")
            return
        offset = chain_time.unix_timestamp - self._clock()
        # against the last warning: a clock that drifts, or a chain that falls behind, moves little at a time
        if abs(offset) > WARN_SECONDS and abs(offset - self._warned_of) > 1:
            self._warned_of = offset
            self._sink.emit("warning", message=f"this machine's clock is {-offset:.0f} s off the chain's")
        if abs(offset) <= WARN_SECONDS:
            self._warned_of = 0.0
        self._offset = 0.0 if abs(offset) < ROUNDING_SECONDS else offset
