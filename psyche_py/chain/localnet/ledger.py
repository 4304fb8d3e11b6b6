"""The ledger directory: an append-only file of records that survives SIGKILL.

    DIR/lock              held (flock) by the process that uses the ledger
    DIR/ledger.psy        MAGIC, genesis_seed[32], then records: length u32, crc32 u32, body

Every record is handed to the operating system in one write before the transaction is acknowledged, so it
survives the death of this process; only a loss of power can take the last seconds (the file is fsynced when
it is rewritten and closed). A torn record at the end, from a write that was cut short, is dropped on opening.
When the file has grown by much it is rewritten without what is no longer needed: into a temporary file,
fsynced, renamed.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from psyche_py.chain.localnet.records import MAX_RECORD_BYTES, Record, pack_record, unpack_record
from psyche_py.errors import StorageError

MAGIC = b"psyche-py localnet 1\n"
SEED_BYTES = 32
FILE_NAME = "ledger.psy"
LOCK_NAME = "lock"

_HEAD = struct.Struct("<II")


def _storage_error(action: str, path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"Cannot {action} {path}: {error.strerror or error}.",
        "Free disk space or give a writable directory with --ledger.",
    )


class Ledger:
    """An open ledger. Use :meth:`open`, read :meth:`read_records` once, then :meth:`append`."""

    def __init__(self, path: Path, lock: int, file: int, genesis_seed: bytes, size: int) -> None:
        self.path = path
        self.genesis_seed = genesis_seed
        self.num_bytes = size
        self._lock = lock
        self._file = file

    @classmethod
    def open(cls, directory: Path, *, reset: bool, new_genesis_seed: bytes) -> Ledger:
        """Open or create the ledger in ``directory``; ``reset`` begins a new one in its place.

        ``new_genesis_seed``: 32 bytes that tell a new ledger's chain from all others.
        Raises StorageError when another process has it, or it is damaged or cannot be written.
        """
        path = directory / FILE_NAME
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                return cls._open_locked(path, lock, reset, new_genesis_seed)
            except BaseException:
                os.close(lock)
                raise
        except OSError as error:
            raise _storage_error("open the ledger", path, error) from error

    @classmethod
    def _open_locked(cls, path: Path, lock: int, reset: bool, new_genesis_seed: bytes) -> Ledger:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StorageError(
                f"The ledger {path.parent} is in use by another localnet.",
                "Stop that process or give another directory with --ledger.",
            ) from None
        if reset or not path.exists() or path.stat().st_size == 0:
            _write_whole(path, new_genesis_seed, ())
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        head = os.pread(file, len(MAGIC) + SEED_BYTES, 0)
        if len(head) != len(MAGIC) + SEED_BYTES or not head.startswith(MAGIC):
            os.close(file)
            raise StorageError(
                f"{path} is not a ledger of this version.", "Start with --reset to begin a new one."
            )
        return cls(path, lock, file, head[len(MAGIC) :], len(head))

    def read_records(self) -> Iterator[Record]:
        """All records in order. Drops a torn record at the end of the file.

        Raises StorageError when a record before the last is damaged.
        """
        size = os.fstat(self._file).st_size
        position = len(MAGIC) + SEED_BYTES
        while position < size:
            body = self._read_body(position, size)
            if body is None:
                os.ftruncate(self._file, position)
                break
            yield unpack_record(body)
            position += _HEAD.size + len(body)
        self.num_bytes = position

    def _read_body(self, position: int, size: int) -> bytes | None:
        """The record at ``position``; None when the file ends within it."""
        head = os.pread(self._file, _HEAD.size, position)
        if len(head) < _HEAD.size:
            return None
        length, checksum = _HEAD.unpack(head)
        if length == 0:  # zeros: the file system had given the space but not yet the bytes
            return None
        end = position + _HEAD.size + length
        if end > size:
            return None
        body = os.pread(self._file, length, position + _HEAD.size) if length <= MAX_RECORD_BYTES else b""
        if zlib.crc32(body) != checksum:
            if end == size:
                return None
            raise StorageError(
                f"{self.path} is damaged at byte {position}.", "Start with --reset to begin a new ledger."
            )
        return body

    def append(self, record: Record) -> None:
        """Write one record through to the operating system. Raises StorageError, as when the disk is full."""
        raw = _frame(record)
        try:
            written = os.write(self._file, raw)
            if written != len(raw):
                os.ftruncate(self._file, self.num_bytes)
                raise OSError(28, "No space left on device")
        except OSError as error:
            raise _storage_error("write to the ledger", self.path, error) from error
        self.num_bytes += len(raw)

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replace the content by ``records``, atomically. Raises StorageError; the old content stays then."""
        try:
            size = _write_whole(self.path, self.genesis_seed, records)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise _storage_error("rewrite the ledger", self.path, error) from error
        os.close(self._file)
        self._file = file
        self.num_bytes = size

    def close(self) -> None:
        """Flush to the disk and let go of the directory."""
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)
            os.close(self._lock)


def _frame(record: Record) -> bytes:
    body = pack_record(record)
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def _write_whole(path: Path, genesis_seed: bytes, records: Iterable[Record]) -> int:
    """Write a complete ledger file and put it in place; returns its size in bytes."""
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            file.write(MAGIC + genesis_seed)
            for record in records:
                file.write(_frame(record))
            size = file.tell()
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
    return size
