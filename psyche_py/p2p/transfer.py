"""Fetching a blob from whoever has it.

Holders are tried in order. One that makes no progress for a moment is not given up, but the next one is
started beside it (a hedge); the first complete and correct copy wins. Bytes of a broken transfer are kept
and the next holder continues after them. A holder that delivered wrong bytes is not asked again.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.errors import FetchFailed

HEDGE_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
THREAD_HASH_BYTES = 1 << 20
"""Longer blobs are hashed in a thread: the event loop must not stall."""

Download = Callable[[bytes, bytes, int, bytearray], Awaitable[None]]
"""``await download(peer_key, digest, size, buffer)`` appends the missing bytes to ``buffer``.

It starts at offset ``len(buffer)`` and raises NetworkError when it fails; what it appended stays useful.
"""


class HolderAtFault(NetworkError):
    """The holder answered something that cannot be right (another size, wrong bytes)."""


async def compute_digest(data: bytes | bytearray) -> bytes:
    """SHA-256, in a thread when it would take long."""
    if len(data) < THREAD_HASH_BYTES:
        return hashlib.sha256(data).digest()
    return (await trio.to_thread.run_sync(hashlib.sha256, data)).digest()


class BlobFetch:
    """One blob being fetched.

    ``get_holders()`` is asked anew before every round through the holders, since peers come and go.
    """

    def __init__(
        self,
        digest: bytes,
        size: int,
        get_holders: Callable[[], Sequence[bytes]],
        download: Download,
        *,
        hedge_seconds: float = HEDGE_SECONDS,
    ) -> None:
        self._digest = digest
        self._size = size
        self._get_holders = get_holders
        self._download = download
        self._hedge_seconds = hedge_seconds
        self._kept = bytearray()
        self._may_resume = True
        self._at_fault: set[bytes] = set()
        self._failures: deque[tuple[bytes, str]] = deque(maxlen=64)
        self._result: bytes | None = None

    async def run(self, deadline_seconds: float) -> bytes:
        """The bytes, checked. Raises FetchFailed when the deadline passes."""
        pause = FIRST_PAUSE_SECONDS
        with trio.move_on_after(deadline_seconds):
            while True:
                await self._try_holders()
                if self._result is not None:
                    return self._result
                await trio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
        raise FetchFailed(self._digest, tuple(self._failures))

    async def _try_holders(self) -> None:
        holders = [key for key in self._get_holders() if key not in self._at_fault]
        async with trio.open_nursery() as nursery:
            for key in dict.fromkeys(holders):
                buffer = bytearray(self._kept)
                done = trio.Event()
                nursery.start_soon(self._attempt, key, buffer, done, nursery.cancel_scope)
                await self._wait_while_progressing(buffer, done)

    async def _wait_while_progressing(self, buffer: bytearray, done: trio.Event) -> None:
        while not done.is_set():
            before = len(buffer)
            with trio.move_on_after(self._hedge_seconds):
                await done.wait()
            if len(buffer) == before:
                return

    async def _attempt(
        self, key: bytes, buffer: bytearray, done: trio.Event, others: trio.CancelScope
    ) -> None:
        start = len(buffer)
        try:
            await self._download(key, self._digest, self._size, buffer)
            await self._check(buffer, start)
        except NetworkError as error:
            self._failures.append((key, str(error)))
            if isinstance(error, HolderAtFault):
                self._blame(key, start)
            elif self._may_resume and len(self._kept) < len(buffer) <= self._size:
                self._kept = buffer
        else:
            self._result = bytes(buffer)
            others.cancel()
        finally:
            done.set()

    async def _check(self, buffer: bytearray, start: int) -> None:
        if len(buffer) != self._size or await compute_digest(buffer) != self._digest:
            raise HolderAtFault(f"wrong bytes (continued at {start})")

    def _blame(self, key: bytes, start: int) -> None:
        """Wrong bytes are the holder's fault if it sent all of them; else nobody knows, so start over."""
        if start == 0:
            self._at_fault.add(key)
        else:
            self._may_resume = False
            self._kept = bytearray()
