"""Can others dial us? A node of the run tries, for anybody who asks from the address in question.

On the port of the mesh, beside libp2p and bulk connections; nothing of it needs a key:

    call   -> CALL_HELLO 14, token 16, port u16 little-endian     <- 1 yes, 0 no, 2 ask again later
    back   -> BACK_HELLO 14, token 16                             <- token 16

The node that was called connects to the address that the call came from and to no other, so it can be used
against nobody; it does so once a second at most. Whoever listens for the mesh returns the token: `run-manager
doctor`, or a client that is already running.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from enum import IntEnum

import trio

from psyche_py.p2p.errors import ListenFailed, PeerUnreachable
from psyche_py.p2p.limits import TokenBucket

CALL_HELLO = b"\0psyche-call/1"
BACK_HELLO = b"\0psyche-back/1"
TOKEN_BYTES = 16
CALL_RATE, CALL_BURST = 1.0, 8.0
STEP_SECONDS = 5.0
"""For connecting, and for each answer."""
_PORT = struct.Struct("<H")


class Answer(IntEnum):
    """What a called node says."""

    NO = 0
    YES = 1
    LATER = 2


class DialBackService:
    """The answering side. The caller has read the hello, and closes the socket afterwards."""

    def __init__(self, now: float) -> None:
        self._calls = TokenBucket(CALL_RATE, CALL_BURST, now)

    async def answer_call(self, socket: trio.socket.SocketType) -> None:
        """Dial the caller's address at the port it names and say whether that worked."""
        with suppress(OSError), trio.move_on_after(4 * STEP_SECONDS):
            head = await receive_exactly(socket, TOKEN_BYTES + _PORT.size)
            if head is None:
                return
            (port,) = _PORT.unpack_from(head, TOKEN_BYTES)
            answer = Answer.LATER
            if self._calls.take(trio.current_time()):
                ip = socket.getpeername()[0]
                answer = Answer(await is_answered(ip, port, head[:TOKEN_BYTES]))
            await socket.send(bytes([answer]))


async def return_token(socket: trio.socket.SocketType) -> None:
    """Answer a node that dials back."""
    with suppress(OSError), trio.move_on_after(STEP_SECONDS):
        token = await receive_exactly(socket, TOKEN_BYTES)
        if token is not None:
            await socket.send(token)


async def is_answered(ip: str, port: int, token: bytes) -> bool:
    """Whether somebody at this address returns the token."""
    if not port:
        return False
    with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
        with trio.move_on_after(STEP_SECONDS):
            stream = await trio.open_tcp_stream(ip, port)
            async with stream:
                await stream.send_all(BACK_HELLO + token)
                return await receive_exactly(stream.socket, TOKEN_BYTES) == token
    return False


async def call(host: str, port: int, own_port: int) -> Answer:
    """Ask the node at ``host`` whether it can dial us at ``own_port``. Raises PeerUnreachable.

    The node sees the address that our connection to it comes from, behind a NAT that of the NAT.
    """
    token = secrets.token_bytes(TOKEN_BYTES)
    try:
        with trio.fail_after(STEP_SECONDS):
            stream = await trio.open_tcp_stream(host, port)
        async with stream:
            with trio.fail_after(4 * STEP_SECONDS):
                await stream.send_all(CALL_HELLO + token + _PORT.pack(own_port))
                said = await receive_exactly(stream.socket, 1)
    except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
        raise PeerUnreachable(bytes(32), f"{host} port {port}: {error or 'no answer'}") from error
    if said is None or said[0] not in Answer.__members__.values():
        raise PeerUnreachable(bytes(32), f"{host} port {port} does not speak the mesh's language")
    return Answer(said[0])


async def receive_exactly(socket: trio.socket.SocketType, num_bytes: int) -> bytes | None:
    """So many bytes, or None when the connection ends before. Raises OSError."""
    data = b""
    while len(data) < num_bytes:
        part = await socket.recv(num_bytes - len(data))
        if not part:
            return None
        data += part
    return data


@asynccontextmanager
async def serve_tokens(ip: str, port: int) -> AsyncIterator[int]:
    """Listen at an address (port 0: any) and return tokens; yields the port. Raises ListenFailed."""
    try:
        listeners = await trio.open_tcp_listeners(port, host=ip)
    except OSError as error:
        raise ListenFailed(f"Cannot listen on {ip} port {port}: {error}.") from error

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            with suppress(OSError), trio.move_on_after(STEP_SECONDS):
                if await receive_exactly(stream.socket, len(BACK_HELLO)) == BACK_HELLO:
                    await return_token(stream.socket)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield int(listeners[0].socket.getsockname()[1])
        nursery.cancel_scope.cancel()
