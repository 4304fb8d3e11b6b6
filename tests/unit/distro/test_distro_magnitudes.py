"""The bytes of local steps: one encoding a message, everything else refused, tiles read by themselves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from distro_tools import make_message
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.distro import DistroConfig, PayloadError, PayloadLayout
from psyche_py.distro.payload import (
    GroupMessage,
    Message,
    check_payload,
    decode_payload,
    decode_tensor,
    decode_tiles,
    encode_payload,
)

SHAPES = {"a": (128, 64), "b": (40, 70), "n": (33,)}


def make_layout(topk: int = 4, chunk: int = 64, local_steps: int = 4) -> PayloadLayout:
    config = DistroConfig(compression_topk=topk, compression_chunk=chunk, local_steps=local_steps)
    return PayloadLayout.from_shapes(SHAPES, config)


def draw_message(layout: PayloadLayout, seed: int) -> Message:
    """Random coefficients with magnitudes, where there are any."""
    rng = np.random.default_rng(seed)
    groups = []
    for content in make_message(layout, rng, empty=0.2):
        codes = rng.integers(1, 256, len(content.signs)).astype(np.uint8)
        codes[content.signs[:, 0] == 0] = 0
        groups.append(replace(content, magnitudes=codes))
    return tuple(groups)


def assert_equal(one: GroupMessage, two: GroupMessage) -> None:
    assert one.magnitudes is not None
    assert two.magnitudes is not None
    assert np.array_equal(one.positions, two.positions)
    assert np.array_equal(one.signs, two.signs)
    assert np.array_equal(one.magnitudes, two.magnitudes)


@settings(max_examples=20)
@given(st.integers(1, 64), st.sampled_from([8, 16, 64]), st.integers(0, 1 << 32))
def test_round_trip(topk: int, chunk: int, seed: int) -> None:
    layout = make_layout(topk, chunk)
    message = draw_message(layout, seed)
    payload = encode_payload(layout, message)
    assert len(payload) == layout.num_bytes
    check_payload(layout, payload)
    for one, two in zip(message, decode_payload(layout, payload), strict=True):
        assert_equal(one, two)


def test_a_magnitude_costs_a_byte_a_tile() -> None:
    plain = PayloadLayout.from_shapes(SHAPES, DistroConfig(compression_topk=4))
    layout = make_layout()
    assert layout.num_bytes == plain.num_bytes + layout.num_tiles
    difference = layout.compute_bits_per_element("a") - plain.compute_bits_per_element("a")
    assert difference * 4096 == 8


@settings(max_examples=60)
@given(st.data())
def test_no_other_bytes_are_an_encoding(data: st.DataObject) -> None:
    """What is changed anywhere is refused, or is another message with these bytes for its only encoding."""
    layout = make_layout(topk=2, chunk=8)
    payload = bytearray(encode_payload(layout, draw_message(layout, data.draw(st.integers(0, 100)))))
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.integers(0, len(payload) - 1))] ^= data.draw(st.integers(1, 255))
    changed = bytes(payload)
    try:
        message = decode_payload(layout, changed)
    except PayloadError:
        with pytest.raises(PayloadError):
            check_payload(layout, changed)
        return
    check_payload(layout, changed)
    assert encode_payload(layout, message) == changed


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_magnitude_without_a_coefficient_or_the_other_way_round_is_refused(is_empty: bool) -> None:
    layout = make_layout(chunk=8)
    message = list(draw_message(layout, 1))
    group = layout.groups[-1]
    codes = message[-1].magnitudes
    assert codes is not None
    codes = codes.copy()
    (tile, *_) = np.flatnonzero((codes == 0) == is_empty)
    codes[tile] = 5 if is_empty else 0
    message[-1] = replace(message[-1], magnitudes=codes)
    payload = encode_payload(layout, tuple(message))
    for read in (
        lambda: check_payload(layout, payload),
        lambda: decode_payload(layout, payload),
        lambda: decode_tiles(layout, payload, len(layout.groups) - 1, int(tile), int(tile) + 1),
    ):
        with pytest.raises(PayloadError, match="magnitudes"):
            read()
    others = [number for number in range(group.num_tiles) if number != tile]
    decode_tiles(layout, payload, len(layout.groups) - 1, others[0], others[0] + 1)


def test_tiles_and_tensors_can_be_read_by_themselves() -> None:
    layout = make_layout(topk=3, chunk=16)
    message = draw_message(layout, 3)
    payload = encode_payload(layout, message)
    i, slot = layout.get_place("a")
    whole = message[i]
    assert whole.magnitudes is not None
    tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
    expected = GroupMessage(whole.positions[tiles], whole.signs[tiles], whole.magnitudes[tiles])
    assert_equal(decode_tensor(layout, payload, "a"), expected)
    part = slice(slot.first_tile + 3, slot.first_tile + 7)
    expected = GroupMessage(whole.positions[part], whole.signs[part], whole.magnitudes[part])
    assert_equal(decode_tiles(layout, payload, i, part.start, part.stop), expected)


def test_a_message_without_magnitudes_does_not_fit() -> None:
    layout = make_layout()
    with pytest.raises(ValueError, match="does not fit"):
        encode_payload(layout, tuple(replace(x, magnitudes=None) for x in draw_message(layout, 1)))


def test_the_number_of_local_steps_is_part_of_the_layout_and_one_is_the_layout_of_old() -> None:
    digests = {make_layout(local_steps=num).digest for num in (1, 2, 3, 64)}
    assert len(digests) == 4
    # what runs made before local steps have on the wire
    plain = PayloadLayout.from_shapes({"a": (64, 64)}, DistroConfig())
    assert plain.digest.hex() == "f1f4647265f4fedf"
