"""The wire format: one code per set, one message per accepted byte string, no crash on any bytes."""

from __future__ import annotations

import itertools
import math
import struct
import tracemalloc

import numpy as np
import pytest
from distro_tools import make_message
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.distro import DistroConfig, PayloadError, PayloadLayout
from psyche_py.distro.combinatorics import LIMB_BITS, SubsetCode, get_subset_code
from psyche_py.distro.payload import (
    GroupMessage,
    Message,
    check_payload,
    decode_payload,
    decode_tensor,
    decode_tiles,
    encode_payload,
    make_group_message,
)
from psyche_py.distro.tilecode import get_tile_code
from psyche_py.errors import ConfigError

SHAPES = {
    "square": (64, 128),
    "odd": (58, 37),
    "run": (192,),
    "experts": (3, 32, 66),
    "one": (1,),
    "prime": (31, 1),
    "scalar": (),
}


def assert_equal(a: Message, b: Message) -> None:
    for x, y in zip(a, b, strict=True):
        assert np.array_equal(x.positions, y.positions)
        assert np.array_equal(x.signs, y.signs)


def to_int(limbs: np.ndarray, column: int) -> int:
    return sum(int(limb[column]) << (LIMB_BITS * i) for i, limb in enumerate(limbs))


def to_limbs(value: int, code: SubsetCode) -> np.ndarray:
    mask = (1 << LIMB_BITS) - 1
    return np.array([[value >> (LIMB_BITS * i) & mask] for i in range(code.num_limbs)], dtype=np.int64)


def rank(members: tuple[int, ...], n: int, k: int) -> int:
    """The definition, in Python integers."""
    start = 0
    if len(members) < k:
        start = math.comb(n, k) + sum(math.comb(n, size) for size in range(len(members)))
    return start + sum(math.comb(c, i) for i, c in enumerate(members, 1))


@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (5, 3), (7, 7), (9, 4)])
def test_small_codes_are_a_bijection(n: int, k: int) -> None:
    code = SubsetCode(n, k)
    seen = set()
    for size in range(k + 1):
        for members in itertools.combinations(range(n), size):
            limbs = code.compute_codes(np.array(members, dtype=np.int64).reshape(size, 1))
            assert to_int(limbs, 0) == rank(members, n, k)
            assert code.compute_sizes(limbs).tolist() == [size]
            assert tuple(code.compute_members(limbs, size)[:, 0]) == members
            seen.add(to_int(limbs, 0))
    assert seen == set(range(code.num_codes))
    assert code.num_codes <= 1 << code.num_bits


@pytest.mark.parametrize(
    ("n", "k"),
    [(4096, 8), (64, 8), (1856, 8), (4096, 4), (4096, 64), (64, 64), (100, 64), (70, 35), (65536, 8)],
)
def test_large_codes_agree_with_python_integers(n: int, k: int) -> None:
    code = get_subset_code(n, k)
    rng = np.random.default_rng(n + k)
    sets = [np.arange(k), np.arange(n - k, n)]
    sets += [np.sort(rng.choice(n, k, replace=False)) for _ in range(30)]
    sets += [np.sort(rng.choice(min(n, k + 3), k, replace=False)) for _ in range(10)]
    members = np.array(sets, dtype=np.int64).T.copy()
    limbs = code.compute_codes(members)
    for i, chosen in enumerate(sets):
        assert to_int(limbs, i) == rank(tuple(chosen.tolist()), n, k)
    assert np.array_equal(code.compute_members(limbs, k), members)
    assert code.is_valid(limbs).all()


@pytest.mark.parametrize(("n", "k"), [(4096, 8), (4096, 20), (1856, 8), (64, 8), (64, 64), (300, 30)])
def test_ranks_around_every_binomial_decode_exactly(n: int, k: int) -> None:
    """Just below, at and above C(c, k) is where a float guess would go wrong."""
    code = get_subset_code(n, k)
    values = {
        min(max(math.comb(c, k) + delta, 0), math.comb(n, k) - 1)
        for c in range(k - 1, n, max(1, n // 200))
        for delta in (-1, 0, 1)
    }
    limbs = np.concatenate([to_limbs(value, code) for value in sorted(values)], axis=1)
    members = code.compute_members(limbs, k)
    assert np.array_equal(code.compute_codes(members), limbs)
    assert (np.diff(members, axis=0) > 0).all()


def test_codes_from_num_codes_on_are_invalid() -> None:
    for n, k in [(4096, 8), (5, 3), (64, 20)]:
        code = get_subset_code(n, k)
        assert code.is_valid(to_limbs(code.num_codes - 1, code)).all()
        assert not code.is_valid(to_limbs(code.num_codes, code)).any()
        assert not code.is_valid(to_limbs((1 << code.num_bits) - 1, code)).any()


def test_width_of_the_usual_tile_is_89_bits() -> None:
    layout = PayloadLayout.from_shapes({"w": (64 * 8, 64)}, DistroConfig())
    assert (layout.groups[0].code.block_bits, layout.groups[0].code.block_tiles) == (89, 1)
    assert layout.num_bytes == 16 + 89
    assert get_subset_code(64, 8).num_bits == 33
    assert get_subset_code(29 * 64, 8).num_bits == 72


def test_the_empty_set_is_the_first_code_after_the_full_ones() -> None:
    code = get_subset_code(4096, 8)
    assert to_int(code.compute_codes(np.zeros((0, 1), dtype=np.int64)), 0) == math.comb(4096, 8)


def test_impossible_codes_are_refused() -> None:
    with pytest.raises(ValueError, match="1 <= k <= n"):
        SubsetCode(3, 4)
    with pytest.raises(ConfigError, match="too large tables"):
        SubsetCode(65536, 64)


@pytest.mark.parametrize("topk", [1, 2, 3, 7, 8, 9, 16, 31, 64])
@pytest.mark.parametrize("chunk", [1, 5, 16, 64])
def test_round_trip_over_shapes(topk: int, chunk: int) -> None:
    layout = PayloadLayout.from_shapes(SHAPES, DistroConfig(compression_topk=topk, compression_chunk=chunk))
    rng = np.random.default_rng(topk * 100 + chunk)
    message = make_message(layout, rng)
    payload = encode_payload(layout, message)
    assert len(payload) == layout.num_bytes
    check_payload(layout, payload)
    assert_equal(decode_payload(layout, payload), message)


def test_round_trip_over_several_blocks() -> None:
    config = DistroConfig(compression_topk=2, compression_chunk=4)
    layout = PayloadLayout.from_shapes({"w": (4, 4 * 40_001)}, config)
    message = make_message(layout, np.random.default_rng(1))
    payload = encode_payload(layout, message)
    assert_equal(decode_payload(layout, payload), message)
    broken = bytearray(payload)
    broken[-1] |= 0x80
    with pytest.raises(PayloadError):
        check_payload(layout, bytes(broken))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_round_trip_of_any_shape_and_topk(data: st.DataObject) -> None:
    dims = st.lists(st.integers(1, 70), min_size=0, max_size=3)
    shapes = {f"p{i}": tuple(d) for i, d in enumerate(data.draw(st.lists(dims, min_size=1, max_size=3)))}
    config = DistroConfig(
        compression_topk=data.draw(st.integers(1, 64)), compression_chunk=data.draw(st.integers(1, 64))
    )
    layout = PayloadLayout.from_shapes(shapes, config)
    message = make_message(layout, np.random.default_rng(data.draw(st.integers(0, 2**32))), empty=0.3)
    payload = encode_payload(layout, message)
    assert len(payload) == layout.num_bytes
    assert_equal(decode_payload(layout, payload), message)


def test_every_flipped_bit_is_rejected_or_another_message() -> None:
    layout = PayloadLayout.from_shapes({"w": (64, 192), "b": (60,), "n": (5, 7)}, DistroConfig())
    message = make_message(layout, np.random.default_rng(3), empty=0.3)
    payload = encode_payload(layout, message)
    rejected = 0
    for bit in range(8 * len(payload)):
        broken = bytearray(payload)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            other = decode_payload(layout, bytes(broken))
        except PayloadError:
            rejected += 1
            with pytest.raises(PayloadError):
                check_payload(layout, bytes(broken))
            continue
        # Accepted: it must be the one encoding of what it says, hence of something else.
        assert encode_payload(layout, other) == bytes(broken)
    assert rejected > 8 * 16, "header, signs of empty tiles and padding at least"


@settings(max_examples=300, deadline=None)
@given(data=st.binary(max_size=80))
def test_arbitrary_bytes_are_rejected_cleanly_or_canonical(data: bytes) -> None:
    layout = PayloadLayout.from_shapes({"a": (3,), "b": (2, 2)}, DistroConfig(compression_topk=2))
    for payload in (data, encode_payload(layout, make_message(layout, np.random.default_rng(0)))[:16] + data):
        try:
            message = decode_payload(layout, payload)
        except PayloadError:
            continue
        assert encode_payload(layout, message) == payload


def test_random_bodies_are_rejected_by_their_ranks() -> None:
    layout = PayloadLayout.from_shapes({"w": (64, 64 * 64)}, DistroConfig())
    header = encode_payload(layout, make_message(layout, np.random.default_rng(0)))[:16]
    rng = np.random.default_rng(5)
    for _ in range(20):
        with pytest.raises(PayloadError, match="do not exist"):
            decode_payload(layout, header + rng.bytes(layout.num_bytes - 16))


def test_each_kind_of_damage_has_its_words() -> None:
    """One 4 x 4 tile, topk 2: two signs, then the code in 8 bits (137 codes), six bits of padding."""
    config = DistroConfig(compression_topk=2, compression_chunk=4)
    layout = PayloadLayout.from_shapes({"w": (4, 4)}, config)
    assert layout.num_bytes == 16 + 2
    nothing = (GroupMessage(np.zeros((1, 2), np.uint16), np.zeros((1, 2), np.int8)),)
    payload = encode_payload(layout, nothing)
    empty = math.comb(16, 2)

    def with_body(body: int) -> bytes:
        return payload[:16] + struct.pack("<H", body)

    assert payload == with_body(empty << 2)
    cases = {
        "has 18 bytes": [b"", payload[:-1], payload + b"\0"],
        "version 2, method 1": [payload[:i] + b"\5" + payload[i + 1 :] for i in range(8)],
        "other tensor": [payload[:8] + b"\0" * 8 + payload[16:]],
        "do not exist": [with_body(137 << 2), with_body(255 << 2)],
        "signs": [with_body(empty << 2 | 1), with_body((empty + 1) << 2 | 2)],
        "padding": [with_body(empty << 2 | 1 << 10), with_body(1 << 15)],
    }
    for words, payloads in cases.items():
        for broken in payloads:
            with pytest.raises(PayloadError, match=words):
                decode_payload(layout, broken)
            with pytest.raises(PayloadError, match=words):
                check_payload(layout, broken)


@pytest.mark.parametrize(
    ("topk", "num_tiles", "num_messages"),
    [(1, 3, 9**3), (2, 2, 33**2), (4, 1, 3**4)],
)
def test_every_byte_string_of_a_small_model(topk: int, num_tiles: int, num_messages: int) -> None:
    """Exactly as many bodies are accepted as there are messages, each the encoding of what it says."""
    config = DistroConfig(compression_topk=topk, compression_chunk=2)
    layout = PayloadLayout.from_shapes({"w": (2, 2 * num_tiles)}, config)
    header = encode_payload(layout, make_message(layout, np.random.default_rng(0)))[:16]
    num_bytes = layout.num_bytes - 16
    assert num_bytes <= 2
    accepted = set()
    for body in range(1 << 8 * num_bytes):
        payload = header + body.to_bytes(num_bytes, "little")
        try:
            message = decode_payload(layout, payload)
        except PayloadError:
            continue
        assert encode_payload(layout, message) == payload
        accepted.add((message[0].positions.tobytes(), message[0].signs.tobytes()))
    assert len(accepted) == num_messages


def test_header_binds_names_shapes_topk_and_chunk() -> None:
    base = PayloadLayout.from_shapes({"a": (64, 64)}, DistroConfig()).digest
    others = [
        PayloadLayout.from_shapes({"b": (64, 64)}, DistroConfig()),
        PayloadLayout.from_shapes({"a": (1, 64, 64)}, DistroConfig()),
        PayloadLayout.from_shapes({"a": (64, 64)}, DistroConfig(compression_topk=7)),
        PayloadLayout.from_shapes({"a": (64, 64)}, DistroConfig(compression_chunk=65)),
        PayloadLayout.from_shapes({"a": (64, 64), "e": (0,)}, DistroConfig()),
    ]
    assert len({base, *(other.digest for other in others)}) == 1 + len(others)


def test_bytes_by_hand() -> None:
    """The example of docs/distro.md: one 2x2 tile, topk 2, coefficients 1 (plus) and 3 (minus)."""
    config = DistroConfig(compression_topk=2, compression_chunk=2)
    layout = PayloadLayout.from_shapes({"w": (2, 2)}, config)
    message = (GroupMessage(np.array([[1, 3]], np.uint16), np.array([[1, -1]], np.int8)),)
    payload = encode_payload(layout, message)
    # Two signs 0, 1 come first; then rank = C(1,1) + C(3,2) = 4 in 4 bits: there are 11 codes,
    # 6 pairs, 1 empty set, 4 singles.
    assert payload[:8] == b"DTRO\x02\0\x01\0"
    assert payload[16:] == bytes([0b0100_10])


def test_canonical_form_sorts_and_drops_zeros() -> None:
    message = make_group_message(np.array([[9, 4, 7]]), np.array([[-1.0, -0.0, 2.0]], dtype=np.float32))
    assert message.positions.tolist() == [[7, 9, 0]]
    assert message.signs.tolist() == [[1, -1, 0]]


@pytest.mark.parametrize("topk", range(1, 65))
def test_every_topk_costs_what_counting_demands(topk: int) -> None:
    """At most 1.01 times log2 of the number of messages, and the round trip over blocks and their rest."""
    code = get_tile_code(4096, topk)
    entropy = math.log2(sum(math.comb(4096, size) << size for size in range(topk + 1)))
    assert code.compute_num_bits(4096) <= 1.01 * 4096 * entropy
    rng = np.random.default_rng(topk)
    for num_tiles in (1, code.block_tiles, 3 * code.block_tiles + 1, 37):
        config = DistroConfig(compression_topk=topk)
        layout = PayloadLayout.from_shapes({"w": (64 * num_tiles, 64)}, config)
        message = make_message(layout, rng, empty=0.2)
        payload = encode_payload(layout, message)
        assert len(payload) == 16 + -(-code.compute_num_bits(num_tiles) // 8)
        assert_equal(decode_payload(layout, payload), message)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_tiles_can_be_opened_alone(data: st.DataObject) -> None:
    topk = data.draw(st.sampled_from([1, 2, 4, 8]))
    config = DistroConfig(compression_topk=topk, compression_chunk=16)
    layout = PayloadLayout.from_shapes({"a": (16 * 9, 48), "b": (70,), "c": (30, 32)}, config)
    message = make_message(layout, np.random.default_rng(data.draw(st.integers(0, 99))), empty=0.3)
    payload = encode_payload(layout, message)
    i = data.draw(st.integers(0, len(layout.groups) - 1))
    start = data.draw(st.integers(0, layout.groups[i].num_tiles))
    stop = data.draw(st.integers(start, layout.groups[i].num_tiles))
    part = decode_tiles(layout, payload, i, start, stop)
    whole = message[i]
    assert_equal((part,), (GroupMessage(whole.positions[start:stop], whole.signs[start:stop]),))
    with pytest.raises(IndexError):
        decode_tiles(layout, payload, i, start, layout.groups[i].num_tiles + 1)


def test_one_tensor_can_be_opened_alone_and_only_it_is_read() -> None:
    layout = PayloadLayout.from_shapes({"a": (64, 64 * 8), "b": (64, 64 * 8), "n": (4096,)}, DistroConfig())
    message = make_message(layout, np.random.default_rng(0))
    broken = bytearray(encode_payload(layout, message))
    i, slot = layout.get_place("b")
    first_bit = slot.first_tile * 89
    broken[layout.groups[i].first_byte + first_bit // 8 - 2] ^= 0xFF  # a tile of "a"
    tiles = slice(slot.first_tile, slot.first_tile + slot.num_tiles)
    part = decode_tensor(layout, bytes(broken), "b")
    assert_equal((part,), (GroupMessage(message[i].positions[tiles], message[i].signs[tiles]),))
    pool = decode_tensor(layout, bytes(broken), "n")
    assert len(pool.positions) == layout.get_place("n")[1].num_tiles
    with pytest.raises(KeyError):
        decode_tensor(layout, bytes(broken), "x")


def test_tiles_of_more_than_65536_coefficients() -> None:
    config = DistroConfig(compression_topk=2, compression_chunk=256)
    layout = PayloadLayout.from_shapes({"w": (300, 256)}, config)
    assert layout.groups[0].tile_size > 1 << 16
    message = make_message(layout, np.random.default_rng(0), empty=0)
    assert_equal(decode_payload(layout, encode_payload(layout, message)), message)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_million_random_payloads() -> None:
    """Random bodies and damaged messages: refused, or the one encoding of what they say. Nothing else."""
    rng = np.random.default_rng(2026)
    accepted = total = 0
    for topk, shapes in (
        (1, {"a": (8, 24)}),
        (2, {"a": (8, 8), "b": (3,)}),
        (3, {"a": (16, 8)}),
        (8, {"a": (8, 8)}),
    ):
        config = DistroConfig(compression_topk=topk, compression_chunk=8)
        layout = PayloadLayout.from_shapes(shapes, config)
        valid = [encode_payload(layout, make_message(layout, rng, empty=0.3)) for _ in range(50)]
        size = layout.num_bytes - 16
        for number, raw in enumerate(np.split(np.frombuffer(rng.bytes(250_000 * size), np.uint8), 250_000)):
            body = raw.tobytes()
            if number % 2:  # a message with one byte changed, in the header too
                at, good = int(raw[0]) % layout.num_bytes, valid[number % 50]
                payload = good[:at] + body[-1:] + good[at + 1 :]
            else:
                payload = valid[0][:16] + body
            total += 1
            try:
                message = decode_payload(layout, payload)
            except PayloadError:
                continue
            accepted += 1
            if accepted % 16 == 0:
                assert encode_payload(layout, message) == payload
    assert total == 1_000_000
    assert 1_000 < accepted < total


def test_a_refusal_allocates_little() -> None:
    """A megabyte of the wrong length is refused before anything is read; random bodies in bounded memory."""
    layout = PayloadLayout.from_shapes({"w": (64 * 512, 64 * 32)}, DistroConfig())
    group = layout.groups[0]
    nothing = np.zeros((group.num_tiles, group.topk), np.uint16)
    header = encode_payload(layout, (GroupMessage(nothing, nothing.astype(np.int8)),))[:16]
    noise = header + np.random.default_rng(0).bytes(layout.num_bytes - 16)
    tracemalloc.start()
    try:
        for payload, limit in ((bytes(1 << 20), 1 << 16), (noise, 16 << 20)):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            with pytest.raises(PayloadError):
                decode_payload(layout, payload)
            assert tracemalloc.get_traced_memory()[1] - before < limit
    finally:
        tracemalloc.stop()
