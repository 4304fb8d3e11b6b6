"""Who looks at whom, and who judges: what the seeds of the rounds decide, for clients and for the rules.

The results of round h are committed; then round h+1 starts and its seed is drawn on chain. Its verifiers look
at the results of round h, so nobody knew before it committed whether it would be looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psyche_py.coordinator.committee import (
    DUTY_SALT,
    compute_ranks_at,
    compute_role_seed,
    compute_tie_breaker_seats,
    compute_verifiers,
)

if TYPE_CHECKING:
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.coordinator.views import Dispute


@dataclass(frozen=True)
class Duty:
    """``verifier`` looks at ``trainer``'s result of the round before: epoch client indices."""

    verifier: int
    trainer: int


def compute_duties(account: CoordinatorAccount, height: int) -> list[Duty]:
    """Who looks at whom in the round of ``height``, by the verifiers' numbers.

    Verifier number j takes position j of a shuffle of all who were Healthy in the round before, the next one
    if that is itself. Who was a verifier there or delivered nothing is drawn too: the duty is idle then.
    Empty where nothing is to be verified or one of the two rounds is not in the ring any more.
    """
    round_, judged = account.get_round_at(height), account.get_round_at(height - 1)
    if round_ is None or judged is None or judged.apply_only:
        return []
    return draw_duties(round_.random_seed, compute_verifiers(account, round_), judged.healthy_indices)


def draw_duties(random_seed: int, verifiers: Sequence[int], healthy: Sequence[int]) -> list[Duty]:
    """The same from a round's seed, its verifiers in their order, and all that were Healthy before it."""
    num = len(healthy)
    if not verifiers or not num:
        return []
    seed = compute_role_seed(random_seed, DUTY_SALT)
    drawn = [healthy[rank] for rank in compute_ranks_at(min(len(verifiers) + 1, num), num, seed)]
    duties = []
    for number, verifier in enumerate(verifiers):
        first, second = drawn[number % num], drawn[(number + 1) % num]
        if first != verifier:
            duties.append(Duty(verifier, first))
        elif num > 1:
            duties.append(Duty(verifier, second))
    return duties


def is_tie_breaker(account: CoordinatorAccount, dispute: Dispute, index: int) -> bool:
    """Whether epoch client ``index`` judges the dispute, which a stored round judges.

    The committee's first ``dispute.tie_breakers`` that are no parties do. So they are exactly as many as the
    majority is counted of, however the parties were drawn.
    """
    round_ = account.get_round_at(dispute.judge_height) if dispute.judge_height else None
    if round_ is None:
        return False
    parties = (dispute.accuser, dispute.trainer)
    judges = [client for client in compute_tie_breaker_seats(round_) if client not in parties]
    return index in judges[: dispute.tie_breakers]
