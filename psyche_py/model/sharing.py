"""A model as pieces that peers send each other, each held to the model digest.

The manifest of a model is its description (layout: `psyche_py.distro.digest`), with the canonical
configuration as what else replicas agree on: the model digest is its SHA-256. So a manifest either hashes to
the digest that the witnesses of the last round attested, or it is refused before a single piece is asked
for; and every piece is held to the leaves that the manifest names. Files that go into checkpoints but not
into the weights (tokenizer) are no part of it; see `pack_files`.

Consecutive leaves that together have at most 4 MiB travel as one piece, so that many small tensors do not
mean many questions. Every count is checked against what is left, and every size against a bound, before
anything is allocated.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

from psyche_py.model.errors import PeerModelError
from psyche_py.model.loader import MAX_CONFIG_BYTES, MAX_FILE_BYTES, TOKENIZER_FILES

if TYPE_CHECKING:
    import torch

DIGEST_BYTES = 32
PIECE_BYTES = 4 << 20
MAX_MANIFEST_BYTES = 64 << 20
MAX_FILES_BYTES = 64 << 20
MAX_MODEL_BYTES = 256 << 30
MAX_NUM_TENSORS = 1 << 18
MAX_NAME_BYTES = 512
MAX_DIMS = 8
DTYPE_BYTES = {0: 4, 1: 2, 2: 2}
FLOAT32 = 0
_PIECE_DOMAIN = b"psyche-py/model-piece/1"


@dataclass(frozen=True)
class ModelSnapshot:
    """A replica at rest.

    manifest:     its description
    config_json:  configuration, as it goes into checkpoints
    files:        small files that go there too, by name
    tensors:      parameters by name, on the CPU
    """

    manifest: bytes
    config_json: bytes
    files: dict[str, bytes]
    tensors: dict[str, torch.Tensor]

    @cached_property
    def digest(self) -> bytes:
        """Model digest, 32 bytes."""
        return hashlib.sha256(self.manifest).digest()


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
class Leaf:
    """Part of one tensor's bytes: from ``offset`` on, ``size`` bytes whose leaf digest is ``digest``."""

    tensor: str
    offset: int
    size: int
    digest: bytes


@dataclass(frozen=True)
class Piece:
    """Leaves that travel together. ``name`` (32 B) follows from their digests, ``size`` is in bytes."""

    name: bytes
    size: int
    leaves: tuple[Leaf, ...]

    def check(self, data: bytes | memoryview) -> None:
        """Raises PeerModelError when ``data`` is not this piece."""
        from psyche_py.distro.digest import hash_leaf

        if len(data) != self.size:
            raise PeerModelError(f"a piece of {self.size} bytes came with {len(data)}")
        for leaf, part in self.split(data):
            if hash_leaf(part) != leaf.digest:
                raise PeerModelError("a piece is not what its hash says")

    def split(self, data: bytes | memoryview) -> Iterator[tuple[Leaf, memoryview]]:
        """The parts of ``data`` by leaf."""
        view, at = memoryview(data), 0
        for leaf in self.leaves:
            yield leaf, view[at : at + leaf.size]
            at += leaf.size


@dataclass(frozen=True)
class Manifest:
    """A parsed manifest; its sizes are consistent. ``digest`` is the model digest it stands for."""

    digest: bytes
    config_json: bytes
    tensors: tuple[TensorInfo, ...]
    pieces: tuple[Piece, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of all pieces."""
        return sum(info.num_bytes for info in self.tensors)


def read_piece(piece: Piece, tensors: Mapping[str, memoryview]) -> bytes | memoryview:
    """A piece's bytes out of the tensors' memory; not copied when it is one leaf."""
    parts = [tensors[leaf.tensor][leaf.offset : leaf.offset + leaf.size] for leaf in piece.leaves]
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_piece(piece: Piece, data: bytes | memoryview, tensors: Mapping[str, memoryview]) -> None:
    """Put a checked piece where it belongs."""
    for leaf, part in piece.split(data):
        tensors[leaf.tensor][leaf.offset : leaf.offset + leaf.size] = part


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


def parse_manifest(
    data: bytes, expected_digest: bytes | None = None, max_model_bytes: int = MAX_MODEL_BYTES
) -> Manifest:
    """Read a manifest from anybody. Raises PeerModelError, also when it is not of ``expected_digest``."""
    from psyche_py.distro.digest import DIGEST_DOMAIN

    if len(data) > MAX_MANIFEST_BYTES:
        raise PeerModelError("its manifest is too large")
    digest = hashlib.sha256(data).digest()
    if expected_digest is not None and digest != expected_digest:
        raise PeerModelError(
            f"its manifest is of the model {digest.hex()[:12]}, not of {expected_digest.hex()[:12]}"
        )
    reader = _Reader(data)
    if reader.take(len(DIGEST_DOMAIN)) != DIGEST_DOMAIN:
        raise PeerModelError("its manifest is of an unknown format")
    config_json = reader.take(reader.take_number("I"), MAX_CONFIG_BYTES)
    tensors = _parse_tensors(reader)
    num_bytes = sum(info.num_bytes for info in tensors)
    if num_bytes > max_model_bytes:
        raise PeerModelError(f"it has {num_bytes} bytes, at most {max_model_bytes} are taken")
    return Manifest(digest, config_json, tensors, _parse_pieces(reader, tensors))


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
        shape = reader.take_numbers(f"{dims}Q")
        if 0 in shape:
            raise PeerModelError(f"its tensor {name!r} is empty")
        tensors.append(TensorInfo(name, dtype, shape))
    return tuple(tensors)


def _parse_pieces(reader: _Reader, tensors: Sequence[TensorInfo]) -> tuple[Piece, ...]:
    """The rest must be the digests of exactly the tensors' leaves."""
    from psyche_py.distro.digest import LEAF_BYTES

    num_leaves = sum(-(-info.num_bytes // LEAF_BYTES) for info in tensors)
    if num_leaves * DIGEST_BYTES != reader.left:
        raise PeerModelError("its manifest names another number of leaves than its tensors have")
    pieces: list[Piece] = []
    waiting: list[Leaf] = []
    room = PIECE_BYTES
    for info in tensors:
        for offset in range(0, info.num_bytes, LEAF_BYTES):
            size = min(LEAF_BYTES, info.num_bytes - offset)
            if waiting and size > room:
                pieces.append(_make_piece(waiting))
                waiting, room = [], PIECE_BYTES
            waiting.append(Leaf(info.name, offset, size, reader.take(DIGEST_BYTES)))
            room -= size
    pieces.append(_make_piece(waiting))
    return tuple(pieces)


def _make_piece(leaves: Sequence[Leaf]) -> Piece:
    name = hashlib.sha256(_PIECE_DOMAIN + b"".join(leaf.digest for leaf in leaves)).digest()
    return Piece(name, sum(leaf.size for leaf in leaves), tuple(leaves))


# ---- files ----------------------------------------------------------------------------------------------


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Files that go into checkpoints: u16 count, then each u8 name length, name, u32 length, bytes.

    Ascending by name. Those that peers would refuse (see ``loader.TOKENIZER_FILES``) are left out.
    """
    kept = sorted((name, data) for name, data in files.items() if name in TOKENIZER_FILES)
    out = [struct.pack("<H", len(kept))]
    for name, data in kept:
        out += [struct.pack("<B", len(name)), name.encode(), struct.pack("<I", len(data)), data]
    return b"".join(out)


def parse_files(data: bytes) -> dict[str, bytes]:
    """Read `pack_files`' bytes from anybody. Raises PeerModelError."""
    reader = _Reader(data)
    files: dict[str, bytes] = {}
    for _ in range(reader.take_number("H")):
        name = reader.take_name(reader.take_number("B"))
        # nothing else may end up beside the weights of a checkpoint: other formats can hold code
        if name not in TOKENIZER_FILES or (files and name <= max(files)):
            raise PeerModelError(f"it has a file {name!r} that does not belong there")
        files[name] = reader.take(reader.take_number("I"), MAX_FILE_BYTES)
    if reader.left:
        raise PeerModelError("its files are followed by something else")
    return files
