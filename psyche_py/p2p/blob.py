"""Bytes named by their SHA-256, in memory, up to a limit."""

from __future__ import annotations

import hashlib

from psyche_py.p2p.errors import StoreFull

DEFAULT_MAX_BYTES = 8 << 30
"""Room for several rounds of payloads and one shared model; `BlobStore` refuses more instead of swapping."""


class BlobStore:
    """What we can give to peers. Whoever puts a blob in drops it when it is no longer needed."""

    def __init__(self, max_bytes: int = DEFAULT_MAX_BYTES) -> None:
        self.max_bytes = max_bytes
        self._blobs: dict[bytes, bytes] = {}
        self._total_bytes = 0

    def put(self, data: bytes) -> bytes:
        """Keep ``data``; returns its digest. Raises StoreFull. Putting the same bytes again is free."""
        digest = hashlib.sha256(data).digest()
        self.put_checked(digest, data)
        return digest

    def put_checked(self, digest: bytes, data: bytes) -> None:
        """Keep bytes whose SHA-256 the caller has just computed. Raises StoreFull."""
        if digest in self._blobs:
            return
        if self._total_bytes + len(data) > self.max_bytes:
            raise StoreFull(
                f"A blob of {len(data)} bytes does not fit: {self._total_bytes} of {self.max_bytes} in use.",
                "Give this client more memory, or a smaller model.",
            )
        self._blobs[digest] = bytes(data)
        self._total_bytes += len(data)

    def get(self, digest: bytes) -> bytes | None:
        return self._blobs.get(digest)

    def has(self, digest: bytes) -> bool:
        return digest in self._blobs

    def drop(self, digest: bytes) -> None:
        """Forget a blob; nothing happens when it is not here."""
        data = self._blobs.pop(digest, None)
        if data is not None:
            self._total_bytes -= len(data)

    @property
    def total_bytes(self) -> int:
        return self._total_bytes

    def __len__(self) -> int:
        return len(self._blobs)
