"""HTTP/1.1 for JSON-RPC: h11 on trio, keep-alive, limits and deadlines, CORS for pages in a browser."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import h11
import trio

MAX_BODY_BYTES = 50 * 1024
"""As on a node: a larger request is answered with 413."""

MAX_HEADER_BYTES = 16 * 1024
MAX_CONNECTIONS = 480
IDLE_SECONDS = 75.0
"""How long a kept-alive connection may be silent."""

REQUEST_SECONDS = 15.0
"""From a request's first byte to its last."""

RESPONSE_SECONDS = 30.0
"""How long a client may take to read a response."""

READ_BYTES = 64 * 1024
CORS = [
    (b"access-control-allow-origin", b"*"),
    (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
    (b"access-control-allow-headers", b"content-type, solana-client"),
    (b"access-control-max-age", b"86400"),
]
JSON = b"application/json"
TEXT = b"text/plain"

logger = logging.getLogger(__name__)

Answer = Callable[[bytes], Iterator[bytes | None]]
"""Request body to the pieces of the response body; see ``dispatch.iter_answers``."""


@dataclass(slots=True)
class Response:
    """A whole response."""

    status: int
    body: bytes = b""
    content_type: bytes = TEXT
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)


class RequestTooLarge(Exception):
    """The body is over MAX_BODY_BYTES."""


class HttpServer:
    """Answers POST with ``answer``, GET /health with "ok"."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._num_connections = 0

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end; never raises for what the client does."""
        if self._num_connections >= MAX_CONNECTIONS:
            await trio.aclose_forcefully(stream)
            return
        self._num_connections += 1
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEADER_BYTES)
        try:
            stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
                while await self._serve_request(connection, stream):
                    connection.start_next_cycle()
        finally:
            self._num_connections -= 1
            await trio.aclose_forcefully(stream)

    async def _serve_request(self, connection: h11.Connection, stream: trio.SocketStream) -> bool:
        """Serve one request; False when the connection is finished."""
        try:
            with trio.move_on_after(IDLE_SECONDS) as idle:
                request = await _next_event(connection, stream, idle)
            if idle.cancelled_caught or not isinstance(request, h11.Request):
                return False
            with trio.move_on_after(REQUEST_SECONDS) as late:
                body = await _read_body(connection, stream)
            response = (
                Response(408, b"The request took too long.\n")
                if late.cancelled_caught
                else await self._respond(request, body)
            )
        except h11.RemoteProtocolError as error:
            response = Response(error.error_status_hint, b"Bad request.\n")
        except RequestTooLarge:
            response = Response(413, b"The request is larger than 50 KiB.\n")
        return await _send_response(connection, stream, response)

    async def _respond(self, request: h11.Request, body: bytes) -> Response:
        headers = dict(request.headers)
        if request.method == b"OPTIONS":
            return Response(204)
        if request.method == b"GET" and request.target.split(b"?")[0] == b"/health":
            return Response(200, b"ok")
        if request.method != b"POST":
            return Response(405, b"Used HTTP Method is not allowed. POST or OPTIONS is required\n")
        if headers.get(b"content-type", b"").split(b";")[0].strip().lower() != JSON:
            return Response(
                415, b"Supplied content type is not allowed. Content-Type: application/json is required\n"
            )
        pieces = []
        for piece in self._answer(body):
            pieces.append(piece or b"")
            await trio.lowlevel.checkpoint()  # let others have their turn between the calls of a batch
        answer = b"".join(pieces)
        return Response(200 if answer else 204, answer, JSON)


async def _next_event(
    connection: h11.Connection, stream: trio.SocketStream, idle: trio.CancelScope | None = None
) -> object:
    """The next h11 event. ``idle``: a scope whose deadline is shortened once a request has begun."""
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        if connection.they_are_waiting_for_100_continue:
            headers: list[tuple[bytes, bytes]] = []
            await _send(stream, connection, h11.InformationalResponse(status_code=100, headers=headers))
        received = bytes(await stream.receive_some(READ_BYTES))
        if idle is not None:
            idle.deadline = min(idle.deadline, trio.current_time() + REQUEST_SECONDS)
            idle = None
        connection.receive_data(received)


async def _read_body(connection: h11.Connection, stream: trio.SocketStream) -> bytes:
    body = bytearray()
    while True:
        event = await _next_event(connection, stream)
        if isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_BODY_BYTES:
                raise RequestTooLarge
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
        else:
            raise h11.RemoteProtocolError("the request ended within its body")


async def _send(stream: trio.SocketStream, connection: h11.Connection, event: h11.Event) -> None:
    data = connection.send(event)
    if data:
        await stream.send_all(data)


async def _send_response(connection: h11.Connection, stream: trio.SocketStream, response: Response) -> bool:
    """Send it; returns whether the connection can serve another request."""
    if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
        return False
    headers = [*CORS, *response.headers]
    if response.status != 204:
        headers += [
            (b"content-type", response.content_type),
            (b"content-length", str(len(response.body)).encode()),
        ]
    must_close = connection.their_state is not h11.DONE
    if must_close:
        headers.append((b"connection", b"close"))
    head = connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
    parts = [head]
    if response.body:
        parts.append(connection.send(h11.Data(data=response.body)) or b"")
    parts.append(connection.send(h11.EndOfMessage()) or b"")
    with trio.move_on_after(RESPONSE_SECONDS) as late:
        await stream.send_all(b"".join(parts))
        if must_close:
            await _drain(stream)
    return not late.cancelled_caught and not must_close and _is_finished(connection)


def _is_finished(connection: h11.Connection) -> bool:
    """Whether both sides have ended this request in an orderly way and may begin another."""
    return connection.our_state is h11.DONE and connection.their_state is h11.DONE


async def _drain(stream: trio.SocketStream) -> None:
    """Read on for a moment: closing with unread bytes would reset the connection and lose our answer."""
    await stream.send_eof()
    with trio.move_on_after(1.0):
        while await stream.receive_some(READ_BYTES):
            pass
