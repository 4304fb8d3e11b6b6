"""A libp2p stream to a peer, with one kind of error and a deadline on every wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import trio
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.io.trio import TrioTCPStream
from libp2p.network.stream.exceptions import StreamEOF

from psyche_py.p2p.errors import StreamBroken
from psyche_py.p2p.libp2p_patches import QuickLock

if TYPE_CHECKING:
    from psyche_py.p2p.libp2p_services import ByteStream

RESET_SECONDS = 2.0
WRITE_SECONDS = 15.0
READ_BYTES = 1 << 16
ONE_FRAME_BYTES = 4_096
"""What an honest peer says in one Yamux frame, which arrives as a whole or not at all."""
FINISH_SECONDS = 5.0


class MeshStream:
    """A stream whose other end is the peer ``key``."""

    def __init__(self, stream: Any, key: bytes) -> None:
        self._stream = stream
        if not isinstance(stream._state_lock, QuickLock):
            stream._state_lock = QuickLock()
        self.key = key

    async def read(self, max_bytes: int, seconds: float) -> bytes:
        """Some bytes, or none at the end of the stream. Raises StreamBroken, also when it takes too long."""
        try:
            with trio.fail_after(seconds):
                data: bytes = await self._stream.read(max_bytes)
                if len(data) == max_bytes:  # more may be there: whoever reads in a loop lets others run
                    await trio.lowlevel.checkpoint()
                return data
        except trio.TooSlowError:
            raise StreamBroken(f"nothing arrived for {seconds:g} s") from None
        except StreamEOF:
            return b""
        except Exception as error:
            raise StreamBroken(f"read: {type(error).__name__}") from error

    async def read_exactly(self, num_bytes: int, seconds: float) -> bytes:
        """Exactly so many bytes, all of them within the time. Raises StreamBroken."""
        data = bytearray()
        deadline = trio.current_time() + seconds
        while len(data) < num_bytes:
            try:
                part = await self.read(num_bytes - len(data), max(0.0, deadline - trio.current_time()))
            except StreamBroken as error:
                if data and num_bytes <= ONE_FRAME_BYTES and trio.current_time() >= deadline:
                    error.offence = "stream_slow"
                raise
            if not part:
                raise StreamBroken(f"it ended after {len(data)} of {num_bytes} bytes")
            data += part
        return bytes(data)

    async def write(self, data: bytes | memoryview, seconds: float) -> None:
        """Send all bytes. Raises StreamBroken, also when the peer does not take them in time."""
        try:
            with trio.fail_after(seconds):
                await self._stream.write(bytes(data))
        except trio.TooSlowError:
            raise StreamBroken(f"the peer took nothing for {seconds:g} s") from None
        except Exception as error:
            raise StreamBroken(f"write: {type(error).__name__}") from error

    async def close(self) -> None:
        """Say that we write no more; what was written still arrives."""
        try:
            with trio.move_on_after(RESET_SECONDS):
                await self._stream.close()
        except Exception as error:
            raise StreamBroken(f"close: {type(error).__name__}") from error

    async def finish(self) -> None:
        """Close, and wait for the peer to do the same, so that no reset can overtake our last bytes."""
        await self.close()
        await self.read(1, FINISH_SECONDS)

    async def reset(self) -> None:
        """Give the stream up, whatever its state. Safe in `finally`: shielded, bounded, raises nothing."""
        with trio.CancelScope(deadline=trio.current_time() + RESET_SECONDS, shield=True):
            await self._stream.reset()


class PunchedStream(TrioTCPStream):  # type: ignore[misc]  # the library has no types
    """A TCP connection that both sides have opened (punch.py)."""


class Carrier:
    """A stream in the place of a TCP connection, for a connection through a relay.

    Looks to libp2p like the lower end of a connection, and to `libp2p_patches.get_socket` like a socket.
    """

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self._reading = trio.CancelScope()
        self._is_closed = False
        self.stream = self
        self.socket = CarrierSocket(self)

    async def read(self, num_bytes: int | None = None) -> bytes:
        """Some bytes; none at the end. Raises ConnectionClosedError."""
        with trio.CancelScope() as self._reading:
            if self._is_closed:
                return b""
            try:
                return bytes(await self._stream.read(num_bytes or READ_BYTES, float("inf")))
            except StreamBroken as error:
                raise ConnectionClosedError(str(error)) from error
        return b""

    async def write(self, data: bytes) -> None:
        """Send all bytes. Raises ConnectionClosedError."""
        try:
            await self._stream.write(data, WRITE_SECONDS)
        except StreamBroken as error:
            raise ConnectionClosedError(str(error)) from error

    def cut(self) -> None:
        """Nothing is read from now on; whoever holds the stream resets it."""
        self._is_closed = True
        self._reading.cancel()

    async def close(self) -> None:
        """End both directions."""
        self.cut()
        await self._stream.reset()

    def get_remote_address(self) -> None:
        """It has none."""


class CarrierSocket:
    """The part of a socket that is used to end a connection."""

    def __init__(self, carrier: Carrier) -> None:
        self._carrier = carrier

    def close(self) -> None:
        """End the connection now."""
        self._carrier.cut()
