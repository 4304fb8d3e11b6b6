"""Quorum, attendance and consensus (psyche.md 1.11 and 1.12).

A witness stored in round R attests to the results of round R-1: ``participants`` has a bit for every client
that did its part, ``broadcast_bloom`` holds the commitments of the results it verified.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from psyche_py.coordinator.bloom import compute_positions
from psyche_py.coordinator.committee import get_num_elected
from psyche_py.coordinator.layout import ClientState

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount, Round


def compute_quorum(num_elected: int) -> int:
    """Votes needed when ``num_elected`` witnesses were elected: two thirds rounded down, but more than half.

    More than half, since then any two quorums share a witness (Psyche's 2 of 4 do not).
    """
    return max(num_elected * 2 // 3, num_elected // 2 + 1) if num_elected else 0


def get_quorum(account: CoordinatorAccount, round_: Round) -> int:
    """Quorum of a round. Its base is the number elected, so that silence never lowers it."""
    return compute_quorum(get_num_elected(account, round_))


def compute_votes(round_: Round) -> list[int]:
    """For every epoch client, how many stored witnesses of ``round_`` saw it take part."""
    return round_.compute_participant_votes()


def compute_attested_clients(account: CoordinatorAccount, attesting: Round) -> set[int]:
    """Clients that a quorum of the round's witnesses saw take part in the round before."""
    quorum = get_quorum(account, attesting)
    return {index for index, votes in enumerate(compute_votes(attesting)) if quorum and votes >= quorum}


def is_client_unhealthy(account: CoordinatorAccount, index: int) -> bool:
    """Whether a health check against the client would be accepted now."""
    current, previous = account.current_round, account.previous_round
    if current.height < 2 or previous is None:
        return False
    judged = account.get_round_at(current.height - 2)
    if judged is None or judged.apply_only or index not in judged.healthy_set:
        return False
    if account.epoch_clients[index].state is not ClientState.Healthy:
        return False
    # that no quorum saw it would not do: a third of the witnesses could drop anybody by leaving it out
    return previous.num_witnesses - compute_votes(previous)[index] >= get_quorum(account, previous)


def compute_consensus(
    account: CoordinatorAccount, attesting: Round, candidates: Sequence[bytes]
) -> bytes | None:
    """Which of a trainer's commitments the witnesses of the next round accept; None without a quorum.

    Most votes win, a tie goes to the smallest hash, so the order in which we heard of them does not matter.
    """
    quorum = get_quorum(account, attesting)
    blooms = attesting.bloom_bitmaps
    best: tuple[int, bytes] | None = None
    for digest in sorted(candidates):
        bits = 0
        for position in compute_positions(attesting.random_seed, digest):
            bits |= 1 << position
        votes = sum(bloom & bits == bits for bloom in blooms)
        if votes >= quorum and (best is None or votes > best[0]):
            best = (votes, digest)
    return best[1] if best is not None else None
