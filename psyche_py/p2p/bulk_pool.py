"""Opening, serving and reusing bulk streams.

The side that wants blobs asks over `/psyche/bulk/1`, an authenticated libp2p stream:

    -> 0                              I dial you       <- 1, token 16, secret 32
    -> 1, token 16, secret 32         dial me          <- 1 when it will try, else 0

Then one TCP connection is made (see bulk.py), and the asking side sends `/psyche/blob/2` questions on it, one
after the other. It is kept for the next blob, since a new connection starts slowly. Where neither side can be
dialed the caller uses a libp2p stream instead.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.bulk import BULK_HELLO, SECRET_BYTES, TOKEN_BYTES, BulkStream, Ticket
from psyche_py.p2p.dial_back import receive_exactly
from psyche_py.p2p.errors import StreamBroken
from psyche_py.p2p.hint import Address
from psyche_py.p2p.libp2p_services import IO_SECONDS, ByteStream

BULK_PROTOCOL = "/psyche/bulk/1"
TICKET_SECONDS = 15.0
MAX_TICKETS = 8
MAX_SERVED = 8
"""Tickets one peer may have outstanding, and bulk streams we serve to it at a time."""
DIAL_SECONDS = 3.0
IDLE_SECONDS = 120.0
AVOID_SECONDS = 60.0
"""After no way to a bulk stream was found, the peer's libp2p connection is used for so long."""
_I_DIAL, _DIAL_ME = 0, 1

OpenStream = Callable[[bytes], Awaitable[ByteStream]]
Serve = Callable[[ByteStream], Awaitable[None]]


@dataclass(slots=True)
class _Expected:
    """A connection that may come in: who gets it (None: we serve on it), and until when."""

    key: bytes
    ticket: Ticket
    until: float
    arrival: trio.MemorySendChannel[BulkStream] | None


class BulkPool:
    """The bulk streams of one node.

    ``open_stream(key)`` opens a `/psyche/bulk/1` stream (raises NetworkError), ``get_address(key)`` says
    where a peer can be dialed, ``resolve(host)`` which IP addresses that is, ``serve(stream)`` answers one
    question, ``on_offence(key, kind)`` hears of bad input, with an empty key when it is a stranger's.
    """

    def __init__(
        self,
        *,
        open_stream: OpenStream,
        get_address: Callable[[bytes], Address | None],
        resolve: Callable[[str], Awaitable[list[str]]],
        is_dialable: Callable[[], bool],
        serve: Serve,
        spawn: Callable[..., None],
        on_offence: Callable[[bytes, str], None],
    ) -> None:
        self._open_stream = open_stream
        self._get_address = get_address
        self._resolve = resolve
        self._is_dialable = is_dialable
        self._serve = serve
        self._spawn = spawn
        self._on_offence = on_offence
        self._expected: dict[bytes, _Expected] = {}
        self._idle: dict[bytes, list[BulkStream]] = {}
        self._open: dict[bytes, set[BulkStream]] = {}
        self._num_served: dict[bytes, int] = {}
        self._avoided: dict[bytes, float] = {}

    # ---- asking side --------------------------------------------------------------------------------

    async def acquire(self, key: bytes) -> BulkStream | None:
        """A stream to ask ``key`` for blobs; None when there is no way to one. Raises NetworkError."""
        idle = self._idle.get(key, [])
        while idle:
            stream = idle.pop()
            if stream.is_idle:
                return stream
            self._discard(stream)
        if self._avoided.get(key, 0.0) > trio.current_time():
            return None
        stream_or_none = await self._connect(key)
        if stream_or_none is None:
            self._avoided[key] = trio.current_time() + AVOID_SECONDS
        return stream_or_none

    def release(self, stream: BulkStream, *, is_reusable: bool) -> None:
        """Give a stream back; one that is in the middle of an answer cannot be used again."""
        if is_reusable and stream in self._open.get(stream.key, ()):
            stream.drop_buffers()
            idle = self._idle.setdefault(stream.key, [])
            idle.append(stream)
            # the last one is used again first: those below it may have been closed long ago
            for other in [other for other in idle if not other.is_idle]:
                idle.remove(other)
                self._discard(other)
        else:
            self._discard(stream)

    async def _connect(self, key: bytes) -> BulkStream | None:
        address = self._get_address(key)
        if address is not None:
            with suppress(StreamBroken):
                ticket = await self._ask_for_ticket(key)
                return await self._dial(key, address, ticket)
        return await self._be_dialed(key) if self._is_dialable() else None

    async def _ask_for_ticket(self, key: bytes) -> Ticket:
        stream = await self._open_stream(key)
        try:
            await stream.write(bytes([_I_DIAL]), IO_SECONDS)
            answer = await stream.read_exactly(1 + TOKEN_BYTES + SECRET_BYTES, IO_SECONDS)
        finally:
            await stream.reset()
        return Ticket(answer[1 : 1 + TOKEN_BYTES], answer[1 + TOKEN_BYTES :])

    async def _be_dialed(self, key: bytes) -> BulkStream | None:
        arrival, arrived = trio.open_memory_channel[BulkStream](1)
        ticket = Ticket.make()
        self._expect(_Expected(key, ticket, trio.current_time() + TICKET_SECONDS, arrival))
        stream = await self._open_stream(key)
        try:
            await stream.write(bytes([_DIAL_ME]) + ticket.token + ticket.secret, IO_SECONDS)
            if await stream.read_exactly(1, IO_SECONDS) == b"\1":
                with trio.move_on_after(DIAL_SECONDS + 1.0):
                    return await arrived.receive()
        finally:
            self._expected.pop(ticket.token, None)
            await stream.reset()
        return None

    async def _dial(self, key: bytes, address: Address, ticket: Ticket) -> BulkStream:
        """Raises StreamBroken."""
        connection = None
        try:
            with trio.fail_after(DIAL_SECONDS):
                ips = await self._resolve(address.host)
                if not ips:
                    raise StreamBroken(f"{address.host} has no address that we dial")
                connection = await trio.open_tcp_stream(ips[0], address.port)
                await connection.send_all(BULK_HELLO + ticket.token)
        except BaseException as error:
            if connection is not None:
                connection.socket.close()
            if isinstance(error, OSError | trio.TooSlowError | trio.BrokenResourceError):
                raise StreamBroken(f"dialing {address.host} port {address.port} failed") from error
            raise
        return self._add(BulkStream(connection.socket, key, ticket.secret, is_dialer=True))

    # ---- answering side -----------------------------------------------------------------------------

    async def serve_tickets(self, stream: ByteStream) -> None:
        """Answer one question on `/psyche/bulk/1`."""
        (mode,) = await stream.read_exactly(1, IO_SECONDS)
        key = stream.key
        if mode == _I_DIAL:
            ticket = Ticket.make()
            self._expect(_Expected(key, ticket, trio.current_time() + TICKET_SECONDS, None))
            await stream.write(b"\1" + ticket.token + ticket.secret, IO_SECONDS)
        elif mode == _DIAL_ME:
            said = await stream.read_exactly(TOKEN_BYTES + SECRET_BYTES, IO_SECONDS)
            address = self._get_address(key)
            await stream.write(bytes([address is not None]), IO_SECONDS)
            if address is not None:
                ticket = Ticket(said[:TOKEN_BYTES], said[TOKEN_BYTES:])
                self._spawn(self._dial_and_serve, key, address, ticket)
        else:
            raise StreamBroken(f"unknown mode {mode}", "bulk_question_malformed")

    async def take_in(self, socket: trio.socket.SocketType, on_known: Callable[[], None]) -> None:
        """Serve a connection whose `BULK_HELLO` has been read; ``on_known()``: it is no stranger's."""
        try:
            expected = await self._read_ticket(socket)
            if expected is None:
                self._on_offence(b"", "bulk_without_ticket")
                return
            on_known()
            stream = BulkStream(socket, expected.key, expected.ticket.secret, is_dialer=False)
            if expected.arrival is None:
                await self._serve_until_end(stream)
            elif not expected.arrival.statistics().open_receive_channels:
                return
            else:
                expected.arrival.send_nowait(self._add(stream))
                await stream.ended.wait()
        finally:
            socket.close()

    async def _read_ticket(self, socket: trio.socket.SocketType) -> _Expected | None:
        """The ticket a connection is for; None for strangers."""
        token = None
        with trio.move_on_after(DIAL_SECONDS), suppress(OSError):
            token = await receive_exactly(socket, TOKEN_BYTES)
        expected = self._expected.pop(token, None) if token is not None else None
        return expected if expected is not None and expected.until > trio.current_time() else None

    async def _dial_and_serve(self, key: bytes, address: Address, ticket: Ticket) -> None:
        with suppress(NetworkError):
            await self._serve_until_end(await self._dial(key, address, ticket))

    async def _serve_until_end(self, stream: BulkStream) -> None:
        """Answer questions; a stream on which none comes for a while is closed."""
        key = stream.key
        if self._num_served.get(key, 0) >= MAX_SERVED:
            self._discard(stream)
            return
        self._num_served[key] = self._num_served.get(key, 0) + 1
        self._add(stream)
        try:
            while await stream.wait_for_data(IDLE_SECONDS):
                await self._serve(stream)
                stream.drop_buffers()
        except StreamBroken as error:
            if error.offence:
                self._on_offence(key, error.offence)
        finally:
            self._discard(stream)
            self._num_served[key] -= 1
            if not self._num_served[key]:
                del self._num_served[key]

    # ---- both ---------------------------------------------------------------------------------------

    def cut(self, key: bytes) -> None:
        """The peer is no longer allowed: end all of its streams, at once."""
        for stream in self._open.pop(key, set()):
            stream.cut()
        self._idle.pop(key, None)
        self._avoided.pop(key, None)
        self._expected = {token: item for token, item in self._expected.items() if item.key != key}

    def cut_all(self) -> None:
        """End everything."""
        for key in list(self._open):
            self.cut(key)

    def forget_obstacles(self, key: bytes) -> None:
        """The peer has a new address: try it."""
        self._avoided.pop(key, None)

    def _expect(self, expected: _Expected) -> None:
        now = trio.current_time()
        self._expected = {token: item for token, item in self._expected.items() if item.until > now}
        tickets = [token for token, item in self._expected.items() if item.key == expected.key]
        for token in tickets[: max(0, len(tickets) + 1 - MAX_TICKETS)]:
            del self._expected[token]  # whoever gives a fetch up leaves its ticket unused
        self._expected[expected.ticket.token] = expected

    def _add(self, stream: BulkStream) -> BulkStream:
        self._open.setdefault(stream.key, set()).add(stream)
        return stream

    def _discard(self, stream: BulkStream) -> None:
        stream.cut()
        streams = self._open.get(stream.key)
        if streams is not None:
            streams.discard(stream)
            if not streams:
                del self._open[stream.key]
