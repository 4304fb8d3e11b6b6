"""The ledger: what comes back, what is dropped, what is refused."""

import json
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from localnet_bank import Node, encode, move
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from psyche_py.chain.localnet import bank as bank_module
from psyche_py.chain.localnet.ledger import FILE_NAME, MAGIC, SEED_BYTES, Ledger
from psyche_py.chain.localnet.records import (
    AccountRecord,
    Record,
    SlotRecord,
    TransactionRecord,
    pack_record,
    unpack_record,
)
from psyche_py.errors import StorageError

SEED = bytes(range(SEED_BYTES))
HEADER_BYTES = len(MAGIC) + SEED_BYTES


def open_ledger(directory: Path, *, reset: bool = False) -> Ledger:
    return Ledger.open(directory, reset=reset, new_genesis_seed=SEED)


def reopen(node: Node, directory: Path) -> Node:
    """The same chain from its file, as after SIGKILL: nothing is flushed or closed in between."""
    ledger = node.bank._ledger
    assert ledger is not None
    os.close(ledger._lock)
    os.close(ledger._file)
    return Node(open_ledger(directory))


pubkeys = st.binary(min_size=32, max_size=32).map(Pubkey)
accounts = st.builds(
    AccountRecord, pubkeys, st.integers(0, 2**64 - 1), pubkeys, st.booleans(), st.binary(max_size=2000)
)
records = (
    st.builds(SlotRecord, st.integers(0, 2**64 - 1), st.integers(-(2**63), 2**63 - 1), pubkeys.map(bytes))
    | accounts
    | st.builds(TransactionRecord, st.binary(max_size=900), st.lists(accounts, max_size=3).map(tuple))
)


@given(records)
def test_records_survive_packing(record: Record) -> None:
    assert unpack_record(pack_record(record)) == record


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_other_bytes_are_refused(raw: bytes) -> None:
    try:
        record = unpack_record(raw)
    except StorageError:
        return
    assert isinstance(record, (SlotRecord, AccountRecord, TransactionRecord))


def test_everything_comes_back(tmp_path: Path) -> None:
    node = Node(open_ledger(tmp_path))
    payer, to = node.fund(), Keypair().pubkey()
    first = node.send([move(payer, to, 10**6)], payer)
    node.advance(5)
    failed = node.send([move(payer, to, 10**18)], payer, skipPreflight=True)
    signed = node.sign([move(payer, to, 2 * 10**6)], payer)
    last = node.call("sendTransaction", encode(signed), {"encoding": "base64"})  # in a slot that never ends
    slot, time = node.bank.slot, node.bank.engine.unix_timestamp
    genesis, blockhash = node.call("getGenesisHash"), node.call("getLatestBlockhash")["value"]["blockhash"]
    balances = [node.call("getBalance", str(key)) for key in (payer.pubkey(), to)]
    faucet = node.call("getBalance", str(node.bank.engine.faucet))["value"]

    again = reopen(node, tmp_path)
    assert again.bank.slot == slot + 1  # the slot that was being made is over
    assert again.bank.engine.unix_timestamp >= time
    assert again.call("getGenesisHash") == genesis
    assert again.call("isBlockhashValid", blockhash)["value"] is True
    assert [again.call("getBalance", str(key))["value"] for key in (payer.pubkey(), to)] == [
        balance["value"] for balance in balances
    ]
    assert again.call("getBalance", str(again.bank.engine.faucet))["value"] == faucet
    statuses = again.call("getSignatureStatuses", [first, failed, last])["value"]
    assert [status["err"] is None for status in statuses] == [True, False, True]
    error = again.fail("sendTransaction", encode(signed), {"encoding": "base64"})
    assert error["data"]["err"] == "AlreadyProcessed"
    again.advance(2)
    found = [item["signature"] for item in again.call("getSignaturesForAddress", str(to))]
    assert found == [last, failed, first]
    assert again.call("getTransaction", first)["meta"]["fee"] == 5000
    assert again.send([move(payer, to, 10**6)], payer)


def test_closed_accounts_stay_closed(tmp_path: Path) -> None:
    node = Node(open_ledger(tmp_path))
    payer, to = node.fund(10**9), Keypair().pubkey()
    node.send([move(payer, to, 10**9 - 5000)], payer)
    assert node.call("getAccountInfo", str(payer.pubkey()))["value"] is None
    again = reopen(node, tmp_path)
    assert again.call("getAccountInfo", str(payer.pubkey()))["value"] is None
    assert again.call("getBalance", str(to))["value"] == 10**9 - 5000


def test_a_torn_tail_is_dropped_at_any_byte(tmp_path: Path) -> None:
    node = Node(open_ledger(tmp_path))
    payer, to = node.fund(), Keypair().pubkey()
    node.advance()
    path = tmp_path / FILE_NAME
    whole = path.stat().st_size
    node.send([move(payer, to, 10**6)], payer)
    raw = path.read_bytes()
    balance = 0
    for cut in (whole, whole + 3, whole + 8, whole + 100, len(raw) - 1, len(raw)):
        path.write_bytes(raw[:cut])
        node = reopen(node, tmp_path)
        balance = node.call("getBalance", str(to))["value"]
        assert balance == (10**6 if cut == len(raw) else 0)
    zeros = raw[:whole] + bytes(100)
    path.write_bytes(zeros)
    assert reopen(node, tmp_path).call("getBalance", str(to))["value"] == 0


def test_a_torn_tail_does_not_hurt_what_follows(tmp_path: Path) -> None:
    node = Node(open_ledger(tmp_path))
    payer, to = node.fund(), Keypair().pubkey()
    path = tmp_path / FILE_NAME
    path.write_bytes(path.read_bytes() + b"\x50\x00\x00\x00torn")
    node = reopen(node, tmp_path)
    node.send([move(payer, to, 10**6)], payer)
    assert reopen(node, tmp_path).call("getBalance", str(to))["value"] == 10**6


def test_damage_in_the_middle_is_refused(tmp_path: Path) -> None:
    node = Node(open_ledger(tmp_path))
    node.fund()
    node.advance(3)
    path = tmp_path / FILE_NAME
    raw = bytearray(path.read_bytes())
    raw[HEADER_BYTES + 20] ^= 1
    path.write_bytes(raw)
    with pytest.raises(StorageError, match="damaged at byte"):
        reopen(node, tmp_path)


def test_reset_begins_anew(tmp_path: Path) -> None:
    node = Node(open_ledger(tmp_path))
    payer = node.fund()
    node.bank.close()
    fresh = Node(Ledger.open(tmp_path, reset=True, new_genesis_seed=bytes(SEED_BYTES)))
    assert fresh.call("getBalance", str(payer.pubkey()))["value"] == 0
    assert fresh.call("getGenesisHash") != node.call("getGenesisHash")


def test_a_ledger_has_one_user(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path)
    with pytest.raises(StorageError, match="in use by another localnet"):
        open_ledger(tmp_path)
    ledger.close()
    open_ledger(tmp_path).close()


def test_a_foreign_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / FILE_NAME
    path.write_bytes(b"my diary")
    with pytest.raises(StorageError, match="not a ledger"):
        open_ledger(tmp_path)
    assert path.read_bytes() == b"my diary"


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Cannot open the ledger"):
        open_ledger(tmp_path / "file" / "ledger")


def test_a_full_disk_stops_the_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(open_ledger(tmp_path))
    payer, to = node.fund(), Keypair().pubkey()
    write = os.write

    def write_half(file: int, raw: bytes) -> int:
        return write(file, raw[: len(raw) // 2])

    monkeypatch.setattr(os, "write", write_half)
    with pytest.raises(StorageError, match="No space left"):
        node.send([move(payer, to, 10**6)], payer)
    monkeypatch.undo()
    again = reopen(node, tmp_path)
    assert again.call("getBalance", str(to))["value"] == 0  # never acknowledged, so never happened
    assert again.call("getBalance", str(payer.pubkey()))["value"] == 10**10


def test_rewriting_keeps_everything_and_shrinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank_module, "REWRITE_MINIMUM_BYTES", 20_000)
    node = Node(open_ledger(tmp_path))
    payer, to = node.fund(), Keypair().pubkey()
    signatures = [node.send([move(payer, to, 10**6 + i)], payer) for i in range(5)]
    ledger = node.bank._ledger
    assert ledger is not None
    node.bank._rewrite_at_bytes = 20_000
    peak = 0
    for _ in range(1200):
        node.advance()
        peak = max(peak, ledger.num_bytes)
    assert ledger.num_bytes == (tmp_path / FILE_NAME).stat().st_size
    assert peak < 4 * 80_000  # 1024 blocks of 57 bytes are kept
    again = reopen(node, tmp_path)
    assert again.call("getBalance", str(to))["value"] == 5 * 10**6 + 10
    assert all(status is not None for status in again.call("getSignatureStatuses", signatures)["value"])
    assert again.bank.slot == node.bank.slot + 1


def test_header_layout() -> None:
    """FORMAT: the frame of a record is length and crc32, little-endian."""
    body = pack_record(SlotRecord(1, 2, bytes(32)))
    assert body == b"S" + struct.pack("<Qq", 1, 2) + bytes(32)
    meta = json.dumps({"a": 1}).encode()
    assert pack_record(TransactionRecord(meta, ())) == b"T" + struct.pack("<I", len(meta)) + meta
