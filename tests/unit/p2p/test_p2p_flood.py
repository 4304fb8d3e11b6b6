"""Frames, dedupe, limits and the memory of the last minute."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_py.p2p import flood as flood_module
from psyche_py.p2p.allowlist import AllowList
from psyche_py.p2p.errors import FrameError, MessageError
from psyche_py.p2p.flood import Flood, Outbox, Verdict
from psyche_py.p2p.frames import (
    DOMAIN,
    MAX_FRAME_BYTES,
    MAX_HAVE_IDS,
    MAX_ITEM_BYTES,
    Frame,
    FrameReader,
    Have,
    ItemKind,
    encode_item,
    encode_length_prefixed,
    make_frame,
    parse_frame,
    parse_have,
)
from psyche_py.p2p.hint import EMPTY_HINT
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.limits import TokenBucket
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
    assert len(flood._seen) <= 10
    assert all(flood.receive(frame, 0.0) is Verdict.DUPLICATE for frame in frames[-5:])


def test_frames_themselves_are_kept_for_a_minute_only() -> None:
    """4,096 of them used to stay for ever, at half a kilobyte each."""
    flood, _ = make_flood()
    frames = [make_frame(ALICE, number.to_bytes(4, "little")) for number in range(300)]
    places = [sys.getrefcount(frame) for frame in frames]
    for number, frame in enumerate(frames):
        assert flood.receive(frame, float(number)) is Verdict.NEW
        assert flood.find_known(frame.raw) is frame
        assert len(flood.get_recent(float(number))) <= flood_module.REPLAY_SECONDS + 1
    held = [now > before for now, before in zip(map(sys.getrefcount, frames), places, strict=True)]
    assert held == [number >= 299 - flood_module.REPLAY_SECONDS for number in range(300)]
    # a frame that is gone is known all the same
    assert flood.find_known(frames[0].raw) is None
    assert flood.receive(frames[0], 300.0) is Verdict.DUPLICATE


def test_frames_of_a_burst_are_bounded_in_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "MAX_RECENT", 10)
    flood, _ = make_flood()
    frames = [make_frame(ME, bytes([n])) for n in range(30)]
    for frame in frames:
        flood.remember(frame, 0.0)
    assert flood.get_recent(0.0) == frames[-10:]
    assert [frame for frame in frames if flood.find_known(frame.raw)] == frames[-10:]


def test_frames_of_who_has_left_are_forgotten() -> None:
    flood, _ = make_flood()
    frame = make_frame(ALICE, b"a")
    flood.receive(frame, 0.0)
    flood.forget_signers(frozenset([ALICE.public_key]))
    assert flood.find_known(frame.raw) is None


@given(st.lists(st.binary(max_size=300), max_size=20), st.integers(1, 700))
def test_reader_finds_the_frames_whatever_the_cuts(frames: list[bytes], step: int) -> None:
    data = encode_length_prefixed(frames) + encode_item(ItemKind.HAVE, b"what I have")
    reader = FrameReader()
    found = [item for at in range(0, len(data), step) for item in reader.feed(data[at : at + step])]
    assert found == [*((ItemKind.FRAME, frame) for frame in frames), (ItemKind.HAVE, b"what I have")]


@given(st.lists(st.binary(max_size=64), max_size=10))
def test_reader_survives_garbage(chunks: list[bytes]) -> None:
    reader = FrameReader()
    try:
        for chunk in chunks:
            for _, data in reader.feed(chunk):
                assert len(data) < MAX_ITEM_BYTES
    except FrameError:
        pass


@pytest.mark.parametrize("length", [0, MAX_ITEM_BYTES + 1, 0xFFFF_FFFF])
def test_reader_refuses_an_impossible_length_before_the_item_arrives(length: int) -> None:
    with pytest.raises(FrameError):
        FrameReader().feed(length.to_bytes(4, "little"))


def test_what_a_peer_has_survives_the_wire_and_nothing_else_does() -> None:
    have = Have(10.0, 0.5, frozenset(bytes([n]) * 8 for n in range(3)))
    assert parse_have(have.encode()) == have
    full = Have(60.0, 0.0, frozenset(n.to_bytes(8, "big") for n in range(MAX_HAVE_IDS)))
    assert parse_have(full.encode()) == full
    assert len(encode_item(ItemKind.HAVE, full.encode())) == 4 + MAX_ITEM_BYTES
    for data in (b"", bytes(7), bytes(9), full.encode() + bytes(8)):
        with pytest.raises(FrameError):
            parse_have(data)


def test_what_is_missing_is_found_and_nothing_else() -> None:
    (ours, _), (theirs, _) = make_flood(), make_flood()
    frames = [make_frame(ALICE, bytes([n])) for n in range(6)]
    for n, frame in enumerate(frames):
        ours.receive(frame, float(n))
    for n in (1, 3):
        theirs.receive(frames[n], float(n))
    have = theirs.make_have(60.0, 0.0, 6.0)
    assert ours.get_missing(EVE.public_key, have, 6.0) == [frames[n] for n in (0, 2, 4, 5)]
    assert ours.get_missing(EVE.public_key, theirs.make_have(60.0, 1.5, 6.0), 6.0) == [
        frames[0],
        frames[2],
        frames[4],
    ]
    assert ours.get_missing(EVE.public_key, theirs.make_have(4.5, 0.0, 6.0), 6.0) == [frames[4], frames[5]]
    # its own words too: if it does not know them, somebody else has its key
    assert ours.get_missing(ALICE.public_key, have, 6.0) == [frames[n] for n in (0, 2, 4, 5)]
    assert ours.get_missing(EVE.public_key, ours.make_have(60.0, 0.0, 6.0), 6.0) == []


def test_more_than_fits_shortens_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flood_module, "MAX_HAVE_IDS", 3)
    flood, _ = make_flood()
    for n in range(6):
        flood.receive(make_frame(ALICE, bytes([n])), float(n))
    have = flood.make_have(60.0, 0.0, 6.0)
    assert len(have.short_ids) == 3
    assert have.window_seconds == 4.0


def test_a_peer_that_asks_all_the_time_is_not_answered() -> None:
    flood, _ = make_flood()
    flood.receive(make_frame(ALICE, b"a"), 0.0)
    answers = [flood.get_missing(EVE.public_key, Have(60.0, 0.0, frozenset()), 1.0) for _ in range(20)]
    assert answers.count(None) == 20 - int(flood_module.HAVE_BURST)
    assert flood.get_missing(EVE.public_key, Have(60.0, 0.0, frozenset()), 2.0) is not None


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
