"""What comes in at the port of the mesh and is no libp2p connection: told apart by its first 14 bytes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from psyche_py.p2p.bulk import BULK_HELLO
from psyche_py.p2p.bulk_pool import BulkPool
from psyche_py.p2p.dial_back import BACK_HELLO, CALL_HELLO, DialBackService, receive_exactly, return_token
from psyche_py.p2p.seen import SEEN_HELLO, SeenService

HELLO_SECONDS = 3.0


class PlainServices:
    """Hands each connection to whom it is for; ``on_offence(key, kind)`` hears of what is for nobody."""

    def __init__(
        self,
        bulk: BulkPool,
        dial_back: DialBackService,
        seen: SeenService,
        on_offence: Callable[[bytes, str], None],
    ) -> None:
        self._bulk = bulk
        self._dial_back = dial_back
        self._seen = seen
        self._on_offence = on_offence

    async def take_in(self, socket: trio.socket.SocketType, on_known: Callable[[], None]) -> None:
        """Serve a connection, to its end; ``on_known()``: it is no stranger's."""
        hello = None
        with trio.move_on_after(HELLO_SECONDS), suppress(OSError):
            hello = await receive_exactly(socket, len(BULK_HELLO))
        if hello == BULK_HELLO:
            await self._bulk.take_in(socket, on_known)
        elif hello == CALL_HELLO:
            await self._dial_back.answer_call(socket)
        elif hello == BACK_HELLO:
            await return_token(socket)
        elif hello == SEEN_HELLO:
            await self._seen.answer(socket, on_known)
        else:
            self._on_offence(b"", "handshake_failed")
