"""Who is trainer, verifier, tie-breaker and witness of a round (psyche.md 1.10).

Selection runs over ranks: the clients Healthy when the round started, counted in epoch client order. An index
is fixed for a whole epoch, so that a client lost in the middle shifts nobody.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from psyche_py.coordinator.layout import MAX_WITNESSES, Committee

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount, Round

NUM_SHUFFLE_ROUNDS = 90
COMMITTEE_SALT = b"committee"
WITNESS_SALT = b"witness"


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


def compute_witness_position(round_: Round, index: int) -> int:
    """Shuffled position of epoch client ``index``; below :func:`get_num_elected` means elected.

    Raises ValueError when the client was not Healthy at the round's start.
    """
    seed = compute_role_seed(round_.random_seed, WITNESS_SALT)
    return compute_shuffled_index(round_.get_rank(index), round_.clients_len, seed)


def compute_num_elected(witness_nodes: int, clients_len: int) -> int:
    """How many witnesses a round of ``clients_len`` clients elects; ``witness_nodes`` 0 means all it can."""
    return min(witness_nodes or MAX_WITNESSES, MAX_WITNESSES, clients_len)


def get_num_elected(account: CoordinatorAccount, round_: Round) -> int:
    """How many witnesses a round elects."""
    return compute_num_elected(account.config.witness_nodes, round_.clients_len)


def compute_elected_witnesses(account: CoordinatorAccount, round_: Round) -> list[int]:
    """Epoch client indices of the elected witnesses, by position."""
    num = get_num_elected(account, round_)
    positions = {compute_witness_position(round_, index): index for index in round_.healthy_indices}
    return [positions[position] for position in range(num)]


def compute_committee(account: CoordinatorAccount, round_: Round) -> dict[int, Committee]:
    """The committee of every client of the round, by epoch client index."""
    num = round_.clients_len
    num_tie_breakers = min(round_.tie_breaker_tasks, num)
    num_verifiers = (num - num_tie_breakers) * account.config.verification_percent // 100
    if num_tie_breakers == num_verifiers == 0:
        return dict.fromkeys(round_.healthy_indices, Committee.Trainer)
    seed = compute_role_seed(round_.random_seed, COMMITTEE_SALT)
    committees = {}
    for rank, index in enumerate(round_.healthy_indices):
        position = compute_shuffled_index(rank, num, seed)
        if position < num_tie_breakers:
            committees[index] = Committee.TieBreaker
        elif position < num_tie_breakers + num_verifiers:
            committees[index] = Committee.Verifier
        else:
            committees[index] = Committee.Trainer
    return committees
