"""The lock in the place of trio's in libp2p: as exclusive, without a turn of the loop when it is free."""

from __future__ import annotations

import libp2p.stream_muxer.yamux.yamux as yamux
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from psyche_py.p2p.libp2p_patches import READS_PER_TURN, QuickLock, _WatchedReader


async def note(name: str, lock: QuickLock, seconds: float, notes: list[str]) -> None:
    """Hold the lock for so long, and note when that begins and ends."""
    async with lock:
        notes.append(f"{name} in")
        await trio.sleep(seconds)
        notes.append(f"{name} out")


def test_a_free_lock_is_taken_before_anybody_else_runs() -> None:
    async def main() -> None:
        lock, notes = QuickLock(), list[str]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "other", QuickLock(), 0.0, notes)
            for _ in range(3):
                async with lock:
                    notes.append("mine")
        assert notes == ["mine"] * 3 + ["other in", "other out"]

    trio.run(main)


def test_one_at_a_time_in_the_order_of_the_waiting() -> None:
    async def main() -> None:
        lock, notes = QuickLock(), list[str]()
        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(note, name, lock, 1.0, notes)
                await wait_all_tasks_blocked()
        assert notes == ["a in", "a out", "b in", "b out", "c in", "c out"]
        await note("d", lock, 0.0, notes)
        assert notes[-2:] == ["d in", "d out"]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_who_is_cancelled_while_waiting_does_not_get_it() -> None:
    async def main() -> None:
        lock, notes = QuickLock(), list[str]()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(note, "a", lock, 2.0, notes)
            await wait_all_tasks_blocked()
            with trio.move_on_after(1.0) as scope:
                await note("b", lock, 0.0, notes)
            assert scope.cancelled_caught
        await note("c", lock, 0.0, notes)
        assert notes == ["a in", "a out", "c in", "c out"]

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_who_is_cancelled_already_does_not_get_it_though_it_is_free() -> None:
    async def main() -> None:
        lock, notes = QuickLock(), list[str]()
        with trio.CancelScope() as scope:
            scope.cancel()
            await note("a", lock, 0.0, notes)
        assert notes == []
        await note("b", lock, 0.0, notes)
        assert notes == ["b in", "b out"]

    trio.run(main)


def test_an_error_gives_it_back() -> None:
    async def main() -> None:
        lock, notes = QuickLock(), list[str]()
        with pytest.raises(KeyError):
            async with lock:
                raise KeyError("error")
        await note("b", lock, 0.0, notes)
        assert notes == ["b in", "b out"]

    trio.run(main)


def test_a_record_of_empty_frames_does_not_keep_everybody_waiting() -> None:
    """Nothing on the way of a frame that has come gives up its turn, so the reader does it itself."""

    async def main() -> None:
        turns = 0

        async def read(num_bytes: int | None) -> bytes:
            return bytes(yamux.HEADER_SIZE)

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        reader = _WatchedReader(read, lambda kind: pytest.fail(kind))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count_turns)
            for _ in range(10 * READS_PER_TURN):
                await reader.read(yamux.HEADER_SIZE)
            nursery.cancel_scope.cancel()
        assert turns >= 5

    trio.run(main)
