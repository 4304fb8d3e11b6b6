"""Quorum, attendance and consensus (psyche.md 1.11 and 1.12).

A witness stored in round R attests to the results of round R-1: ``participants`` has a bit for every client
that did its part, ``broadcast_merkle`` is the root over the commitments of the results it verified, in client
order, and ``broadcast_bloom`` a filter that holds them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True, slots=True)
class Attestation:
    """What some witnesses of a round say alike of the results of the round before.

    ``trainers`` are those they name that had samples, ascending; ``root`` is over one commitment of each, in
    that order; ``witnesses`` are epoch client indices in order of arrival, ``bloom`` is the union of their
    filters (1,024 bits).
    """

    trainers: tuple[int, ...]
    root: bytes
    witnesses: tuple[int, ...]
    bloom: int

    @property
    def key(self) -> tuple[bytes, int]:
        """Names the vector of commitments: one root can be over vectors of several lengths."""
        return self.root, len(self.trainers)


def compute_attestations(attesting: Round, trainers: Collection[int]) -> tuple[Attestation, ...]:
    """What the stored witnesses of ``attesting`` say of the results of ``trainers``, of the round before."""
    ordered, mask = sorted(trainers), sum(1 << index for index in trainers)
    alike: dict[tuple[int, bytes], tuple[list[int], int]] = {}
    for witness, bloom in zip(attesting.witnesses, attesting.bloom_bitmaps, strict=True):
        key = (witness.participants & mask, witness.broadcast_merkle)
        indices, union = alike.get(key, ([], 0))
        alike[key] = ([*indices, witness.index], union | bloom)
    return tuple(
        Attestation(tuple(i for i in ordered if named >> i & 1), root, tuple(indices), bloom)
        for (named, root), (indices, bloom) in alike.items()
    )


def compute_outcomes(
    account: CoordinatorAccount,
    attesting: Round,
    attestations: Collection[Attestation],
    openings: Mapping[tuple[bytes, int], tuple[bytes, ...]],
) -> dict[int, bytes | None]:
    """The result that counts of each attested client, None for one of whom none does.

    ``openings`` are the commitments (hashes, 32 B) of those attestations that we could open, by their key.
    A client is left out while an attestation that we cannot open could still change the answer. So whoever
    answers gives the same answer, whatever it has heard of: a quorum is more than half of the witnesses,
    and a witness has one commitment of a client at most.
    """
    quorum, attested = get_quorum(account, attesting), compute_attested_clients(account, attesting)
    known: dict[int, dict[bytes, int]] = {index: {} for index in attested}
    hidden = dict.fromkeys(attested, 0)
    for attestation in attestations:
        opening, weight = openings.get(attestation.key), len(attestation.witnesses)
        if opening is None:
            for index in attested.intersection(attestation.trainers):
                hidden[index] += weight
            continue
        for index, digest in zip(attestation.trainers, opening, strict=True):
            if index in attested:
                votes = known[index]
                votes[digest] = votes.get(digest, 0) + weight
    outcomes: dict[int, bytes | None] = {}
    for index, votes in known.items():
        best = max(votes, key=votes.__getitem__, default=b"")
        if votes.get(best, 0) >= quorum:
            outcomes[index] = best
        elif votes.get(best, 0) + hidden[index] < quorum:
            outcomes[index] = None
    return outcomes
