"""Write vectors/*.json from the rule book: ``python tests/generate_vectors.py [--check]``.

The files let another implementation, or a later version of this one, show that it keeps the rules to the
byte; vectors/FORMAT.md describes them. ``--check`` writes nothing and exits 1 when a file would change.
Takes half a minute.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "support"))

from rulebook_driver import compute_witness_positions, make_round_account, rules
from vector_format import pack_history
from vector_histories import NUM_RANDOM, find_shortest, get_file_name, make_random

from psyche_py.coordinator import tick
from psyche_py.coordinator.assignment import compute_assignment
from psyche_py.coordinator.bloom import Bloom, compute_positions
from psyche_py.coordinator.committee import (
    compute_num_elected,
    compute_shuffled_index,
    compute_tie_breaker_seats,
    compute_verifiers,
)
from psyche_py.coordinator.duties import draw_duties
from psyche_py.coordinator.merkle import compute_merkle_root
from psyche_py.coordinator.rewards import compute_shares
from psyche_py.coordinator.state import CoordinatorAccount
from psyche_py.coordinator.witness import compute_quorum

VECTORS = Path(__file__).resolve().parents[1] / "vectors"
HISTORIES = "histories"
Vectors = list[dict[str, Any]]


def make_shuffle() -> Vectors:
    vectors = []
    for num in (1, 2, 3, 5, 8, 33, 100, 255, 256):
        seed = hashlib.sha256(f"shuffle {num}".encode()).digest()
        shuffled = [compute_shuffled_index(index, num, seed) for index in range(num)]
        vectors.append({"seed": seed.hex(), "num": num, "shuffled": shuffled})
    return vectors


def _make_healthy_sets(rng: random.Random) -> list[list[int]]:
    sizes = (1, 2, 3, 4, 7, 16, 33, 64, 150, 256)
    return [sorted(rng.sample(range(256), size)) for size in sizes]


def make_committee() -> Vectors:
    rng, vectors = random.Random(1), []
    for healthy in _make_healthy_sets(rng):
        seed, witness_nodes = rng.getrandbits(64), rng.choice([0, 1, 3])
        account = make_round_account(
            healthy, seed=seed, init_min_clients=3, min_clients=3, witness_nodes=witness_nodes
        )
        round_ = account.current_round
        vectors.append(
            {
                "random_seed": seed,
                "witness_nodes": witness_nodes,
                "healthy": healthy,
                "positions": compute_witness_positions(round_),
                "num_elected": compute_num_elected(witness_nodes, len(healthy)),
                "elected": list(round_.elected_indices),
            }
        )
    return vectors


def make_assignment() -> Vectors:
    rng, vectors = random.Random(2), []
    for healthy in _make_healthy_sets(rng):
        for batch_size in (0, 1, rng.randrange(2, 3000)):
            seed, data_index = rng.getrandbits(64), rng.getrandbits(40)
            account = make_round_account(healthy, seed=seed, batch_size=batch_size, data_index=data_index)
            assignment = compute_assignment(account, account.current_round)
            vectors.append(
                {
                    "random_seed": seed,
                    "healthy": healthy,
                    "data_index": data_index,
                    "batch_size": batch_size,
                    "assignment": [[index, *assignment[index]] for index in sorted(assignment)],
                }
            )
    return vectors


def make_duties() -> Vectors:
    rng, vectors = random.Random(6), []
    for healthy in _make_healthy_sets(rng):
        for percent, seats in ((50, 0), (5, 0), (20, min(11, len(healthy)))):
            before = sorted({*healthy[: len(healthy) // 2], *rng.sample(range(256), rng.randrange(1, 40))})
            seed = rng.getrandbits(64)
            account = make_round_account(healthy, seed=seed)
            account.record["config"]["verification_percent"] = percent
            account.record["epoch_state"]["rounds"][0]["tie_breaker_tasks"] = seats
            account = CoordinatorAccount(account.record)
            verifiers = compute_verifiers(account, account.current_round)
            vectors.append(
                {
                    "random_seed": seed,
                    "verification_percent": percent,
                    "tie_breaker_tasks": seats,
                    "healthy": healthy,
                    "healthy_before": before,
                    "tie_breakers": compute_tie_breaker_seats(account.current_round),
                    "verifiers": verifiers,
                    "duties": [[d.verifier, d.trainer] for d in draw_duties(seed, verifiers, before)],
                }
            )
    return vectors


def make_bloom() -> Vectors:
    rng, vectors = random.Random(3), []
    for num in (0, 1, 2, 16, 64):
        seed = rng.getrandbits(64)
        items = [rng.randbytes(32) for _ in range(num)]
        bloom = Bloom(seed)
        for item in items:
            bloom.add(item)
        vectors.append(
            {
                "random_seed": seed,
                "items": [item.hex() for item in items],
                "positions": [list(compute_positions(seed, item)) for item in items],
                "words": list(bloom.words),
            }
        )
    return vectors


def make_merkle() -> Vectors:
    leaves = [hashlib.sha256(bytes([number])).digest() for number in range(9)]
    return [
        {"leaves": [leaf.hex() for leaf in leaves[:num]], "root": compute_merkle_root(leaves[:num]).hex()}
        for num in range(1, 10)
    ]


def make_points() -> Vectors:
    rng = random.Random(4)
    cases = [(10, [1, 1, 1]), (7, [1, 2, 3]), (5, [0, 0]), (2**64 - 1, [3, 2**32 - 1, 1])]
    cases += [(rng.randrange(10**12), [rng.randrange(200) for _ in range(num)]) for num in (2, 5, 20, 256)]
    return [
        {"total": total, "attested_rounds": weights, "shares": compute_shares(total, weights)}
        for total, weights in cases
    ]


def make_quorum() -> Vectors:
    return [{"num_elected": num, "quorum": compute_quorum(num)} for num in range(33)]


def make_batch_size() -> Vectors:
    rng, vectors = random.Random(5), []
    for start, end, warmup in ((1, 1, 0), (5, 17, 20_000), (12_288, 32_768, 549_755_813_888), (3, 65_535, 7)):
        account = make_round_account(
            [0],
            global_batch_size_start=start,
            global_batch_size_end=end,
            global_batch_size_warmup_tokens=warmup,
        )
        max_seq_len = rng.choice([1, 128, 2048])
        account.record["model"]["max_seq_len"] = max_seq_len
        limit = warmup // max_seq_len + 2
        indices = sorted({0, 1, 2**62, limit, *(rng.randrange(limit + 1) for _ in range(5))})
        vectors += [
            {
                "global_batch_size_start": start,
                "global_batch_size_end": end,
                "global_batch_size_warmup_tokens": warmup,
                "max_seq_len": max_seq_len,
                "data_index": data_index,
                "batch_size": tick.compute_batch_size(account.record, data_index),
            }
            for data_index in indices
        ]
    return vectors


def make_seed() -> Vectors:
    vectors = []
    for number, timestamp in enumerate((0, -1, 1_700_000_000, 2**40)):
        slot, slot_hash = 3**number, hashlib.sha256(bytes([number])).digest()
        vectors.append(
            {
                "unix_timestamp": timestamp,
                "slot": slot,
                "slot_hash": slot_hash.hex(),
                "seed": rules.compute_seed(timestamp, slot, slot_hash),
            }
        )
    return vectors


def make_histories() -> dict[str, str]:
    """Every history's text by file name."""
    texts = {get_file_name(rule): pack_history(rule, events) for rule, events in find_shortest().items()}
    for seed in range(NUM_RANDOM):
        texts[f"random-{seed:03}"] = pack_history(f"random {seed}", make_random(seed))
    return {f"{HISTORIES}/{name}.json": text for name, text in texts.items()}


def make_all() -> dict[str, str]:
    """Every file's text by file name."""
    vectors = {
        "shuffle.json": make_shuffle(),
        "committee.json": make_committee(),
        "assignment.json": make_assignment(),
        "duties.json": make_duties(),
        "bloom.json": make_bloom(),
        "merkle.json": make_merkle(),
        "points.json": make_points(),
        "quorum.json": make_quorum(),
        "batch_size.json": make_batch_size(),
        "seed.json": make_seed(),
    }
    return {name: render(content) for name, content in vectors.items()} | make_histories()


def render(vectors: Vectors) -> str:
    """JSON with one vector a line."""
    return "[\n" + ",\n".join(json.dumps(vector, ensure_ascii=False) for vector in vectors) + "\n]\n"


def main() -> int:
    is_check = sys.argv[1:] == ["--check"]
    texts = make_all()
    old = {path.relative_to(VECTORS).as_posix() for path in VECTORS.rglob("*.json")}
    changed = sorted(old - texts.keys())
    if not is_check:
        (VECTORS / HISTORIES).mkdir(exist_ok=True)
        for name in changed:
            (VECTORS / name).unlink()
    for name, text in texts.items():
        path = VECTORS / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed.append(name)
            if not is_check:
                path.write_text(text, encoding="utf-8")
    print(f"{len(changed)} files {'differ' if is_check else 'changed'}: {' '.join(changed[:20])}")
    return 1 if is_check and changed else 0


if __name__ == "__main__":
    sys.exit(main())
