import random
import struct
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from psyche_py.errors import NetworkError
from psyche_py.model import sharing
from psyche_py.model.errors import PeerModelError
from psyche_py.model.sharing import PIECE_BYTES, ModelSnapshot, assemble, make_manifest, parse_manifest


def _make_snapshot(elements: int = 2 * PIECE_BYTES // 4 + 10) -> ModelSnapshot:
    generator = torch.Generator().manual_seed(1)
    tensors = {
        "z.weight": torch.randn(elements, generator=generator),
        "a.weight": torch.randn(3, 5, generator=generator, dtype=torch.bfloat16),
        "m.scale": torch.randn((), generator=generator),
        "h.weight": torch.randn(2, 3, 4, generator=generator).half(),
        "t.weight": torch.randn(6, 4, generator=generator).T,  # not contiguous
    }
    tensors["z.weight"][:4] = torch.tensor([float("nan"), float("inf"), -0.0, 1e-45])
    return ModelSnapshot(b"\7" * 32, b'{"model_type": "x"}', {"tokenizer.json": b"{}"}, tensors)


def _get_raw(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def test_a_model_comes_back_bit_for_bit() -> None:
    snapshot = _make_snapshot()
    data, pieces = make_manifest(snapshot)
    manifest = parse_manifest(data)
    again = assemble(manifest, pieces)

    assert [len(piece) for piece in pieces[:2]] == [PIECE_BYTES, PIECE_BYTES]
    assert 0 < len(pieces[2]) < PIECE_BYTES
    assert manifest.num_bytes == sum(map(len, pieces))
    assert (again.digest, again.config_json, again.files) == (
        snapshot.digest,
        snapshot.config_json,
        snapshot.files,
    )
    assert again.tensors.keys() == snapshot.tensors.keys()
    for name, tensor in snapshot.tensors.items():
        assert again.tensors[name].dtype == tensor.dtype
        assert again.tensors[name].shape == tensor.shape
        assert _get_raw(again.tensors[name]) == _get_raw(tensor)
    assert make_manifest(again) == (data, pieces)


def test_the_order_of_tensors_does_not_matter_and_unwanted_files_stay_home() -> None:
    snapshot = _make_snapshot(10)
    shuffled = replace(
        snapshot,
        tensors=dict(reversed(snapshot.tensors.items())),
        files={"pytorch_model.bin": b"code", **snapshot.files},
    )
    assert make_manifest(shuffled) == make_manifest(snapshot)


def test_pieces_that_are_missing_changed_or_exchanged_are_found() -> None:
    data, pieces = make_manifest(_make_snapshot())
    manifest = parse_manifest(data)
    for wrong in (
        pieces[:-1],
        [*pieces, b""],
        [pieces[1], pieces[0], pieces[2]],
        [pieces[0], pieces[1], pieces[2][:-1]],
        [pieces[0], pieces[1], pieces[2][:-1] + bytes([pieces[2][-1] ^ 1])],
    ):
        with pytest.raises(PeerModelError):
            assemble(manifest, wrong)


def test_every_cut_and_every_appended_byte_is_found() -> None:
    data, _ = make_manifest(_make_snapshot(10))
    for size in range(len(data)):
        with pytest.raises(PeerModelError):
            parse_manifest(data[:size])
    with pytest.raises(PeerModelError):
        parse_manifest(data + b"\0")


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_changed_bytes_are_refused_or_mean_another_consistent_manifest(seed: int) -> None:
    data, pieces = make_manifest(_make_snapshot(10))
    rng = random.Random(seed)
    changed = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 255, rng.randrange(256)])
    try:
        manifest = parse_manifest(bytes(changed))
    except PeerModelError:
        return
    # what is accepted is consistent: sizes add up, names ascend, and only true pieces assemble
    assert manifest.num_bytes == sum(info.num_bytes for info in manifest.tensors)
    assert [i.name for i in manifest.tensors] == sorted({i.name for i in manifest.tensors})
    if [p.digest for p in manifest.pieces] == [p.digest for p in parse_manifest(data).pieces]:
        assemble(manifest, pieces)


@settings(max_examples=200)
@given(st.binary(max_size=200))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PeerModelError):
        parse_manifest(b"PSYMODL1" + data)


def _pack_tensor(name: bytes, shape: tuple[int, ...], dtype: int = 0) -> bytes:
    head = struct.pack("<H", len(name)) + name + struct.pack("<BB", dtype, len(shape))
    return head + struct.pack(f"<{len(shape)}I", *shape)


def _pack(files: bytes = b"\0\0", tensors: bytes | None = None, pieces: bytes | None = None) -> bytes:
    if tensors is None:
        tensors = struct.pack("<I", 1) + _pack_tensor(b"w", (4,))
    if pieces is None:
        pieces = struct.pack("<I", 1) + b"\1" * 32 + struct.pack("<I", 16)
    return b"PSYMODL1" + b"\0" * 32 + struct.pack("<I", 2) + b"{}" + files + tensors + pieces


def test_the_hand_made_manifest_is_good() -> None:
    assert parse_manifest(_pack()).num_bytes == 16


def _pack_file(name: bytes, data: bytes = b"x") -> bytes:
    return struct.pack("<B", len(name)) + name + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PSYMODL2" + _pack()[8:],
        _pack()[:40] + struct.pack("<I", 2**31) + b"{}",
        _pack(files=b"\1\0" + _pack_file(b"pytorch_model.bin")),
        _pack(files=b"\1\0" + _pack_file(b"../tokenizer.json")),
        _pack(files=b"\1\0" + _pack_file(b"model.safetensors")),
        _pack(files=b"\1\0" + _pack_file(b"")),
        _pack(files=b"\2\0" + 2 * _pack_file(b"tokenizer.json")),
        _pack(files=b"\xff\xff"),
        _pack(files=b"\1\0" + struct.pack("<B", 14) + b"tokenizer.json" + struct.pack("<I", 2**32 - 1)),
        _pack(tensors=struct.pack("<I", 0), pieces=struct.pack("<I", 0)),
        _pack(tensors=struct.pack("<I", 2**32 - 1)),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"", (4,))),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"w" * 513, (4,))),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"w\n", (4,))),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor("ä".encode(), (4,))),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"w", (4,), dtype=3)),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"w", (4, 0))),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"w", (1,) * 8 + (4,))),
        _pack(tensors=struct.pack("<I", 1) + _pack_tensor(b"w", (2**32 - 1,) * 8)),
        _pack(tensors=struct.pack("<I", 2) + _pack_tensor(b"w", (2,)) + _pack_tensor(b"w", (2,))),
        _pack(tensors=struct.pack("<I", 2) + _pack_tensor(b"w", (2,)) + _pack_tensor(b"a", (2,))),
        _pack(pieces=struct.pack("<I", 2) + 2 * (b"\1" * 32 + struct.pack("<I", 8))),
        _pack(pieces=struct.pack("<I", 1) + b"\1" * 32 + struct.pack("<I", 15)),
        _pack(pieces=struct.pack("<I", 2**32 - 1)),
        _pack(pieces=struct.pack("<I", 0)),
    ],
)
def test_hostile_manifests_are_refused_before_anything_is_allocated(data: bytes) -> None:
    with pytest.raises(PeerModelError):
        parse_manifest(data)


def test_models_beyond_the_limit_are_refused() -> None:
    data, _ = make_manifest(_make_snapshot(10))
    with pytest.raises(PeerModelError, match="at most 50 are taken"):
        parse_manifest(data, max_model_bytes=50)


def test_an_oversized_manifest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(PeerModelError, match="too large"):
        parse_manifest(b"PSYMODL1" + b"\0" * 100)


def test_the_runtime_asks_again_on_such_errors() -> None:
    assert issubclass(PeerModelError, NetworkError)
