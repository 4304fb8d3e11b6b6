"""Fetching from several holders: order, hedge, resume, blame."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence

import pytest
import trio
from trio.testing import MockClock

from psyche_py.p2p.errors import FetchFailed, PeerUnreachable, StreamBroken
from psyche_py.p2p.transfer import BlobBuffer, BlobFetch, BlobQuestion, HolderAtFault, Referred

DATA = bytes(range(256)) * 40
DIGEST = hashlib.sha256(DATA).digest()
A, B, C = b"a" * 32, b"b" * 32, b"c" * 32
Behaviour = Callable[[BlobBuffer], Awaitable[None]]


async def good(buffer: BlobBuffer) -> None:
    await trio.sleep(0.1)
    buffer += DATA[len(buffer) :]


async def missing(buffer: BlobBuffer) -> None:
    raise PeerUnreachable(A, "it does not have the blob")


async def wrong(buffer: BlobBuffer) -> None:
    buffer += bytes(len(DATA) - len(buffer))


async def too_long(buffer: BlobBuffer) -> None:
    raise HolderAtFault("another size")


async def hangs(buffer: BlobBuffer) -> None:
    await trio.sleep_forever()


async def breaks_half_way(buffer: BlobBuffer) -> None:
    buffer += DATA[len(buffer) : len(DATA) // 2]
    raise StreamBroken("gone")


async def breaks_with_garbage(buffer: BlobBuffer) -> None:
    buffer += bytes(len(DATA) // 2)
    raise StreamBroken("gone")


async def slow(buffer: BlobBuffer) -> None:
    while len(buffer) < len(DATA):
        await trio.sleep(1)
        buffer += DATA[len(buffer) : len(buffer) + 1_000]


class Peers:
    """Holders with behaviours; notes who was asked when, from which offset."""

    def __init__(self, *behaviours: tuple[bytes, Sequence[Behaviour]]) -> None:
        self.behaviours = {key: list(steps) for key, steps in behaviours}
        self.asked: list[tuple[bytes, int]] = []
        self.urgent: list[bool] = []

    async def download(self, key: bytes, question: BlobQuestion) -> None:
        assert (question.digest, question.size) == (DIGEST, len(DATA))
        self.asked.append((key, len(question.buffer)))
        self.urgent.append(question.is_urgent)
        steps = self.behaviours[key]
        await (steps.pop(0) if len(steps) > 1 else steps[0])(question.buffer)

    def run(self, seconds: float = 60) -> tuple[bytes, float]:
        async def main() -> tuple[bytes, float]:
            fetch = BlobFetch(DIGEST, len(DATA), lambda: list(self.behaviours), self.download)
            return await fetch.run(seconds), trio.current_time()

        return trio.run(main, clock=MockClock(autojump_threshold=0))


def test_first_holder_is_enough() -> None:
    peers = Peers((A, [good]), (B, [good]))
    assert peers.run()[0] == DATA
    assert peers.asked == [(A, 0)]


def test_next_holder_at_once_when_one_fails() -> None:
    peers = Peers((A, [missing]), (B, [too_long]), (C, [good]))
    data, seconds = peers.run()
    assert data == DATA
    assert seconds < 0.2
    assert [key for key, _ in peers.asked] == [A, B, C]


def test_hedge_when_one_hangs() -> None:
    peers = Peers((A, [hangs]), (B, [good]))
    data, seconds = peers.run()
    assert data == DATA
    assert 2.0 <= seconds < 2.5


def test_no_hedge_while_bytes_arrive() -> None:
    peers = Peers((A, [slow]), (B, [good]))
    assert peers.run()[0] == DATA
    assert peers.asked == [(A, 0)]


def test_resume_from_another_holder() -> None:
    peers = Peers((A, [breaks_half_way]), (B, [good]))
    assert peers.run()[0] == DATA
    assert peers.asked == [(A, 0), (B, len(DATA) // 2)]


def test_wrong_bytes_are_never_asked_for_again() -> None:
    peers = Peers((A, [wrong]), (B, [missing, missing, good]))
    assert peers.run()[0] == DATA
    assert [key for key, _ in peers.asked] == [A, B, B, B]


def test_a_bad_beginning_does_not_ruin_a_good_holder() -> None:
    peers = Peers((A, [breaks_with_garbage]), (B, [good]))
    assert peers.run()[0] == DATA
    assert peers.asked[:2] == [(A, 0), (B, len(DATA) // 2)]
    assert (B, 0) in peers.asked


def test_deadline_says_what_went_wrong() -> None:
    peers = Peers((A, [missing]), (B, [hangs]))
    with pytest.raises(FetchFailed, match="does not have the blob") as caught:
        peers.run(seconds=20)
    assert caught.value.failures[0][0] == A
    with pytest.raises(FetchFailed, match="nobody to ask"):
        Peers().run(seconds=1)


def test_big_blobs_are_hashed_too() -> None:
    data = bytes(3 << 20)

    async def download(key: bytes, question: BlobQuestion) -> None:
        question.buffer += data

    async def main() -> bytes:
        fetch = BlobFetch(hashlib.sha256(data).digest(), len(data), lambda: [A], download)
        return await fetch.run(10)

    assert trio.run(main) == data


async def refers_to_c(buffer: BlobBuffer) -> None:
    raise Referred(A, [C])


def test_a_referral_comes_before_other_holders() -> None:
    peers = Peers((A, [refers_to_c]), (B, [good]), (C, [good]))
    assert peers.run()[0] == DATA
    assert [key for key, _ in peers.asked] == [A, C]


def test_when_referrals_lead_nowhere_the_next_question_is_urgent_and_comes_at_once() -> None:
    peers = Peers((A, [refers_to_c, good]), (C, [missing]))
    data, seconds = peers.run()
    assert data == DATA
    assert seconds < 0.2
    assert list(zip([key for key, _ in peers.asked], peers.urgent, strict=True)) == [
        (A, False),
        (C, False),
        (A, True),
    ]


def test_a_holder_that_refers_to_itself_is_asked_once_a_pass() -> None:
    async def refers_to_a(buffer: BlobBuffer) -> None:
        raise Referred(A, [A])

    peers = Peers((A, [refers_to_a]), (B, [slow]))
    assert peers.run()[0] == DATA
    assert [key for key, _ in peers.asked] == [A, B]


def test_who_starts_first_ends_the_waiting_of_the_others() -> None:
    """Two holders wait for the blob themselves; when both have it, only one uploads it."""
    started: list[bytes] = []

    async def download(key: bytes, question: BlobQuestion) -> None:
        await trio.sleep(5 if key == A else 4)
        question.on_start()
        started.append(key)
        await trio.sleep(3)
        question.buffer += DATA

    async def main() -> bytes:
        return await BlobFetch(DIGEST, len(DATA), lambda: [A, B], download).run(60)

    assert trio.run(main, clock=MockClock(autojump_threshold=0)) == DATA
    assert started == [A]  # B was asked two seconds later and would have started at six
