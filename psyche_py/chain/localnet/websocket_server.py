"""The websocket side: trio-websocket connections in front of the subscription hub."""

from __future__ import annotations

import logging
from collections import deque

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream
from wsproto.utilities import ProtocolError

from psyche_py.chain.localnet.dispatch import MAX_BATCH, dump, dump_error, get_request_id, parse, parse_call
from psyche_py.chain.localnet.rpc_errors import INVALID_REQUEST, RpcError
from psyche_py.chain.localnet.subscriptions import SUBSCRIBE, Hub

MAX_MESSAGE_BYTES = 50 * 1024
MAX_QUEUED_BYTES = 16 << 20
"""A subscriber that lags behind by more is disconnected; it can come back and read the present state."""

MAX_CONNECTIONS = 480
HANDSHAKE_SECONDS = 10.0
CLOSE_SECONDS = 1.0
SEND_SECONDS = 30.0
"""How long one message may take to leave; a client that reads nothing is disconnected."""

logger = logging.getLogger(__name__)


class Outbox:
    """The messages that one connection has yet to be sent."""

    def __init__(self) -> None:
        self._texts: deque[str] = deque()
        self._num_bytes = 0
        self._has_news = trio.Event()
        self.is_overflown = False

    def push(self, text: str) -> None:
        """Queue a message, or give the connection up when it lags too far behind."""
        if self.is_overflown:
            return
        self._num_bytes += len(text)
        if self._num_bytes > MAX_QUEUED_BYTES:
            self.is_overflown = True
            self._texts.clear()
        else:
            self._texts.append(text)
        self._has_news.set()

    async def pop(self) -> str | None:
        """The next message, waiting for one; None when the connection must be given up."""
        while not self._texts:
            if self.is_overflown:
                return None
            self._has_news = trio.Event()
            await self._has_news.wait()
        text = self._texts.popleft()
        self._num_bytes -= len(text)
        return text


class WebSocketServer:
    """Serves the subscribe and unsubscribe methods."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._num_connections = 0

    async def serve_connection(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end; never raises for what the client does."""
        outbox = Outbox()
        try:
            if self._num_connections < MAX_CONNECTIONS:
                self._num_connections += 1
                try:
                    await self._converse(stream, outbox)
                finally:
                    self._num_connections -= 1
        finally:
            self._hub.drop_subscriber(outbox)
            await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.SocketStream, outbox: Outbox) -> None:
        try:
            async with trio.open_nursery() as nursery:
                stream.setsockopt(trio.socket.IPPROTO_TCP, trio.socket.TCP_NODELAY, 1)
                with trio.move_on_after(HANDSHAKE_SECONDS) as late:
                    request = await wrap_server_stream(nursery, stream, max_message_size=MAX_MESSAGE_BYTES)
                    connection = await request.accept()
                if not late.cancelled_caught:
                    nursery.start_soon(self._send_all, connection, outbox, nursery.cancel_scope)
                    await self._receive_all(connection, outbox)
                nursery.cancel_scope.cancel()
        except* (
            ConnectionClosed,
            ProtocolError,
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            OSError,
        ):
            logger.debug("a websocket client left")

    async def _receive_all(self, connection: WebSocketConnection, outbox: Outbox) -> None:
        while True:
            message = await connection.get_message()
            for text in self._answer(message, outbox):
                outbox.push(text)

    async def _send_all(
        self, connection: WebSocketConnection, outbox: Outbox, scope: trio.CancelScope
    ) -> None:
        while (text := await outbox.pop()) is not None:
            with trio.move_on_after(SEND_SECONDS) as late:
                await connection.send_message(text)
            if late.cancelled_caught:
                break
        logger.warning("A websocket client reads too slowly; it is disconnected.")
        with trio.move_on_after(CLOSE_SECONDS):
            await connection.aclose(1013, "too slow")  # "try again later"
        scope.cancel()

    def _answer(self, message: str | bytes, outbox: Outbox) -> list[str]:
        """Responses to one message."""
        try:
            request = parse(message)
        except RpcError as error:
            return [dump_error(None, error).decode()]
        if not isinstance(request, list):
            answer = self._answer_call(request, outbox)
            return [] if answer is None else [answer]
        if not request or len(request) > MAX_BATCH:
            return [dump_error(None, RpcError(INVALID_REQUEST, "Invalid request")).decode()]
        answers = [self._answer_call(call, outbox) for call in request]
        wanted = [answer for answer in answers if answer is not None]
        return [f"[{','.join(wanted)}]"] if wanted else []

    def _answer_call(self, request: object, outbox: Outbox) -> str | None:
        try:
            method, params, request_id, is_wanted = parse_call(request)
            if not is_wanted:  # web3.js sends "ping" this way every few seconds
                return None
            result = self._hub.handle(outbox, method, params)
        except RpcError as error:
            return dump_error(get_request_id(request), error).decode()
        answer = dump({"jsonrpc": "2.0", "result": result, "id": request_id}).decode()
        if method in SUBSCRIBE:
            outbox.push(answer)  # the id must arrive before the first notification
            self._hub.after_subscribed(result)
            return None
        return answer
