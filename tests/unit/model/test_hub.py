"""Models from a hub on loopback, by the real library in a process of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hub_server import COMMIT, serve_hub

from psyche_py.errors import DataError
from psyche_py.model import loader
from psyche_py.model.hub import fetch_snapshot

REPO = "org/model"
WANTED = {"model.safetensors": b"weights", "config.json": b"{}"}
UNWANTED = {"pytorch_model.bin": b"a pickle", "modeling.py": b"raise SystemExit"}


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the repository; the cache is empty, and the user lets the library download."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loader, "USERS_OFFLINE", None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as in a process that has imported transformers
    directory = tmp_path / "published"
    directory.mkdir()
    for name, data in {**WANTED, **UNWANTED}.items():
        (directory / name).write_bytes(data)
    return directory


def test_weights_and_json_of_the_revision_and_nothing_else(
    published: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickles and code of a repository are not even downloaded."""
    with serve_hub(REPO, published) as (endpoint, requests):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        directory = fetch_snapshot(REPO, "v2")
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == WANTED
    asked = [path for method, path in (request.split() for request in requests) if method == "GET"]
    assert any(path.startswith(f"/api/models/{REPO}/revision/v2") for path in asked)
    files = sorted(path for path in asked if "/resolve/" in path)
    assert files == sorted(f"/{REPO}/resolve/{COMMIT}/{name}" for name in WANTED)


def test_without_a_revision_it_is_the_main_branch(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve_hub(REPO, published) as (endpoint, requests):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        assert fetch_snapshot(REPO, "").name == COMMIT
    assert any(f"/api/models/{REPO}/revision/main" in request for request in requests)


def test_a_user_who_wants_no_downloads_has_none(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the cache holds is found; what it lacks is an error, without a request."""
    with serve_hub(REPO, published) as (endpoint, requests):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        cached = fetch_snapshot(REPO, "main")
        num_requests = len(requests)
        monkeypatch.setattr(loader, "USERS_OFFLINE", "1")
        assert fetch_snapshot(REPO, "main") == cached
        with pytest.raises(DataError, match="org/other from the Hub") as caught:
            fetch_snapshot("org/other", "main")
        assert len(requests) == num_requests
    assert "HF_TOKEN" in caught.value.remedy
