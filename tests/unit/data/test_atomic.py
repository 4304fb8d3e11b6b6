import os
import socket
from pathlib import Path

import pytest

from psyche_py.data.atomic import replace_directory
from psyche_py.errors import StorageError


def test_a_new_directory_replaces_the_old_one_whole(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "target"
    for content in ("one", "two"):
        with replace_directory(target, "x", "") as directory:
            (directory / content).write_text(content)
    assert [path.name for path in target.iterdir()] == ["two"]
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("other")])
def test_a_failure_leaves_things_as_they_were(tmp_path: Path, error: Exception) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").touch()
    expected = StorageError if isinstance(error, OSError) else RuntimeError

    with pytest.raises(expected) as caught, replace_directory(target, "shards", "Remedy.") as directory:
        (directory / "half").touch()
        raise error

    assert [path.name for path in target.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [target]
    if isinstance(caught.value, StorageError):
        assert "disk is full" in caught.value.what
        assert "Free space. Remedy." in caught.value.remedy


def test_what_dead_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    host = socket.gethostname()
    process = os.spawnl(os.P_NOWAIT, "/bin/true", "true")
    os.waitpid(process, 0)
    dead = tmp_path / f".target.{host}.{process}.0.new"
    alive = tmp_path / f".target.{host}.{os.getppid()}.0.new"
    elsewhere = tmp_path / f".target.otherhost.{process}.0.new"
    other = tmp_path / f".target2.{host}.{process}.0.new"
    for path in (dead, alive, elsewhere, other):
        path.mkdir()

    with replace_directory(tmp_path / "target", "x", ""):
        pass

    assert not dead.exists()
    assert alive.exists()
    assert elsewhere.exists()
    assert other.exists()


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError), replace_directory(tmp_path / "file" / "target", "x", ""):
        raise AssertionError("the block must not run")
