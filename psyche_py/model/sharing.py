"""A model as hashed pieces: what clients send each other at warm-up.

Manifest, little-endian:

    magic 8 B "PSYMODL1" | digest 32 (model digest of the donor)
    u32 config bytes | config.json
    u16 files:   each u8 name length, name, u32 length, bytes              (ascending by name)
    u32 tensors: each u16 name length, name, u8 dtype, u8 dims, u32 x dims (ascending by name)
    u32 pieces:  each 32 B sha256, u32 size

The tensors' little-endian bytes, concatenated in that order, are cut into pieces of 4 MiB, the last one
shorter. One model has one manifest. Every count is checked against what is left, and every size against a
bound, before anything is allocated.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from psyche_py.model.errors import PeerModelError
from psyche_py.model.loader import MAX_CONFIG_BYTES, MAX_FILE_BYTES, TOKENIZER_FILES

if TYPE_CHECKING:
    import torch

MAGIC = b"PSYMODL1"
DIGEST_BYTES = 32
PIECE_BYTES = 4 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_MODEL_BYTES = 256 << 30
MAX_NUM_TENSORS = 1 << 18
MAX_NAME_BYTES = 512
MAX_DIMS = 8
DTYPE_BYTES = {0: 4, 1: 2, 2: 2}
DTYPE_NAMES = {0: "float32", 1: "bfloat16", 2: "float16"}
_PIECE = struct.Struct("<32sI")


@dataclass(frozen=True)
class ModelSnapshot:
    """A replica at rest: parameters on the CPU by name, configuration, small files, digest (32 B)."""

    digest: bytes
    config_json: bytes
    files: dict[str, bytes]
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Piece:
    """A part of the tensors' bytes: sha256 and size."""

    digest: bytes
    size: int


@dataclass(frozen=True)
class TensorInfo:
    """Name, dtype code and shape of one parameter."""

    name: str
    dtype: int
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of its data."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest; its sizes are consistent."""

    digest: bytes
    config_json: bytes
    files: dict[str, bytes]
    tensors: tuple[TensorInfo, ...]
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)


def make_manifest(snapshot: ModelSnapshot) -> tuple[bytes, list[bytes]]:
    """Manifest bytes and pieces of a model. Equal models give equal bytes.

    Files that peers would refuse (see ``loader.TOKENIZER_FILES``) are left out.
    """
    import torch

    codes = {getattr(torch, name): code for code, name in DTYPE_NAMES.items()}
    files = sorted((n, d) for n, d in snapshot.files.items() if n in TOKENIZER_FILES)
    out = [MAGIC, snapshot.digest, struct.pack("<I", len(snapshot.config_json)), snapshot.config_json]
    out.append(struct.pack("<H", len(files)))
    for name, data in files:
        raw = name.encode()
        out += [struct.pack("<B", len(raw)), raw, struct.pack("<I", len(data)), data]
    tensors = [snapshot.tensors[name] for name in sorted(snapshot.tensors)]
    out.append(struct.pack("<I", len(tensors)))
    for name, tensor in zip(sorted(snapshot.tensors), tensors, strict=True):
        raw = name.encode()
        head = struct.pack("<H", len(raw)) + raw + struct.pack("<BB", codes[tensor.dtype], tensor.dim())
        out.append(head + struct.pack(f"<{tensor.dim()}I", *tensor.shape))
    pieces = list(_cut([_get_bytes(tensor) for tensor in tensors]))
    out.append(struct.pack("<I", len(pieces)))
    out += [_PIECE.pack(hashlib.sha256(piece).digest(), len(piece)) for piece in pieces]
    return b"".join(out), pieces


def _get_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory, without a copy when it is contiguous on the CPU."""
    import torch

    if sys.byteorder != "little":
        raise NotImplementedError("models are shared little-endian; this machine is not")
    flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return flat.numpy().data


def _cut(blobs: Sequence[memoryview]) -> Iterator[bytes]:
    """The concatenated blobs in pieces of PIECE_BYTES; the last one may be shorter."""
    piece = bytearray()
    for blob in blobs:
        at = 0
        while at < len(blob):
            part = blob[at : at + PIECE_BYTES - len(piece)]
            piece += part
            at += len(part)
            if len(piece) == PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
    if piece:
        yield bytes(piece)


class _Reader:
    """Takes fields off hostile bytes; PeerModelError instead of reading past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int, limit: int = MAX_MANIFEST_BYTES) -> bytes:
        if size > limit:
            raise PeerModelError(f"a part of its manifest has {size} bytes")
        if size > self.left:
            raise PeerModelError("its manifest is cut short")
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def take_numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def take_number(self, layout: str) -> int:
        return self.take_numbers(layout)[0]

    def take_name(self, size: int) -> str:
        raw = self.take(size, MAX_NAME_BYTES)
        if not raw or not raw.isascii() or not raw.decode("ascii").isprintable():
            raise PeerModelError(f"its manifest has a bad name {raw!r}")
        return raw.decode("ascii")


def parse_manifest(data: bytes, max_model_bytes: int = MAX_MODEL_BYTES) -> Manifest:
    """Read a manifest from anybody. Raises PeerModelError."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise PeerModelError("its manifest is too large")
    reader = _Reader(data)
    if reader.take(len(MAGIC)) != MAGIC:
        raise PeerModelError("its manifest is of an unknown format")
    digest = reader.take(DIGEST_BYTES)
    config_json = reader.take(reader.take_number("I"), MAX_CONFIG_BYTES)
    files = _parse_files(reader)
    tensors = _parse_tensors(reader)
    num_bytes = sum(info.num_bytes for info in tensors)
    if num_bytes > max_model_bytes:
        raise PeerModelError(f"it has {num_bytes} bytes, at most {max_model_bytes} are taken")
    pieces = _parse_pieces(reader, num_bytes)
    return Manifest(digest, config_json, files, tensors, pieces)


def _parse_files(reader: _Reader) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for _ in range(reader.take_number("H")):
        name = reader.take_name(reader.take_number("B"))
        # nothing else may end up beside the weights of a checkpoint: other formats can hold code
        if name not in TOKENIZER_FILES or (files and name <= max(files)):
            raise PeerModelError(f"its manifest has a file {name!r} that does not belong there")
        files[name] = reader.take(reader.take_number("I"), MAX_FILE_BYTES)
    return files


def _parse_tensors(reader: _Reader) -> tuple[TensorInfo, ...]:
    num_tensors = reader.take_number("I")
    if not 0 < num_tensors <= MAX_NUM_TENSORS:
        raise PeerModelError(f"it has {num_tensors} tensors")
    tensors: list[TensorInfo] = []
    for _ in range(num_tensors):
        name = reader.take_name(reader.take_number("H"))
        dtype, dims = reader.take_numbers("BB")
        if dtype not in DTYPE_BYTES or dims > MAX_DIMS or (tensors and name <= tensors[-1].name):
            raise PeerModelError(f"its manifest has a bad tensor {name!r}")
        shape = reader.take_numbers(f"{dims}I")
        if 0 in shape:
            raise PeerModelError(f"its tensor {name!r} is empty")
        tensors.append(TensorInfo(name, dtype, shape))
    return tuple(tensors)


def _parse_pieces(reader: _Reader, num_bytes: int) -> tuple[Piece, ...]:
    """The pieces must be those of ``num_bytes`` bytes, and the manifest's last part."""
    num_pieces = reader.take_number("I")
    if num_pieces != -(-num_bytes // PIECE_BYTES) or num_pieces * _PIECE.size != reader.left:
        raise PeerModelError("its manifest names another number of pieces than it has")
    pieces: list[Piece] = []
    for i in range(num_pieces):
        piece = Piece(*_PIECE.unpack(reader.take(_PIECE.size)))
        if piece.size != min(PIECE_BYTES, num_bytes - i * PIECE_BYTES):
            raise PeerModelError("its manifest's pieces do not make up its tensors")
        pieces.append(piece)
    return tuple(pieces)


def assemble(manifest: Manifest, pieces: Sequence[bytes]) -> ModelSnapshot:
    """Put fetched pieces together. Raises PeerModelError when one is not what the manifest names."""
    import torch

    if len(pieces) != len(manifest.pieces):
        raise PeerModelError("some of its pieces are missing")
    for data, piece in zip(pieces, manifest.pieces, strict=True):
        if len(data) != piece.size or hashlib.sha256(data).digest() != piece.digest:
            raise PeerModelError("a piece is not what its hash says")
    tensors: dict[str, torch.Tensor] = {}
    at = 0
    for info in manifest.tensors:
        raw = torch.empty(info.num_bytes, dtype=torch.uint8)
        _copy_range(pieces, at, raw.numpy().data)
        tensors[info.name] = raw.view(getattr(torch, DTYPE_NAMES[info.dtype])).reshape(info.shape)
        at += info.num_bytes
    return ModelSnapshot(manifest.digest, manifest.config_json, manifest.files, tensors)


def _copy_range(pieces: Sequence[bytes], at: int, target: memoryview) -> None:
    """Fill ``target`` with the concatenated pieces' bytes from ``at`` on."""
    done = 0
    while done < len(target):
        number, offset = divmod(at + done, PIECE_BYTES)
        part = memoryview(pieces[number])[offset : offset + len(target) - done]
        target[done : done + len(part)] = part
        done += len(part)
