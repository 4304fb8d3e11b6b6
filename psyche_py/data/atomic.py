"""Directories that appear whole or not at all: written beside their place, synced, renamed."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psyche_py.errors import StorageError

# EFBIG is what a file size limit (ulimit -f) gives
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_counter = itertools.count()


@contextmanager
def replace_directory(target: Path, what: str, remedy: str) -> Iterator[Path]:
    """Yield an empty directory to fill; it takes the place of ``target`` when the block ends well.

    Raises StorageError ("cannot write <what> to ...") for every OSError of the block or of the renames.
    Whatever happens, ``target`` is either what it was or the whole new directory. What a killed process left
    behind is removed by the next one that writes the same target on the same machine.
    """
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        temporary = _get_side_path(target, "new")
        temporary.mkdir()
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            _sync(path)
        _swap(temporary, target)
        _sync(target.parent)
    except OSError as error:
        raise explain_os_error(error, what, target.parent, remedy) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def explain_os_error(error: OSError, what: str, directory: Path, remedy: str) -> StorageError:
    """The StorageError a user can act on."""
    if error.errno in NO_SPACE:
        return StorageError(f"The disk is full: cannot write {what} to {directory}.", f"Free space. {remedy}")
    return StorageError(f"Cannot write {what} to {directory}: {error.strerror or error}.", remedy)


def _get_side_path(target: Path, kind: str) -> Path:
    owner = f"{socket.gethostname()}.{os.getpid()}"
    return target.with_name(f".{target.name}.{owner}.{next(_counter)}.{kind}")


def _remove_leftovers(target: Path) -> None:
    """Remove side directories whose process is gone from this machine."""
    start = f".{target.name}.{socket.gethostname()}."
    for path in list(target.parent.iterdir()):
        parts = path.name.removeprefix(start).split(".")
        if not path.name.startswith(start) or len(parts) != 3 or parts[2] not in ("new", "old"):
            continue
        if parts[0].isdigit() and not _is_alive(int(parts[0])):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _swap(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = _get_side_path(target, "old")
    target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        old.rename(target)
        raise
    with contextlib.suppress(OSError):  # it costs space, not correctness; the next writer tries again
        shutil.rmtree(old)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
