"""The rule book reproduces the committed vectors (vectors/FORMAT.md). They change only with the protocol."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from conformance import make_driver
from program_driver import PROGRAM, ProgramDriver, get_instruction_names
from rule_coverage import find_rules
from rulebook_driver import REPO, compute_witness_positions, make_round_account, rules
from vector_format import compute_digest, unpack_arguments, unpack_runs

from psyche_py.coordinator import tick
from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.bloom import Bloom, compute_positions
from psyche_py.coordinator.committee import (
    compute_shuffled_index,
    compute_tie_breaker_seats,
    compute_verifiers,
    get_num_elected,
)
from psyche_py.coordinator.duties import draw_duties
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.rewards import compute_shares
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.witness import compute_quorum

VECTORS = REPO / "vectors"
HISTORIES = sorted((VECTORS / "histories").glob("*.json"))


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


def test_duties() -> None:
    for v in read("duties.json"):
        account = make_round_account(v["healthy"], seed=v["random_seed"])
        account.record["config"]["verification_percent"] = v["verification_percent"]
        account.record["epoch_state"]["rounds"][0]["tie_breaker_tasks"] = v["tie_breaker_tasks"]
        account = CoordinatorAccount(account.record)
        assert compute_tie_breaker_seats(account.current_round) == v["tie_breakers"]
        assert compute_verifiers(account, account.current_round) == v["verifiers"]
        duties = draw_duties(v["random_seed"], v["verifiers"], v["healthy_before"])
        assert [[duty.verifier, duty.trainer] for duty in duties] == v["duties"]


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


def read_all_histories() -> list[dict[str, Any]]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in HISTORIES]


def test_histories_in_the_rule_book() -> None:
    for history in read_all_histories():
        driver = make_driver()
        for number, step in enumerate(history["steps"]):
            where = f"{history['name']}, step {number}: {step[0]}"
            before = driver.account
            assert driver.apply(step[0], **unpack_arguments(step[1])) == step[2], where
            assert compute_digest(driver.data) == step[3], where
        check_end(history, driver.data)
        if not history["name"].startswith("random"):
            name, _, error, _ = history["steps"][-1]
            assert history["name"] in find_rules(before, name, error, driver.account)


@pytest.mark.skipif(not PROGRAM.exists(), reason="run `make programs` first")
def test_histories_on_the_program() -> None:
    program = ProgramDriver()
    for history in read_all_histories():
        program.reset()
        for number, (name, arguments, error, digest) in enumerate(history["steps"]):
            where = f"{history['name']}, step {number}: {name}"
            assert program.apply(name, **unpack_arguments(arguments)) == error, where
            assert compute_digest(program.read()) == digest, where
        check_end(history, program.read())


def check_end(history: dict[str, Any], data: bytes) -> None:
    """The account at the end, as a digest and in full."""
    assert hashlib.sha256(data).hexdigest() == history["account"]
    assert unpack_runs(history["bytes"], len(data)) == data


def test_there_are_hundreds_of_histories_and_every_rule_has_its_own() -> None:
    histories = read_all_histories()
    assert len(histories) >= 300
    assert sum(path.stat().st_size for path in VECTORS.rglob("*")) < 7_000_000
    ends = {(history["steps"][-1][0], history["steps"][-1][2] is None) for history in histories}
    for name in get_instruction_names("coordinator"):
        assert (name, True) in ends, f"no history ends with an accepted {name}"
        assert (name, False) in ends, f"no history ends with a refused {name}"
