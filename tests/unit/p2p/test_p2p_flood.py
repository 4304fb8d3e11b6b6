"""Frames, dedupe, limits and the memory of the last minute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_py.p2p import flood as flood_module
from psyche_py.p2p.allowlist import AllowList
from psyche_py.p2p.errors import FrameError, MessageError
from psyche_py.p2p.flood import Flood, Outbox, TokenBucket, Verdict
from psyche_py.p2p.frames import (
    DOMAIN,
    MAX_FRAME_BYTES,
    Frame,
    FrameReader,
    encode_length_prefixed,
    make_frame,
    parse_frame,
)
from psyche_py.p2p.hint import EMPTY_HINT
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.port import MAX_BODY_BYTES, PeerInfo

ME, ALICE, EVE = (SigningKey(bytes([n]) * 32) for n in range(3))


def make_flood() -> tuple[Flood, AllowList]:
    allowed = AllowList(ME.public_key)
    allowed.replace([PeerInfo(ALICE.public_key, EMPTY_HINT)])
    return Flood(allowed), allowed


def test_frame_layout() -> None:
    frame = make_frame(ALICE, b"body")
    assert frame.raw == ALICE.public_key + ALICE.sign(DOMAIN + b"body") + b"body"
    assert frame.body == b"body"
    assert parse_frame(frame.raw) == frame
    frame.check_signature()


def test_frame_lengths() -> None:
    assert len(make_frame(ALICE, bytes(MAX_BODY_BYTES)).raw) <= MAX_FRAME_BYTES
    with pytest.raises(MessageError):
        make_frame(ALICE, bytes(MAX_BODY_BYTES + 1))
    for raw in (b"", bytes(95), bytes(MAX_FRAME_BYTES + 1)):
        with pytest.raises(FrameError):
            parse_frame(raw)


def test_each_announcement_is_new_once() -> None:
    flood, _ = make_flood()
    frame = make_frame(ALICE, b"a")
    assert flood.receive(frame, 0.0) is Verdict.NEW
    assert flood.receive(frame, 0.0) is Verdict.DUPLICATE
    assert flood.receive(make_frame(ALICE, b"b"), 0.0) is Verdict.NEW


def test_a_forgery_does_not_hide_the_real_frame() -> None:
    flood, _ = make_flood()
    real = make_frame(ALICE, b"a")
    forged = parse_frame(real.raw[:32] + bytes(64) + real.body)
    assert forged.id == real.id
    assert flood.receive(forged, 0.0) is Verdict.INVALID
    assert flood.receive(real, 0.0) is Verdict.NEW


def test_a_signature_of_another_domain_is_no_announcement() -> None:
    flood, _ = make_flood()
    raw = ALICE.public_key + ALICE.sign(b"a") + b"a"
    assert flood.receive(parse_frame(raw), 0.0) is Verdict.INVALID


def test_strangers_are_heard_once_they_are_allowed() -> None:
    flood, allowed = make_flood()
    frame = make_frame(EVE, b"a")
    assert flood.receive(frame, 0.0) is Verdict.STRANGER
    allowed.replace([PeerInfo(EVE.public_key, EMPTY_HINT)])
    assert flood.receive(frame, 0.0) is Verdict.NEW


def test_a_signer_has_a_rate() -> None:
    flood, _ = make_flood()
    frames = [make_frame(ALICE, n.to_bytes(4, "little")) for n in range(600)]
    verdicts = [flood.receive(frame, 1.0) for frame in frames]
    assert verdicts.count(Verdict.NEW) == flood_module.SIGNER_BURST
    assert verdicts[-1] is Verdict.LIMITED
    # what was refused for its rate can still be accepted later
    assert flood.receive(frames[-1], 2.0) is Verdict.NEW


def test_recent_frames_expire_and_leave_with_their_signer() -> None:
    flood, _ = make_flood()
    old, young, own = make_frame(ALICE, b"old"), make_frame(ALICE, b"young"), make_frame(ME, b"own")
    flood.receive(old, 0.0)
    flood.receive(young, 50.0)
    flood.remember(own, 50.0)
    assert flood.get_recent(50.0) == [old, young, own]
    assert flood.get_recent(61.0) == [young, own]
    flood.forget_signers(frozenset([ALICE.public_key]))
    assert flood.get_recent(61.0) == [own]


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "MAX_SEEN", 10)
    flood, _ = make_flood()
    frames = [make_frame(ME, bytes([n])) for n in range(30)]
    for frame in frames:
        flood.remember(frame, 0.0)
    assert len(flood._seen) == 10
    assert flood.receive(frames[-1], 0.0) is Verdict.DUPLICATE


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 700))
def test_reader_finds_the_frames_whatever_the_cuts(frames: list[bytes], step: int) -> None:
    data = encode_length_prefixed(frames)
    reader = FrameReader()
    found = [frame for at in range(0, len(data), step) for frame in reader.feed(data[at : at + step])]
    assert found == frames


@given(st.lists(st.binary(max_size=64), max_size=10))
def test_reader_survives_garbage(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            for frame in reader.feed(chunk):
                assert len(frame) <= MAX_FRAME_BYTES
    except FrameError:
        pass


def test_reader_refuses_a_long_frame_before_it_arrives() -> None:
    with pytest.raises(FrameError):
        FrameReader().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "little"))


def test_outbox_keeps_order_and_forgets_what_the_other_side_has() -> None:
    outbox = Outbox()
    frames = [make_frame(ME, bytes([n])) for n in range(4)]
    for frame in [*frames, frames[0]]:
        outbox.put(frame)
    outbox.discard(frames[1].id)
    outbox.discard(b"unknown")
    assert len(outbox) == 3
    assert outbox.take() == [frames[n].raw for n in (0, 2, 3)]
    assert outbox.take() == []


def test_outbox_is_bounded_and_writes_are_cut() -> None:
    outbox = Outbox()
    frames = [Frame(n.to_bytes(4, "little"), bytes(4_000), b"") for n in range(400)]
    assert sum(map(outbox.put, frames)) == 400 - (1 << 20) // 4_000
    assert len(outbox.take()) == 15


def test_token_bucket() -> None:
    bucket = TokenBucket(rate=2.0, burst=3.0, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [True, True, True, False]
    assert [bucket.take(1.0) for _ in range(3)] == [True, True, False]
    assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
