"""A websocket for the length of a block, whose socket is closed whatever happens.

trio-websocket's own ``open_websocket_url`` leaves the socket to the garbage collector when it is cancelled
during the handshake (0.12.2); a subscription that reconnects for weeks cannot have that.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import trio
from trio_websocket import WebSocketConnection, wrap_client_stream

MAX_MESSAGE_BYTES = 16 << 20
NUM_QUEUED_MESSAGES = 64
CLOSE_SECONDS = 1.0


@asynccontextmanager
async def open_websocket(url: str, *, connect_seconds: float) -> AsyncIterator[WebSocketConnection]:
    """Connect to a ws:// or wss:// URL.

    Raises trio.TooSlowError, OSError, ssl.SSLError, trio.BrokenResourceError, trio_websocket.HandshakeError
    or ConnectionClosed, in exception groups where they come from the connection's own task.
    """
    parts = urlsplit(url)
    is_secure = parts.scheme == "wss"
    host, port = parts.hostname or "", parts.port or (443 if is_secure else 80)
    resource = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    stream: trio.abc.Stream
    with trio.fail_after(connect_seconds):
        if is_secure:
            stream = await trio.open_ssl_over_tcp_stream(
                host, port, ssl_context=ssl.create_default_context(), https_compatible=True
            )
        else:
            stream = await trio.open_tcp_stream(host, port)
    try:
        async with trio.open_nursery() as nursery:
            with trio.fail_after(connect_seconds):
                websocket = await wrap_client_stream(
                    nursery,
                    stream,
                    parts.netloc.rpartition("@")[2],
                    resource,
                    message_queue_size=NUM_QUEUED_MESSAGES,
                    max_message_size=MAX_MESSAGE_BYTES,
                )
            try:
                yield websocket
            finally:
                with trio.move_on_after(CLOSE_SECONDS):
                    await websocket.aclose()
                nursery.cancel_scope.cancel()
    finally:
        await trio.aclose_forcefully(stream)
