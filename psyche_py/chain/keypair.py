"""Keypair files in the format of ``solana-keygen``: a JSON array of 64 bytes, secret half first.

Secrets never appear in an error, a log or a representation.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from solders.keypair import Keypair

from psyche_py.errors import KeypairError

MAX_FILE_BYTES = 4096
_GROUP_AND_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def load_keypair(path: Path | str) -> Keypair:
    """Read a keypair.

    Raises KeypairError: missing, readable by other users, not a keypair, or halves that do not belong
    together.
    """
    path = Path(path).expanduser()
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise KeypairError(f"{path} is a directory.", "Give the path of the keypair file in it.")
        if os.name == "posix" and status.st_mode & _GROUP_AND_OTHERS:
            raise KeypairError(
                f"{path} can be read or written by other users (mode {stat.S_IMODE(status.st_mode):04o}).",
                f"Close it: chmod 600 {path}",
            )
        if status.st_size > MAX_FILE_BYTES:
            raise KeypairError(f"{path} is too long for a keypair file.", "Give a file of solana-keygen.")
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise KeypairError(
            f"There is no keypair at {path}.",
            f"Make one with `run-manager wallet new {path}` or `solana-keygen new -o {path}`, "
            "or name another with -k.",
        ) from None
    except PermissionError:
        raise KeypairError(
            f"{path} cannot be read by this user.", f"It must belong to you: chown $USER {path}"
        ) from None
    except UnicodeDecodeError:
        raise KeypairError(f"{path} is no keypair file: it is not text.", _FORMAT) from None
    return _parse(path, text)


_FORMAT = "A keypair file is a JSON array of 64 numbers, as solana-keygen writes it."


def _parse(path: Path, text: str) -> Keypair:
    try:
        numbers = json.loads(text)
    except ValueError:
        raise KeypairError(f"{path} is no keypair file: it is not JSON.", _FORMAT) from None
    is_array = isinstance(numbers, list) and all(
        isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= 255 for number in numbers
    )
    if not is_array:
        raise KeypairError(f"{path} is no keypair file: it is not an array of bytes.", _FORMAT)
    if len(numbers) != 64:
        raise KeypairError(f"{path} holds {len(numbers)} bytes, not 64.", _FORMAT)
    try:
        return Keypair.from_bytes(bytes(numbers))
    except ValueError:
        raise KeypairError(
            f"The two halves of {path} do not belong together.", "Restore the file from a backup."
        ) from None


def write_keypair(path: Path | str, keypair: Keypair | None = None) -> Keypair:
    """Write ``keypair``, or a new one, to ``path`` with mode 0600. Never overwrites.

    Raises KeypairError when something is at ``path`` already or it cannot be written.
    """
    path = Path(path).expanduser()
    keypair = keypair or Keypair()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # the mode is set at creation: at no moment can others read the file
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise KeypairError(
            f"{path} exists already and is left as it is.", "Choose another path, or move it away first."
        ) from None
    except OSError as error:
        raise KeypairError(f"{path} cannot be written: {error.strerror}.", "Choose another path.") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps(list(bytes(keypair))))
    return keypair


def new_keypair(path: Path | str) -> Keypair:
    """Make a keypair and write it with mode 0600. Raises KeypairError when ``path`` exists."""
    return write_keypair(path)
