"""Pieces of a model on disk, so that a client that is started again goes on where it was.

<directory>/<first 16 hex digits of the model digest>/
    manifest   what hashes to the digest
    pieces     the pieces behind each other, with holes where one is missing
    have       the numbers of those that were written, one a line

No piece in there is believed: it counts when it has the hashes that the manifest names.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path

from psyche_py.data.atomic import explain_os_error
from psyche_py.model.errors import PeerModelError
from psyche_py.model.sharing import MAX_MANIFEST_BYTES, Manifest, parse_manifest

_REMEDY = "The model is fetched without keeping its pieces; free some space to keep them."


class PieceCache:
    """The pieces of the model ``digest`` (32 B). Those of any other model in the directory are removed.

    Methods block, and raise StorageError when the disk does not do its part.
    """

    def __init__(self, directory: Path, digest: bytes) -> None:
        self._parent = directory
        self._digest = digest
        self._path = directory / digest.hex()[:16]
        self._offsets: list[int] = []

    def open(self) -> bytes | None:
        """Make room; returns the manifest's bytes when an earlier client has left them."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            for other in self._parent.iterdir():
                if other != self._path and other.is_dir():
                    shutil.rmtree(other, ignore_errors=True)
            with (self._path / "manifest").open("rb") as file:
                manifest_bytes = file.read(MAX_MANIFEST_BYTES + 1)
            self._accept(parse_manifest(manifest_bytes, self._digest))
            return manifest_bytes
        except (FileNotFoundError, PeerModelError):
            return None  # nothing there, or it was cut short: the next one is written over it
        except OSError as error:
            raise explain_os_error(error, "pieces of the model", self._path, _REMEDY) from error

    def begin(self, manifest_bytes: bytes) -> None:
        """Start anew with a manifest from a peer that hashes to the digest."""
        self._accept(parse_manifest(manifest_bytes, self._digest))
        try:
            (self._path / "have").unlink(missing_ok=True)
            (self._path / "manifest").write_bytes(manifest_bytes)
        except OSError as error:
            raise explain_os_error(error, "pieces of the model", self._path, _REMEDY) from error

    def _accept(self, manifest: Manifest) -> None:
        self._offsets = [0, *accumulate(piece.size for piece in manifest.pieces)]

    def read(self, manifest: Manifest) -> Iterator[tuple[int, bytes]]:
        """Number and bytes of every piece that is here whole."""
        try:
            with (self._path / "have").open("rb") as have, (self._path / "pieces").open("rb") as pieces:
                numbers = {int(line) for line in have.read().split() if line.isdigit()}
                for number in sorted(number for number in numbers if number < len(manifest.pieces)):
                    pieces.seek(self._offsets[number])
                    data = pieces.read(manifest.pieces[number].size)
                    with suppress(PeerModelError):  # damaged: it is fetched again
                        manifest.pieces[number].check(data)
                        yield number, data
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain_os_error(error, "pieces of the model", self._path, _REMEDY) from error

    def write(self, number: int, data: bytes) -> None:
        """Keep a checked piece. Safe from several threads."""
        try:
            file = os.open(self._path / "pieces", os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                written = 0
                while written < len(data):
                    written += os.pwrite(file, data[written:], self._offsets[number] + written)
            finally:
                os.close(file)
            with (self._path / "have").open("ab") as have:
                have.write(b"%d\n" % number)
        except OSError as error:
            raise explain_os_error(error, "pieces of the model", self._path, _REMEDY) from error


def remove_pieces(directory: Path) -> None:
    """The model is in place: what was kept of it is not needed any more."""
    shutil.rmtree(directory, ignore_errors=True)
