"""What peers send: the manifest and the model digest are one thing, and hostile bytes get nowhere."""

from __future__ import annotations

import hashlib
import random
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.distro import digest as digest_module
from psyche_py.distro.digest import DIGEST_DOMAIN, LEAF_BYTES, compute_model_digest, describe_model, get_bytes
from psyche_py.errors import NetworkError
from psyche_py.model import sharing
from psyche_py.model.errors import PeerModelError
from psyche_py.model.sharing import (
    DTYPE_BYTES,
    PIECE_BYTES,
    Manifest,
    pack_files,
    parse_files,
    parse_manifest,
    read_piece,
    write_piece,
)

CONFIG = b'{"model_type":"x"}'


def _make_tensors(elements: int = 2 * LEAF_BYTES // 4 + 10) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "z.weight": torch.randn(elements, generator=generator),
        "a.weight": torch.randn(3, 5, generator=generator, dtype=torch.bfloat16),
        "m.scale": torch.randn((), generator=generator),
        "h.weight": torch.randn(2, 3, 4, generator=generator).half(),
        "t.weight": torch.randn(6, 4, generator=generator).T,  # not contiguous
    }
    tensors["z.weight"][:4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    return tensors


def _read_all(manifest: Manifest, tensors: dict[str, torch.Tensor]) -> list[bytes]:
    memory = {name: get_bytes(tensor) for name, tensor in tensors.items()}
    return [bytes(read_piece(piece, memory)) for piece in manifest.pieces]


def _put_together(manifest: Manifest, pieces: list[bytes]) -> dict[str, bytearray]:
    memory = {info.name: bytearray(info.num_bytes) for info in manifest.tensors}
    views = {name: memoryview(data) for name, data in memory.items()}
    for piece, data in zip(manifest.pieces, pieces, strict=True):
        piece.check(data)
        write_piece(piece, data, views)
    return memory


def test_a_model_comes_back_bit_for_bit() -> None:
    tensors = _make_tensors()
    manifest = parse_manifest(describe_model(tensors, CONFIG))
    pieces = _read_all(manifest, tensors)
    memory = _put_together(manifest, pieces)

    # the small tensors and the first leaf do not fit into one piece; a leaf that fits exactly is one
    assert [len(piece) for piece in pieces[1:3]] == [PIECE_BYTES, PIECE_BYTES]
    assert manifest.num_bytes == sum(map(len, pieces))
    assert manifest.config_json == CONFIG
    assert memory == {name: bytes(get_bytes(tensor)) for name, tensor in tensors.items()}
    for info in manifest.tensors:
        assert info.shape == tuple(tensors[info.name].shape)
        assert info.num_bytes == tensors[info.name].nbytes


def test_the_manifest_is_what_the_model_digest_hashes() -> None:
    tensors = _make_tensors(10)
    data = describe_model(tensors, CONFIG)
    assert (
        parse_manifest(data).digest == compute_model_digest(tensors, CONFIG) == hashlib.sha256(data).digest()
    )
    assert describe_model(dict(reversed(tensors.items())), CONFIG) == data
    assert parse_manifest(data, compute_model_digest(tensors, CONFIG)) == parse_manifest(data)
    with pytest.raises(PeerModelError, match="of the model"):
        parse_manifest(data, bytes(32))


@st.composite
def _draw_models(draw: st.DrawFn) -> tuple[dict[str, torch.Tensor], bytes]:
    names = draw(st.lists(st.text("abc.", min_size=1, max_size=6), min_size=1, max_size=5, unique=True))
    rng = random.Random(draw(st.integers(0, 2**32)))
    tensors = {}
    for name in names:
        shape = draw(st.lists(st.integers(1, 9), max_size=3))
        dtype = rng.choice([torch.float32, torch.bfloat16, torch.float16])
        raw = rng.randbytes(int(torch.Size(shape).numel()) * torch.empty(0, dtype=dtype).element_size())
        tensors[name] = torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
    return tensors, draw(st.binary(max_size=20))


@settings(max_examples=150, deadline=None)
@given(_draw_models(), st.integers(0, 2**32), st.sampled_from([4, 16, 64]))
def test_any_change_of_the_model_is_another_digest_or_a_refused_piece(
    drawn: tuple[dict[str, torch.Tensor], bytes], seed: int, leaf_bytes: int
) -> None:
    """The binding: under one digest there is one manifest, and under that one content of every piece."""
    tensors, about = drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digest_module, "LEAF_BYTES", leaf_bytes)
        patch.setattr(sharing, "PIECE_BYTES", 2 * leaf_bytes)
        data = describe_model(tensors, about)
        digest = hashlib.sha256(data).digest()
        manifest = parse_manifest(data, digest)
        pieces = _read_all(manifest, tensors)
        assert all(len(piece) <= 2 * leaf_bytes for piece in pieces)
        assert _put_together(manifest, pieces) == {n: bytes(get_bytes(t)) for n, t in tensors.items()}

        rng = random.Random(seed)
        changed = bytearray(data)
        changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        with pytest.raises(PeerModelError):
            parse_manifest(bytes(changed), digest)
        number = rng.randrange(len(pieces))
        bad = bytearray(pieces[number])
        bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        with pytest.raises(PeerModelError):
            manifest.pieces[number].check(bytes(bad))

        name = rng.choice(sorted(tensors))
        get_bytes(tensors[name])[0] ^= 1
        assert compute_model_digest(tensors, about) != digest
        get_bytes(tensors[name])[0] ^= 1
        assert compute_model_digest(tensors, about + b"x") != digest
        assert compute_model_digest({f"{n}x": t for n, t in tensors.items()}, about) != digest
        assert compute_model_digest(tensors, about) == digest


def test_pieces_that_are_changed_or_exchanged_are_found() -> None:
    tensors = _make_tensors()
    manifest = parse_manifest(describe_model(tensors, CONFIG))
    pieces = _read_all(manifest, tensors)
    first = manifest.pieces[1]
    first.check(pieces[1])
    for wrong in (
        pieces[2],
        pieces[1][:-1],
        pieces[1] + b"\0",
        b"",
        pieces[1][:-1] + bytes([pieces[1][-1] ^ 1]),
    ):
        with pytest.raises(PeerModelError):
            first.check(wrong)
    assert len({piece.name for piece in manifest.pieces}) == len(pieces)


def test_every_cut_and_every_appended_byte_is_found() -> None:
    data = describe_model(_make_tensors(10), CONFIG)
    for size in range(len(data)):
        with pytest.raises(PeerModelError):
            parse_manifest(data[:size])
    with pytest.raises(PeerModelError):
        parse_manifest(data + b"\0")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32))
def test_changed_bytes_are_refused_or_mean_another_consistent_manifest(seed: int) -> None:
    data = describe_model(_make_tensors(10), CONFIG)
    rng = random.Random(seed)
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 255, rng.randrange(256)])
    try:
        manifest = parse_manifest(bytes(changed))
    except PeerModelError:
        return
    assert manifest.num_bytes == sum(info.num_bytes for info in manifest.tensors)
    assert manifest.num_bytes == sum(piece.size for piece in manifest.pieces)
    assert [i.name for i in manifest.tensors] == sorted({i.name for i in manifest.tensors})
    assert manifest.digest == hashlib.sha256(changed).digest()


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PeerModelError):
        parse_manifest(DIGEST_DOMAIN + data)


def _pack_tensor(name: bytes, shape: tuple[int, ...], dtype: int = 0) -> bytes:
    head = struct.pack("<H", len(name)) + name + struct.pack("<BB", dtype, len(shape))
    return head + struct.pack(f"<{len(shape)}Q", *shape)


def _pack(tensors: bytes | None = None, leaves: bytes = b"\1" * 32) -> bytes:
    if tensors is None:
        tensors = struct.pack("<I", 1) + _pack_tensor(b"w", (4,))
    return DIGEST_DOMAIN + struct.pack("<I", 2) + b"{}" + tensors + leaves


def test_the_hand_made_manifest_is_good() -> None:
    assert parse_manifest(_pack()).num_bytes == 16
    assert parse_manifest(_pack()).pieces[0].size == 16


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"psyche-py/model-digest/2" + _pack()[24:],
        DIGEST_DOMAIN + struct.pack("<I", 2**31) + b"{}",
        _pack(struct.pack("<I", 0), b""),
        _pack(struct.pack("<I", 2**32 - 1)),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"", (4,))),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"w" * 513, (4,))),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"w\n", (4,))),
        _pack(struct.pack("<I", 1) + _pack_tensor("ä".encode(), (4,))),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"w", (4,), dtype=3)),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"w", (4, 0))),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"w", (1,) * 8 + (4,))),
        _pack(struct.pack("<I", 1) + _pack_tensor(b"w", (2**64 - 1,) * 8)),
        _pack(struct.pack("<I", 2) + _pack_tensor(b"w", (2,)) + _pack_tensor(b"w", (2,)), b"\1" * 64),
        _pack(struct.pack("<I", 2) + _pack_tensor(b"w", (2,)) + _pack_tensor(b"a", (2,)), b"\1" * 64),
        _pack(leaves=b""),
        _pack(leaves=b"\1" * 31),
        _pack(leaves=b"\1" * 64),
    ],
)
def test_hostile_manifests_are_refused_before_anything_is_allocated(data: bytes) -> None:
    with pytest.raises(PeerModelError):
        parse_manifest(data)


def test_models_beyond_the_limit_are_refused() -> None:
    data = describe_model(_make_tensors(10), CONFIG)
    with pytest.raises(PeerModelError, match="at most 50 are taken"):
        parse_manifest(data, max_model_bytes=50)


def test_an_oversized_manifest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(PeerModelError, match="too large"):
        parse_manifest(DIGEST_DOMAIN + b"\0" * 100)


def test_reader_and_writer_know_the_same_types() -> None:
    codes = {
        code: torch.empty(0, dtype=dtype).element_size() for dtype, code in digest_module.DTYPE_CODES.items()
    }
    assert codes == DTYPE_BYTES
    assert digest_module.DTYPE_CODES[torch.float32] == sharing.FLOAT32


def test_the_runtime_asks_again_on_such_errors() -> None:
    assert issubclass(PeerModelError, NetworkError)


# ---- files ----------------------------------------------------------------------------------------------


def test_files_come_back_and_unwanted_ones_stay_home() -> None:
    files = {"tokenizer.json": b"{}", "merges.txt": b"a b", "pytorch_model.bin": b"code"}
    assert parse_files(pack_files(files)) == {"merges.txt": b"a b", "tokenizer.json": b"{}"}
    assert parse_files(pack_files({})) == {}


def _pack_file(name: bytes, data: bytes = b"x") -> bytes:
    return struct.pack("<B", len(name)) + name + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\1\0" + _pack_file(b"pytorch_model.bin"),
        b"\1\0" + _pack_file(b"../tokenizer.json"),
        b"\1\0" + _pack_file(b"model.safetensors"),
        b"\1\0" + _pack_file(b""),
        b"\2\0" + 2 * _pack_file(b"tokenizer.json"),
        b"\xff\xff",
        b"\0\0x",
        b"\1\0" + struct.pack("<B", 14) + b"tokenizer.json" + struct.pack("<I", 2**32 - 1),
    ],
)
def test_hostile_files_are_refused(data: bytes) -> None:
    with pytest.raises(PeerModelError):
        parse_files(data)
