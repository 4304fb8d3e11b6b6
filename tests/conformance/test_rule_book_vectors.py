"""The rule book reproduces the committed vectors (vectors/FORMAT.md). They change only with the protocol."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from rulebook_driver import REPO, Driver, compute_witness_positions, make_round_account, rules

from psyche_py.coordinator import tick
from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.bloom import Bloom, compute_positions
from psyche_py.coordinator.committee import (
    compute_shuffled_index,
    get_num_elected,
)
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.rewards import compute_shares
from psyche_py.coordinator.witness import compute_quorum

VECTORS = REPO / "vectors"
HISTORIES = sorted(VECTORS.glob("history-*.json"))


def read(name: str) -> list[dict[str, Any]]:
    vectors: list[dict[str, Any]] = json.loads((VECTORS / name).read_text(encoding="utf-8"))
    assert vectors
    return vectors


def test_shuffle() -> None:
    for v in read("shuffle.json"):
        seed = bytes.fromhex(v["seed"])
        assert [compute_shuffled_index(i, v["num"], seed) for i in range(v["num"])] == v["shuffled"]


def test_committee() -> None:
    for v in read("committee.json"):
        account = make_round_account(
            v["healthy"],
            seed=v["random_seed"],
            init_min_clients=3,
            min_clients=3,
            witness_nodes=v["witness_nodes"],
        )
        round_ = account.current_round
        assert compute_witness_positions(round_) == v["positions"]
        assert get_num_elected(account, round_) == v["num_elected"]
        assert list(round_.elected_indices) == v["elected"]


def test_assignment() -> None:
    for v in read("assignment.json"):
        account = make_round_account(
            v["healthy"], seed=v["random_seed"], batch_size=v["batch_size"], data_index=v["data_index"]
        )
        expected = {index: (first, last) for index, first, last in v["assignment"]}
        assert compute_assignment(account, account.current_round) == expected


def test_bloom() -> None:
    for v in read("bloom.json"):
        bloom, items = Bloom(v["random_seed"]), [bytes.fromhex(item) for item in v["items"]]
        for item in items:
            bloom.add(item)
        assert [list(compute_positions(v["random_seed"], item)) for item in items] == v["positions"]
        assert bloom.words == v["words"]


def test_merkle() -> None:
    for v in read("merkle.json"):
        assert compute_merkle_root([bytes.fromhex(leaf) for leaf in v["leaves"]]).hex() == v["root"]


def test_points() -> None:
    for v in read("points.json"):
        assert compute_shares(v["total"], v["attested_rounds"]) == v["shares"]


def test_quorum() -> None:
    for v in read("quorum.json"):
        assert compute_quorum(v["num_elected"]) == v["quorum"]


def test_batch_size() -> None:
    for v in read("batch_size.json"):
        config = {key: v[key] for key in v if key.startswith("global_batch_size")}
        account = make_round_account([0], **config)
        account.record["model"]["max_seq_len"] = v["max_seq_len"]
        assert tick.compute_batch_size(account.record, v["data_index"]) == v["batch_size"]


def test_seed() -> None:
    for v in read("seed.json"):
        slot_hash = bytes.fromhex(v["slot_hash"])
        assert rules.compute_seed(v["unix_timestamp"], v["slot"], slot_hash) == v["seed"]


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_history(path: Any) -> None:
    history = json.loads(path.read_text(encoding="utf-8"))
    signers = [bytes.fromhex(signer) for signer in history["signers"]]
    driver = Driver(
        rules.process_init("run", "test"),
        now=history["now"],
        slot=history["slot"],
        get_signer=signers.__getitem__,
    )
    for number, (name, arguments, error, digest) in enumerate(history["steps"]):
        assert driver.apply(name, **arguments) == error, f"step {number}: {name}"
        found = hashlib.sha256(driver.account.to_bytes()).hexdigest()
        assert found[:16] == digest, f"step {number}: {name}"
    assert hashlib.sha256(driver.account.to_bytes()).hexdigest() == history["account"]


def test_there_are_histories_and_they_go_far() -> None:
    assert len(HISTORIES) >= 8
    names = {step[0] for path in HISTORIES for step in json.loads(path.read_text(encoding="utf-8"))["steps"]}
    assert {"witness", "health_check", "checkpoint", "warmup_witness", "leave_run", "update"} <= names
