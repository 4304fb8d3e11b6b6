"""A model that arrives in pieces: built first, then filled, so that it is in memory once.

Blocking work for a worker thread. What a piece cache cannot keep is only not kept: that is no reason to stop.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from psyche_py.errors import StorageError
from psyche_py.model.errors import PeerModelError
from psyche_py.model.loader import build_for_peers, get_memory
from psyche_py.model.sharing import FLOAT32, Manifest, parse_manifest, write_piece

if TYPE_CHECKING:
    from psyche_py.client.piece_cache import PieceCache
    from psyche_py.model.loader import LoadedModel


class IncomingModel:
    """The model whose digest is ``digest`` (32 B). Without ``cache`` its pieces are only in memory."""

    def __init__(self, digest: bytes, cache: PieceCache | None) -> None:
        self.digest = digest
        self.manifest: Manifest | None = None
        self.manifest_bytes = b""
        self.loaded: LoadedModel | None = None
        self.have: set[int] = set()
        self.cache_error: StorageError | None = None
        self._cache = cache
        self._memory: dict[str, memoryview] = {}
        self._lock = threading.Lock()

    @property
    def memory(self) -> dict[str, memoryview]:
        """Bytes of every parameter by name."""
        return self._memory

    @property
    def is_complete(self) -> bool:
        """Every piece is in place."""
        return self.manifest is not None and len(self.have) == len(self.manifest.pieces)

    @property
    def num_bytes(self) -> int:
        """Bytes that are in place."""
        return sum(self.manifest.pieces[number].size for number in self.have) if self.manifest else 0

    def resume(self) -> None:
        """Take over what an earlier client has left on disk. Raises PeerModelError as `begin` does."""
        try:
            if self._cache is None:
                return
            manifest_bytes = self._cache.open()
            if manifest_bytes is None:
                return
            manifest = self._build(manifest_bytes)
            for number, data in self._cache.read(manifest):
                self._put(manifest, number, data)
        except StorageError as error:
            self._give_cache_up(error)

    def begin(self, manifest_bytes: bytes) -> None:
        """Build the model of a manifest from a peer.

        Raises PeerModelError when the manifest is not of our digest, or no model that can be built.
        """
        self._build(manifest_bytes)
        if self._cache is not None:
            try:
                self._cache.begin(manifest_bytes)
            except StorageError as error:
                self._give_cache_up(error)

    def _build(self, manifest_bytes: bytes) -> Manifest:
        manifest = parse_manifest(manifest_bytes, self.digest)
        if any(info.dtype != FLOAT32 for info in manifest.tensors):
            raise PeerModelError("its weights are not of type float32")
        shapes = {info.name: info.shape for info in manifest.tensors}
        self.loaded = build_for_peers(manifest.config_json, shapes)
        self._memory = get_memory(self.loaded)
        self.manifest_bytes = manifest_bytes
        self.manifest = manifest
        return manifest

    def take(self, number: int, data: bytes) -> None:
        """Check a piece and put it in place; safe from several threads. Raises PeerModelError."""
        assert self.manifest is not None
        self.manifest.pieces[number].check(data)
        with self._lock:
            if number in self.have:
                return
            self._put(self.manifest, number, data)
        if self._cache is not None:
            try:
                self._cache.write(number, data)
            except StorageError as error:
                self._give_cache_up(error)

    def _put(self, manifest: Manifest, number: int, data: bytes) -> None:
        write_piece(manifest.pieces[number], data, self._memory)
        self.have.add(number)

    def _give_cache_up(self, error: StorageError) -> None:
        self.cache_error, self._cache = error, None
