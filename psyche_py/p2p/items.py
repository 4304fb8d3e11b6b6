"""The stream of announcements of one neighbour, cut into items, with its deadlines and its rate."""

from __future__ import annotations

import trio

from psyche_py.p2p.errors import FrameError, StreamBroken
from psyche_py.p2p.frames import FrameReader
from psyche_py.p2p.libp2p_services import READ_BYTES, ByteStream
from psyche_py.p2p.limits import TokenBucket

ITEM_RATE, ITEM_BURST = 4_000.0, 16_000.0
IDLE_SECONDS = 3_600.0
ITEM_SECONDS = 60.0
"""An item is in one write of its sender; it takes no longer than this from its first byte."""


class ItemStream:
    """Reads items of a `/psyche/flood/3` stream."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._reader = FrameReader()
        self._rate = TokenBucket(ITEM_RATE, ITEM_BURST, trio.current_time())
        self._item_due = float("inf")

    async def receive(self) -> list[tuple[int, bytes]] | None:
        """Kind and bytes of the next items, none yet, or None at the end.

        Raises StreamBroken, with an offence when the framing is wrong or an item is overdue.
        """
        data = await self._read()
        if not data:
            return None
        try:
            items = self._reader.feed(data)
        except FrameError as error:
            raise StreamBroken(str(error), "stream_misframed") from error
        if not self._reader.is_inside_item:
            self._item_due = float("inf")
        elif items or self._item_due == float("inf"):
            self._item_due = trio.current_time() + ITEM_SECONDS
        return items

    async def wait_for_turn(self) -> None:
        """Before each item is looked at: a neighbour that sends too many waits."""
        while not self._rate.take(trio.current_time()):
            await trio.sleep(0.05)

    async def _read(self) -> bytes | memoryview:
        left = self._item_due - trio.current_time()
        try:
            return await self._stream.read(READ_BYTES, max(0.0, min(IDLE_SECONDS, left)))
        except StreamBroken as error:
            if trio.current_time() >= self._item_due:
                error.offence = "stream_slow"
            raise
