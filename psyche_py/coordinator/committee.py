"""Who is trainer, verifier, tie-breaker and witness of a round (psyche.md 1.10).

Selection runs over ranks: the clients Healthy when the round started, counted in epoch client order. An index
is fixed for a whole epoch, so that a client lost in the middle shifts nobody.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import MAX_WITNESSES, Committee, Record, get_bit_indices

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount, Round

NUM_SHUFFLE_ROUNDS = 90
COMMITTEE_SALT = b"committee"
WITNESS_SALT = b"witness"
DUTY_SALT = b"verify"
"""Whom the verifiers of a round look at."""


def compute_shuffled_index(index: int, num: int, seed: bytes) -> int:
    """Swap-or-not shuffle (Hoang, Morris, Rogaway 2012; the form of Ethereum's consensus specs).

    A permutation of ``range(num)`` under the 32-byte ``seed``.
    """
    for round_number in range(NUM_SHUFFLE_ROUNDS):
        prefix = seed + bytes([round_number])
        pivot = int.from_bytes(hashlib.sha256(prefix).digest()[:8], "little") % num
        flip = (pivot + num - index) % num
        position = max(index, flip)
        source = hashlib.sha256(prefix + (position // 256).to_bytes(4, "little")).digest()
        if source[position % 256 // 8] >> (position % 8) & 1:
            index = flip
    return index


def compute_role_seed(random_seed: int, salt: bytes) -> bytes:
    """sha256(sha256(seed) || salt): independent shuffles for the committee and for the witnesses."""
    return hashlib.sha256(hashlib.sha256(random_seed.to_bytes(8, "little")).digest() + salt).digest()


def compute_elected(healthy: int, num_elected: int, random_seed: int) -> int:
    """The witnesses that a round elects, as a bitmap of epoch client indices.

    Those among ``healthy`` (a bitmap) whose ranks the shuffle puts at the first ``num_elected`` positions.
    The program computes it once, when the round starts, and stores it.
    """
    indices = get_bit_indices(healthy)
    if num_elected == len(indices):
        return healthy
    seed = compute_role_seed(random_seed, WITNESS_SALT)
    ranks = compute_ranks_at(num_elected, len(indices), seed)
    return sum(1 << indices[rank] for rank in ranks)


@lru_cache(maxsize=64)
def compute_ranks_at(num_positions: int, num: int, seed: bytes) -> tuple[int, ...]:
    """Inverse of :func:`compute_shuffled_index` for the first positions: which ranks land there, in order.

    A round of the shuffle is its own inverse, so they run backwards; all positions share a round's hashes.
    Remembered, since a client asks several times in a round, and all clients of a simulated run the same.
    """
    ranks = list(range(num_positions))
    for round_number in reversed(range(NUM_SHUFFLE_ROUNDS)):
        prefix = seed + bytes([round_number])
        pivot = int.from_bytes(hashlib.sha256(prefix).digest()[:8], "little") % num
        source = int.from_bytes(hashlib.sha256(prefix + bytes(4)).digest(), "little")
        for i, rank in enumerate(ranks):
            flip = (pivot + num - rank) % num
            if source >> max(rank, flip) & 1:
                ranks[i] = flip
    return tuple(ranks)


def compute_num_elected(witness_nodes: int, clients_len: int) -> int:
    """How many witnesses a round of ``clients_len`` clients elects; ``witness_nodes`` 0 means all it can."""
    return min(witness_nodes or MAX_WITNESSES, MAX_WITNESSES, clients_len)


def get_num_elected(account: CoordinatorAccount, round_: Round) -> int:
    """How many witnesses a round elects."""
    return compute_num_elected(account.config.witness_nodes, round_.clients_len)


def get_num_elected_of(record: Record, round_record: Record) -> int:
    """The same on the raw records of an account and of one of its rounds."""
    return compute_num_elected(int(record["config"]["witness_nodes"]), int(round_record["clients_len"]))


def compute_num_verifiers(num_clients: int, verification_percent: int) -> int:
    """How many of ``num_clients`` that break no ties verify: the percentage (at most 50) rounded down.

    At least one where anything is to be verified and there is somebody else to look at.
    """
    if verification_percent == 0 or num_clients < 2:
        return 0
    return max(1, num_clients * verification_percent // 100)


def compute_committee(account: CoordinatorAccount, round_: Round) -> dict[int, Committee]:
    """The committee of every client of the round, by epoch client index."""
    committees = dict.fromkeys(round_.healthy_indices, Committee.Trainer)
    committees |= dict.fromkeys(compute_tie_breaker_seats(round_), Committee.TieBreaker)
    return committees | dict.fromkeys(compute_verifiers(account, round_), Committee.Verifier)


def compute_tie_breaker_seats(round_: Round) -> list[int]:
    """The clients at the committee's first positions, in order: those that judge, and maybe the parties."""
    return _compute_clients_at(round_, min(round_.tie_breaker_tasks, round_.clients_len))


def compute_verifiers(account: CoordinatorAccount, round_: Round) -> list[int]:
    """The round's verifiers by number, as epoch client indices."""
    start = min(round_.tie_breaker_tasks, round_.clients_len)
    num = compute_num_verifiers(round_.clients_len - start, account.config.verification_percent)
    return _compute_clients_at(round_, start + num)[start:] if num else []


def _compute_clients_at(round_: Round, num_positions: int) -> list[int]:
    if num_positions == 0:
        return []
    seed = compute_role_seed(round_.random_seed, COMMITTEE_SALT)
    ranks = compute_ranks_at(num_positions, round_.clients_len, seed)
    return [round_.healthy_indices[rank] for rank in ranks]
