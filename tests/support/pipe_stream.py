"""A stream to a peer, on a pipe within the process."""

from __future__ import annotations

from typing import Any

import trio
from trio.testing import memory_stream_pair

from psyche_py.p2p.errors import StreamBroken


class PipeStream:
    """Like `libp2p_stream.MeshStream`, on a pipe."""

    def __init__(self, pipe: trio.StapledStream[Any, Any], key: bytes = b"k" * 32) -> None:
        self.key = key
        self._pipe = pipe

    async def read(self, max_bytes: int, seconds: float) -> bytes:
        try:
            with trio.fail_after(seconds):
                return bytes(await self._pipe.receive_some(max_bytes))
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise StreamBroken("read") from error

    async def read_exactly(self, num_bytes: int, seconds: float) -> bytes:
        data = b""
        while len(data) < num_bytes:
            part = await self.read(num_bytes - len(data), seconds)
            if not part:
                raise StreamBroken("end")
            data += part
        return data

    async def write(self, data: bytes, seconds: float) -> None:
        try:
            with trio.fail_after(seconds):
                await self._pipe.send_all(data)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise StreamBroken("write") from error

    async def close(self) -> None:
        await self._pipe.send_eof()

    async def reset(self) -> None:
        await self._pipe.aclose()


def make_pipe_streams(near_key: bytes, far_key: bytes = b"k" * 32) -> tuple[PipeStream, PipeStream]:
    """The two ends: the first is held by ``near_key``, so it is what the second one leads to."""
    near, far = memory_stream_pair()
    return PipeStream(near, far_key), PipeStream(far, near_key)
