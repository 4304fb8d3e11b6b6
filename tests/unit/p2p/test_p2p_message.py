"""Announcement bodies: layout, round trips, hostile bytes."""

from __future__ import annotations

import dataclasses
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psyche_py.p2p.message import (
    Finished,
    Message,
    MessageError,
    RoundHeader,
    TrainingResult,
    WarmupReady,
    decode_message,
    encode_message,
)

B32 = st.binary(min_size=32, max_size=32)
U16, U32, U64 = st.integers(0, 2**16 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
HEADERS = st.builds(RoundHeader, B32, B32, U16, U32, U16)
RESULTS = st.builds(
    lambda header, a, b, digest, size: TrainingResult(header, min(a, b), max(a, b), digest, size),
    HEADERS,
    U64,
    U64,
    st.binary(min_size=96, max_size=96),
    st.integers(1, 2**32 - 1),
)
FINISHED = st.builds(Finished, HEADERS, B32, st.floats(width=32, allow_nan=False, allow_infinity=False))
MESSAGES = st.one_of(RESULTS, FINISHED, st.builds(WarmupReady, HEADERS))
HEADER = RoundHeader(b"p" * 32, b"r" * 32, 3, 7, 250)


@given(MESSAGES)
def test_round_trip(message: Message) -> None:
    assert decode_message(encode_message(message)) == message


def test_layout() -> None:
    head = b"\x02\x01" + b"p" * 32 + b"r" * 32 + struct.pack("<HIH", 3, 7, 250)
    result = TrainingResult(HEADER, 10, 13, b"c" * 96, 99)
    assert encode_message(result) == head + struct.pack("<QQ", 10, 13) + b"c" * 96 + struct.pack("<I", 99)
    assert len(encode_message(result)) == 190
    assert len(encode_message(Finished(HEADER, b"d" * 32, 1.5))) == 110
    assert len(encode_message(WarmupReady(HEADER))) == 74


@given(MESSAGES, st.binary(min_size=1, max_size=8), st.integers(1, 40))
def test_length_is_exact(message: Message, extra: bytes, cut: int) -> None:
    body = encode_message(message)
    for wrong in (body + extra, body[:-cut]):
        with pytest.raises(MessageError):
            decode_message(wrong)


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(
            bytes.__add__, st.sampled_from([b"\2\1", b"\2\2", b"\2\3"]), st.binary(min_size=60, max_size=200)
        ),
    )
)
def test_hostile_bytes_are_refused_or_decoded(body: bytes) -> None:
    try:
        message = decode_message(body)
    except MessageError:
        return
    if isinstance(message, Finished) and math.isnan(message.loss):
        return  # every non-number is read as the one NaN
    assert encode_message(message) == body


def test_a_loss_that_is_no_number_is_nan() -> None:
    for loss in (math.inf, -math.inf, math.nan):
        message = decode_message(encode_message(Finished(HEADER, b"d" * 32, loss)))
        assert isinstance(message, Finished)
        assert math.isnan(message.loss)
    with pytest.raises(MessageError):
        encode_message(Finished(HEADER, b"d" * 32, 1e300))


@pytest.mark.parametrize(
    "message",
    [
        WarmupReady(dataclasses.replace(HEADER, program_id=b"p")),
        WarmupReady(dataclasses.replace(HEADER, run_id=b"r" * 33)),
        WarmupReady(dataclasses.replace(HEADER, epoch=2**16)),
        WarmupReady(dataclasses.replace(HEADER, height=-1)),
        TrainingResult(HEADER, 5, 4, b"c" * 96, 1),
        TrainingResult(HEADER, 4, 5, b"c" * 95, 1),
        TrainingResult(HEADER, 4, 5, b"c" * 96, 0),
        TrainingResult(HEADER, 4, 2**64, b"c" * 96, 1),
        Finished(HEADER, b"", 0.0),
    ],
)
def test_what_does_not_fit_is_not_encoded(message: Message) -> None:
    with pytest.raises(MessageError):
        encode_message(message)


def test_unknown_versions_and_kinds() -> None:
    body = encode_message(WarmupReady(HEADER))
    for wrong in (b"\x01" + body[1:], body[:1] + b"\x04" + body[2:], body[:1] + b"\x00" + body[2:]):
        with pytest.raises(MessageError):
            decode_message(wrong)
