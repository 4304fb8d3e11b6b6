"""programs/build/set_ids.py: the programs at addresses of one's own."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from solders.pubkey import Pubkey

from psyche_py.chain.keypair import write_keypair

BUILD = Path(__file__).resolve().parents[2] / "programs" / "build"


def test_ids_are_set_from_keypair_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(BUILD))
    names = ("set_ids", "idl", "rust_source")
    set_ids, idl, rust_source = (importlib.import_module(name) for name in names)
    ids = tmp_path / "ids.rs"
    ids.write_text(set_ids.IDS.read_text())
    monkeypatch.setattr(set_ids, "IDS", ids)
    before = rust_source.parse_ids(ids.read_text())
    with pytest.raises(SystemExit, match="run-manager wallet new"):
        set_ids.main([str(tmp_path)])
    keypairs = {name: write_keypair(tmp_path / f"{name}.json") for name in idl.PROGRAMS}
    set_ids.main([str(tmp_path)])
    expected = {name: str(keypair.pubkey()) for name, keypair in keypairs.items()}
    assert rust_source.parse_ids(ids.read_text()) == {**before, **expected}
    (tmp_path / "coordinator.json").write_text((tmp_path / "treasurer.json").read_text())
    with pytest.raises(SystemExit, match="one address"):
        set_ids.main([str(tmp_path)])
    (tmp_path / "coordinator.json").write_text("[1, 2]")
    with pytest.raises(SystemExit, match="64 bytes"):
        set_ids.main([str(tmp_path)])


@pytest.mark.parametrize("key", [bytes(32), bytes(2) + bytes([1] * 30), bytes([255] * 32)])
def test_addresses_are_written_as_solana_writes_them(monkeypatch: pytest.MonkeyPatch, key: bytes) -> None:
    monkeypatch.syspath_prepend(str(BUILD))
    assert importlib.import_module("set_ids").encode_base58(key) == str(Pubkey(key))
