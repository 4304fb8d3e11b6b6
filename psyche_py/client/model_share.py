"""Giving the model to those who join: the donor's side.

A receiver asks for a slot, then for the manifest, then for pieces by name. Integers are little-endian.

    "model-slot"      -> epoch u16, digest 32 (zeros: any), wants a slot u8
                                        <- status u8, digest 32, SHA-256 of the packed files 32
    "model-manifest"  -> digest 32      <- the manifest
    "model-files"     -> digest 32      <- `pack_files`
    "model-release"   -> digest 32      <- nothing
    a blob named as `Piece.name`        <- its bytes

All but the first only for holders of a slot.
Slots are few, so that a donor's uplink is not split among many and its own results still travel; who gets
none hears so at once and goes elsewhere. Pieces are read out of a copy of the replica that nobody changes.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING

import trio

from psyche_py.model.sharing import DIGEST_BYTES, Manifest, Piece, pack_files, parse_manifest, read_piece

if TYPE_CHECKING:
    from psyche_py.model.sharing import ModelSnapshot
    from psyche_py.p2p.port import Network

SLOT_REQUEST = "model-slot"
MANIFEST_REQUEST = "model-manifest"
FILES_REQUEST = "model-files"
RELEASE_REQUEST = "model-release"
QUESTION = struct.Struct("<H32s?")
ANSWER = struct.Struct("<B32s32s")
ANY_MODEL = bytes(DIGEST_BYTES)
MAX_RECEIVERS = 2
START_SECONDS = 15.0
"""A slot whose holder has not asked for a piece by then goes to the next, and its holder has to wait."""
IDLE_SECONDS = 60.0
"""Longest time between two pieces; a slow line takes that long for one."""
PENALTY_SECONDS = 30.0
MAX_COPIES_PER_RECEIVER = 3
"""How many times the model a receiver may take: once, and again after it has lost it."""


class SlotStatus(IntEnum):
    """First byte of the answer to a question for a slot."""

    GRANTED = 0
    BUSY = 1
    NOT_HERE = 2


@dataclass(slots=True)
class _Slot:
    """``until`` when it is good without another piece, and whether a piece has been read on it."""

    until: float
    is_used: bool = False


@dataclass(frozen=True)
class SharedModel:
    """A model at rest for ``epoch``: ``tensors`` are its bytes by name.

    ``is_live``: they may change once the model is withdrawn, so what is read of them is copied.
    """

    epoch: int
    manifest_bytes: bytes
    manifest: Manifest
    tensors: Mapping[str, memoryview]
    files: bytes
    is_live: bool = False

    @classmethod
    def of_snapshot(cls, epoch: int, snapshot: ModelSnapshot) -> SharedModel:
        """A snapshot to share, without a copy."""
        from psyche_py.distro.digest import get_bytes

        tensors = {name: get_bytes(tensor) for name, tensor in snapshot.tensors.items()}
        manifest = parse_manifest(snapshot.manifest)
        return cls(epoch, snapshot.manifest, manifest, tensors, pack_files(snapshot.files))


class ModelShare:
    """One model at a time, for ``max_receivers`` at a time."""

    def __init__(self, network: Network, max_receivers: int = MAX_RECEIVERS) -> None:
        self._network = network
        self._max_receivers = max_receivers
        self._model: SharedModel | None = None
        self._pieces: dict[bytes, Piece] = {}
        self._files_hash = bytes(32)
        self._slots: dict[bytes, _Slot] = {}
        self._penalties: dict[bytes, float] = {}
        self._sent_bytes: Counter[bytes] = Counter()
        network.set_request_handler(SLOT_REQUEST, self._answer_slot)
        network.set_request_handler(MANIFEST_REQUEST, self._answer_manifest)
        network.set_request_handler(FILES_REQUEST, self._answer_files)
        network.set_request_handler(RELEASE_REQUEST, self._answer_release)
        network.set_blob_source(self._read)

    def offer(self, model: SharedModel) -> None:
        """Share this model; the one before is dropped."""
        self.withdraw()
        self._model = model
        self._pieces = {piece.name: piece for piece in model.manifest.pieces}
        self._files_hash = hashlib.sha256(model.files).digest()

    def withdraw(self, *, only_live: bool = False) -> None:
        """Share nothing any more, and keep nothing of it in memory."""
        if self._model is not None and (self._model.is_live or not only_live):
            self._model, self._pieces = None, {}
            self._slots.clear()
            self._penalties.clear()
            self._sent_bytes.clear()

    @property
    def epoch(self) -> int:
        """The epoch that starts from the model we share; -1 when we share none."""
        return self._model.epoch if self._model is not None else -1

    @property
    def num_receivers(self) -> int:
        """Slots in use."""
        self._forget_idle()
        return len(self._slots)

    # ---- answers ------------------------------------------------------------------------------------

    async def _answer_slot(self, sender_key: bytes, body: bytes) -> bytes:
        model = self._model
        if len(body) != QUESTION.size or model is None:
            return ANSWER.pack(SlotStatus.NOT_HERE, ANY_MODEL, bytes(32))
        epoch, digest, wants_slot = QUESTION.unpack(body)
        if epoch != model.epoch:
            return ANSWER.pack(SlotStatus.NOT_HERE, ANY_MODEL, bytes(32))
        status = SlotStatus.NOT_HERE
        if digest in (ANY_MODEL, model.manifest.digest):
            status = self._admit(sender_key, model) if wants_slot else SlotStatus.BUSY
        return ANSWER.pack(status, model.manifest.digest, self._files_hash)

    def _admit(self, key: bytes, model: SharedModel) -> SlotStatus:
        self._forget_idle()
        now = trio.current_time()
        if key in self._slots:
            return SlotStatus.GRANTED
        is_sated = self._sent_bytes[key] >= MAX_COPIES_PER_RECEIVER * model.manifest.num_bytes
        if is_sated or len(self._slots) >= self._max_receivers or self._penalties.get(key, 0.0) > now:
            return SlotStatus.BUSY
        self._slots[key] = _Slot(now + START_SECONDS)
        return SlotStatus.GRANTED

    def _forget_idle(self) -> None:
        now, connected = trio.current_time(), self._network.connected_peers
        for key, slot in list(self._slots.items()):
            if slot.until <= now or key not in connected:
                del self._slots[key]
                if not slot.is_used:
                    self._penalties[key] = now + PENALTY_SECONDS

    def _get_model_for(self, key: bytes, digest: bytes) -> SharedModel | None:
        model = self._model
        if model is None or model.manifest.digest != digest or key not in self._slots:
            return None
        return model

    async def _answer_manifest(self, sender_key: bytes, body: bytes) -> bytes:
        model = self._get_model_for(sender_key, body)
        return model.manifest_bytes if model is not None else b""

    async def _answer_files(self, sender_key: bytes, body: bytes) -> bytes:
        model = self._get_model_for(sender_key, body)
        return model.files if model is not None else b""

    async def _answer_release(self, sender_key: bytes, body: bytes) -> bytes:
        if self._get_model_for(sender_key, body) is not None:
            del self._slots[sender_key]
        return b""

    def _read(self, asker: bytes, name: bytes) -> bytes | memoryview | None:
        """The blob source: a piece, for those with a slot."""
        model, slot, piece = self._model, self._slots.get(asker), self._pieces.get(name)
        if model is None or slot is None or piece is None:
            return None
        slot.until, slot.is_used = trio.current_time() + IDLE_SECONDS, True
        self._sent_bytes[asker] += piece.size
        data = read_piece(piece, model.tensors)
        return bytes(data) if model.is_live else data
