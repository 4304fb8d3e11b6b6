"""Connections between two peers that cannot dial each other, through a third that both are connected to.

`/psyche/relay/1`, between peers of the run only:

    caller -> relay     0, key 32 of the other     <- 1 connected, 0 no; then bytes both ways
    relay  -> other     1, key 32 of the caller       then bytes both ways

What travels in it is an ordinary libp2p connection: Noise proves to each of the two who the other is, the
relay sees ciphertext. py-libp2p's own circuit relay needs identify, reservations and an address book, which
our host is without (docs/mesh.md). Made for a request; payloads come first from whoever is reached directly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.errors import PeerUnreachable, StreamBroken
from psyche_py.p2p.identity import KEY_BYTES
from psyche_py.p2p.libp2p_services import IO_SECONDS, READ_BYTES, ByteStream

RELAY_PROTOCOL = "/psyche/relay/1"
MAX_CIRCUITS, MAX_CIRCUITS_PER_PEER = 64, 8
CIRCUIT_IDLE_SECONDS = 60.0
"""Both ends ping each other four times as often."""
MAX_RELAYS_TRIED = 4
_REACH, _REACHED = 0, 1

OpenStream = Callable[[bytes, str], Awaitable[ByteStream]]


class Relay:
    """Both sides of the protocol.

    ``open_stream(key, protocol)`` raises NetworkError; ``take_in(stream)`` runs a connection that a relay
    brings, until it ends.
    """

    def __init__(self, open_stream: OpenStream, take_in: Callable[[ByteStream], Awaitable[None]]) -> None:
        self._open_stream = open_stream
        self._take_in = take_in
        self._circuits: Counter[bytes] = Counter()

    @property
    def num_circuits(self) -> int:
        """Those that go through us, or are about to."""
        return self._circuits.total()

    async def serve(self, stream: ByteStream) -> None:
        """Handle one stream of the protocol."""
        head = await stream.read_exactly(1 + KEY_BYTES, IO_SECONDS)
        if head[0] == _REACH:
            await self._connect(stream, head[1:])
        elif head[0] == _REACHED:
            await self._take_in(stream)
        else:
            raise StreamBroken(f"unknown mode {head[0]}", "relay_question_malformed")

    async def call(self, key: bytes, relays: list[bytes]) -> ByteStream:
        """A stream to ``key`` through one of ``relays``, tried in order. Raises PeerUnreachable."""
        for relay in relays[:MAX_RELAYS_TRIED]:
            with suppress(PeerUnreachable, StreamBroken):
                stream = await self._open_stream(relay, RELAY_PROTOCOL)
                try:
                    await stream.write(bytes([_REACH]) + key, IO_SECONDS)
                    if await stream.read_exactly(1, IO_SECONDS) == b"\1":
                        return stream
                except BaseException:
                    await stream.reset()
                    raise
                await stream.reset()
        raise PeerUnreachable(key, "nobody we are connected to is connected to it")

    async def _connect(self, caller: ByteStream, target: bytes) -> None:
        is_full = self.num_circuits >= MAX_CIRCUITS
        if is_full or self._circuits[caller.key] >= MAX_CIRCUITS_PER_PEER or target == caller.key:
            await caller.write(b"\0", IO_SECONDS)
            return
        self._circuits[caller.key] += 1
        try:
            try:
                other = await self._open_stream(target, RELAY_PROTOCOL)
            except NetworkError:
                await caller.write(b"\0", IO_SECONDS)
                return
            try:
                await other.write(bytes([_REACHED]) + caller.key, IO_SECONDS)
                await caller.write(b"\1", IO_SECONDS)
                await _join(caller, other)
            finally:
                await other.reset()
        finally:
            self._circuits[caller.key] -= 1
            if not self._circuits[caller.key]:
                del self._circuits[caller.key]


async def _join(one: ByteStream, other: ByteStream) -> None:
    """Carry bytes both ways until one side ends."""
    async with trio.open_nursery() as nursery:

        async def carry(source: ByteStream, target: ByteStream) -> None:
            with suppress(StreamBroken):
                while data := await source.read(READ_BYTES, CIRCUIT_IDLE_SECONDS):
                    await target.write(data, IO_SECONDS)
            nursery.cancel_scope.cancel()

        nursery.start_soon(carry, one, other)
        await carry(other, one)
