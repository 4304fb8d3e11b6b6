"""Fetching a blob from whoever has it.

Holders are tried in order. One that refers us to others (uploads.py) is followed by these. One that makes no
progress for a moment is not given up, but the next one is started beside it (a hedge); the first complete and
correct copy wins. Bytes of a broken transfer are kept and the next holder continues after them. A holder that
delivered wrong bytes is not asked again.
"""

from __future__ import annotations

import hashlib
import io
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from psyche_py.errors import NetworkError
from psyche_py.p2p.errors import FetchFailed, PeerUnreachable

HEDGE_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 0.1
MAX_PAUSE_SECONDS = 2.0
THREAD_HASH_BYTES = 1 << 20
"""Longer blobs are hashed in a thread: the event loop must not stall."""


class BlobBuffer:
    """Bytes as they arrive; in the end they become `bytes` without a copy, as only BytesIO can do it."""

    def __init__(self, data: bytes = b"") -> None:
        self._file = io.BytesIO(data)
        self._file.seek(0, io.SEEK_END)

    def __iadd__(self, data: bytes | memoryview) -> BlobBuffer:
        self._file.write(data)
        return self

    def __len__(self) -> int:
        return self._file.tell()

    def get_bytes(self) -> bytes:
        """All of it; appending afterwards costs a copy."""
        return self._file.getvalue()


@dataclass(slots=True)
class BlobQuestion:
    """One attempt at a blob of ``size`` bytes whose SHA-256 is ``digest``.

    The answer is appended to ``buffer``, from offset ``len(buffer)``; ``on_start()`` is called before the
    first byte. ``is_urgent``: nobody we were referred to could serve us.
    """

    digest: bytes
    size: int
    buffer: BlobBuffer
    is_urgent: bool
    on_start: Callable[[], None]


Download = Callable[[bytes, BlobQuestion], Awaitable[None]]
"""``await download(peer_key, question)``; raises NetworkError. What it appended stays useful."""


class Referred(NetworkError):
    """The holder ``peer_key`` has given enough copies away and names peers that have them."""

    def __init__(self, peer_key: bytes, others: Sequence[bytes]) -> None:
        super().__init__(f"Peer {peer_key.hex()[:12]} refers us to {len(others)} others.")
        self.others = tuple(others)


class HolderAtFault(NetworkError):
    """The holder answered something that cannot be right (another size, wrong bytes)."""


async def compute_digest(data: bytes) -> bytes:
    """SHA-256, in a thread when it would take long."""
    if len(data) < THREAD_HASH_BYTES:
        return hashlib.sha256(data).digest()
    return (await trio.to_thread.run_sync(hashlib.sha256, data)).digest()


class BlobFetch:
    """One blob being fetched.

    ``get_holders()`` is asked anew before every round through the holders, since peers come and go.
    ``on_wrong_bytes(key)``: that holder sent a whole blob which has another digest.
    """

    def __init__(
        self,
        digest: bytes,
        size: int,
        get_holders: Callable[[], Sequence[bytes]],
        download: Download,
        *,
        hedge_seconds: float = HEDGE_SECONDS,
        on_wrong_bytes: Callable[[bytes], None] = lambda key: None,
    ) -> None:
        self._digest = digest
        self._size = size
        self._get_holders = get_holders
        self._download = download
        self._hedge_seconds = hedge_seconds
        self._on_wrong_bytes = on_wrong_bytes
        self._kept = BlobBuffer()
        self._may_resume = True
        self._at_fault: set[bytes] = set()
        self._failures: deque[tuple[bytes, str]] = deque(maxlen=64)
        self._result: bytes | None = None
        self._was_referred = False
        self._is_urgent = False
        self._queue: deque[bytes] = deque()
        self._waiting: dict[bytes, trio.CancelScope] = {}

    async def run(self, deadline_seconds: float) -> bytes:
        """The bytes, checked. Raises FetchFailed when the deadline passes."""
        pause = FIRST_PAUSE_SECONDS
        with trio.move_on_after(deadline_seconds):
            while True:
                was_urgent = self._is_urgent
                await self._try_holders()
                if self._result is not None:
                    return self._result
                if self._is_urgent and not was_urgent:
                    continue  # but who refers us for ever does not make us ask without a pause
                await trio.sleep(pause)
                pause = min(2 * pause, MAX_PAUSE_SECONDS)
        raise FetchFailed(self._digest, tuple(self._failures))

    async def _try_holders(self) -> None:
        """Ask every holder once, and every peer that we are referred to."""
        self._queue = deque(self._get_holders())
        asked = set(self._at_fault)
        async with trio.open_nursery() as nursery:
            while self._queue:
                key = self._queue.popleft()
                if key not in asked:
                    asked.add(key)
                    buffer = BlobBuffer(self._kept.get_bytes())
                    done = trio.Event()
                    nursery.start_soon(self._attempt, key, buffer, done, nursery.cancel_scope)
                    await self._wait_while_progressing(buffer, done)
        self._is_urgent, self._was_referred = self._was_referred, False

    async def _wait_while_progressing(self, buffer: BlobBuffer, done: trio.Event) -> None:
        while not done.is_set():
            before = len(buffer)
            with trio.move_on_after(self._hedge_seconds):
                await done.wait()
            if len(buffer) == before:
                return

    async def _attempt(
        self, key: bytes, buffer: BlobBuffer, done: trio.Event, others: trio.CancelScope
    ) -> None:
        start = len(buffer)
        try:
            await self._ask(key, buffer)
            await self._check(key, buffer, start)
        except Referred as error:
            self._failures.append((key, str(error)))
            self._was_referred = True
            self._queue.extendleft(reversed(error.others))
        except NetworkError as error:
            self._failures.append((key, str(error)))
            if isinstance(error, HolderAtFault):
                self._blame(key, start)
            elif self._may_resume and len(self._kept) < len(buffer) <= self._size:
                self._kept = buffer
        else:
            self._result = buffer.get_bytes()
            others.cancel()
        finally:
            done.set()

    async def _ask(self, key: bytes, buffer: BlobBuffer) -> None:
        """Raises NetworkError."""
        with trio.CancelScope() as scope:
            self._waiting[key] = scope
            question = BlobQuestion(
                self._digest, self._size, buffer, self._is_urgent, lambda: self._stop_waiting(key)
            )
            try:
                await self._download(key, question)
            finally:
                self._waiting.pop(key, None)
        if scope.cancelled_caught:
            raise PeerUnreachable(key, "another one was faster")

    def _stop_waiting(self, key: bytes) -> None:
        """``key`` begins to answer: do not let those who have not begun upload the same."""
        self._waiting.pop(key, None)
        for scope in self._waiting.values():
            scope.cancel()

    async def _check(self, key: bytes, buffer: BlobBuffer, start: int) -> None:
        if len(buffer) != self._size or await compute_digest(buffer.get_bytes()) != self._digest:
            if start == 0:
                self._on_wrong_bytes(key)  # all of them are its own
            raise HolderAtFault(f"wrong bytes (continued at {start})")

    def _blame(self, key: bytes, start: int) -> None:
        """Wrong bytes are the holder's fault if it sent all of them; else nobody knows, so start over."""
        if start == 0:
            self._at_fault.add(key)
        else:
            self._may_resume = False
            self._kept = BlobBuffer()
