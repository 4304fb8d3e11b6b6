"""A model as hashed pieces: what clients send each other at warm-up.

Manifest, little-endian:

    magic 8 B "PSYMODL1" | digest 32 (model digest of the donor)
    u32 config bytes | config.json
    u16 files:   each u8 name length, name, u32 length, bytes
    u32 tensors: each u16 name length, name, u8 dtype, u8 dims, u32 x dims   (sorted by name)
    u32 pieces:  each 32 B sha256, u32 size

The tensors' bytes, concatenated in that order, are cut into pieces of at most 4 MiB. Every count is checked
against what is left before anything is allocated.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from psyche_py.errors import DataError

if TYPE_CHECKING:
    import torch

MAGIC = b"PSYMODL1"
PIECE_BYTES = 4 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_NUM_FILES = 16
MAX_DIMS = 8
DTYPE_BYTES = {0: 4, 1: 2, 2: 2}
DTYPE_NAMES = {0: "float32", 1: "bfloat16", 2: "float16"}


@dataclass(frozen=True)
class ModelSnapshot:
    """A replica at rest: parameters on the CPU by name, configuration, small files, digest (32 B)."""

    digest: bytes
    config_json: bytes
    files: dict[str, bytes]
    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Piece:
    """A part of the tensors' bytes."""

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
    """Manifest bytes and pieces of a model. Equal models give equal bytes."""
    import torch

    codes = {getattr(torch, name): code for code, name in DTYPE_NAMES.items()}
    out = [MAGIC, snapshot.digest, struct.pack("<I", len(snapshot.config_json)), snapshot.config_json]
    out.append(struct.pack("<H", len(snapshot.files)))
    for name, data in sorted(snapshot.files.items()):
        raw = name.encode()
        out += [struct.pack("<B", len(raw)), raw, struct.pack("<I", len(data)), data]
    out.append(struct.pack("<I", len(snapshot.tensors)))
    blobs = []
    for name in sorted(snapshot.tensors):
        tensor = snapshot.tensors[name].detach().cpu().contiguous()
        raw = name.encode()
        head = struct.pack("<H", len(raw)) + raw + struct.pack("<BB", codes[tensor.dtype], tensor.dim())
        out.append(head + struct.pack(f"<{tensor.dim()}I", *tensor.shape))
        blobs.append(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    joined = b"".join(blobs)
    pieces = [joined[i : i + PIECE_BYTES] for i in range(0, len(joined), PIECE_BYTES)]
    out.append(struct.pack("<I", len(pieces)))
    out += [hashlib.sha256(piece).digest() + struct.pack("<I", len(piece)) for piece in pieces]
    return b"".join(out), pieces


class _Reader:
    """Takes fields off hostile bytes; DataError instead of reading past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise DataError("A peer's model manifest is cut short.", "Ask another peer.")
        self._at += size
        return bytes(self._data[self._at - size : self._at])

    def numbers(self, layout: str) -> tuple[int, ...]:
        return struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))

    def text(self, size: int) -> str:
        try:
            text = self.take(size).decode("ascii")
        except UnicodeDecodeError:
            raise DataError("A peer's model manifest has a name that is no name.", "Ask another.") from None
        if not text or not text.isprintable() or "/" in text or "\\" in text or text.startswith("."):
            raise DataError(f"A peer's model manifest has a bad name {text!r}.", "Ask another peer.")
        return text


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest from anybody. Raises DataError."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise DataError("A peer's model manifest is too large.", "Ask another peer.")
    reader = _Reader(data)
    if reader.take(8) != MAGIC:
        raise DataError("A peer's model manifest is of an unknown format.", "Update this client.")
    digest = reader.take(32)
    config_json = reader.take(reader.numbers("I")[0])
    files = _parse_files(reader)
    tensors = _parse_tensors(reader)
    (num_pieces,) = reader.numbers("I")
    if num_pieces * 36 != reader.left:
        raise DataError("A peer's model manifest names another number of pieces than it has.", "Ask another.")
    pieces = []
    for _ in range(num_pieces):
        piece = Piece(reader.take(32), reader.numbers("I")[0])
        if not 0 < piece.size <= PIECE_BYTES:
            raise DataError("A peer's model manifest has a piece of a bad size.", "Ask another peer.")
        pieces.append(piece)
    manifest = Manifest(digest, config_json, files, tensors, tuple(pieces))
    if manifest.num_bytes != sum(info.num_bytes for info in tensors):
        raise DataError("A peer's model manifest's pieces do not make up its tensors.", "Ask another peer.")
    return manifest


def _parse_files(reader: _Reader) -> dict[str, bytes]:
    (num_files,) = reader.numbers("H")
    if num_files > MAX_NUM_FILES:
        raise DataError("A peer's model manifest has too many files.", "Ask another peer.")
    files = {}
    for _ in range(num_files):
        name = reader.text(reader.numbers("B")[0])
        files[name] = reader.take(reader.numbers("I")[0])
    return files


def _parse_tensors(reader: _Reader) -> tuple[TensorInfo, ...]:
    (num_tensors,) = reader.numbers("I")
    if num_tensors * 5 > reader.left:
        raise DataError("A peer's model manifest is cut short.", "Ask another peer.")
    tensors: list[TensorInfo] = []
    for _ in range(num_tensors):
        name = reader.text(reader.numbers("H")[0])
        dtype, dims = reader.numbers("BB")
        if dtype not in DTYPE_BYTES or dims > MAX_DIMS or (tensors and name <= tensors[-1].name):
            raise DataError(f"A peer's model manifest has a bad tensor {name!r}.", "Ask another peer.")
        tensors.append(TensorInfo(name, dtype, reader.numbers(f"{dims}I")))
    return tuple(tensors)


def assemble(manifest: Manifest, pieces: Sequence[bytes]) -> ModelSnapshot:
    """Put fetched pieces together. Raises DataError when one is not what the manifest names."""
    import torch

    if len(pieces) != len(manifest.pieces):
        raise DataError("Some pieces of the model are missing.", "Fetch them again.")
    for data, piece in zip(pieces, manifest.pieces, strict=True):
        if len(data) != piece.size or hashlib.sha256(data).digest() != piece.digest:
            raise DataError("A piece of the model is not what its hash says.", "Fetch it again.")
    joined = bytearray().join(pieces)
    tensors, at = {}, 0
    for info in manifest.tensors:
        raw = torch.frombuffer(joined, dtype=torch.uint8, count=info.num_bytes, offset=at)
        dtype = getattr(torch, DTYPE_NAMES[info.dtype])
        tensors[info.name] = raw.clone().view(dtype).reshape(info.shape)
        at += info.num_bytes
    return ModelSnapshot(manifest.digest, manifest.config_json, manifest.files, tensors)
