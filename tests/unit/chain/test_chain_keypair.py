"""Keypair files: what is refused, with a remedy, and never with a secret in the message."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from solders.keypair import Keypair

from psyche_py.chain.keypair import load_keypair, new_keypair, write_keypair
from psyche_py.errors import KeypairError


def write(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(mode)
    return path


def test_round_trip_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "id.json"
    made = new_keypair(path)
    assert load_keypair(path) == made == load_keypair(str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text()) == list(bytes(made))


def test_never_overwrites(tmp_path: Path) -> None:
    path = tmp_path / "id.json"
    first = new_keypair(path)
    with pytest.raises(KeypairError, match="exists already"):
        write_keypair(path, Keypair())
    assert load_keypair(path) == first


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o610])
def test_open_to_others(tmp_path: Path, mode: int) -> None:
    path = write(tmp_path / "id.json", json.dumps(list(bytes(Keypair()))), mode)
    with pytest.raises(KeypairError, match="chmod 600"):
        load_keypair(path)


def wrong_half() -> str:
    numbers = list(bytes(Keypair()))
    return json.dumps(numbers[:32] + list(bytes(Keypair()))[32:])


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "not JSON"),
        ("[1, 2", "not JSON"),
        ("{}", "not an array"),
        ('"text"', "not an array"),
        (json.dumps([256] * 64), "not an array"),
        (json.dumps([True] * 64), "not an array"),
        (json.dumps([1.5] * 64), "not an array"),
        (json.dumps([1] * 32), "32 bytes, not 64"),
        (b"\xff\xfe\x00", "not text"),
        ("[" * 5000, "too long"),
        (wrong_half(), "do not belong together"),
    ],
)
def test_malformed(tmp_path: Path, content: str | bytes, match: str) -> None:
    with pytest.raises(KeypairError, match=match) as caught:
        load_keypair(write(tmp_path / "id.json", content))
    assert caught.value.remedy
    assert caught.value.exit_code == 2


def test_missing_and_directory(tmp_path: Path) -> None:
    with pytest.raises(KeypairError, match="no keypair at") as caught:
        load_keypair(tmp_path / "none.json")
    assert "solana-keygen" in caught.value.remedy
    with pytest.raises(KeypairError, match="directory"):
        load_keypair(tmp_path)


def test_errors_hold_no_secret(tmp_path: Path) -> None:
    secret = list(bytes(Keypair()))
    with pytest.raises(KeypairError) as caught:
        load_keypair(write(tmp_path / "id.json", json.dumps(secret[:63])))
    assert str(secret[0]) + ", " + str(secret[1]) not in str(caught.value)
