"""Names of the rules about disputes, debts and bonds that a step of a history shows. See rule_coverage.py."""

from __future__ import annotations

from collections.abc import Iterator

from psyche_py.coordinator.layout import (
    NUM_STORED_ROUNDS,
    ClientState,
    DisputeState,
    RunState,
)
from psyche_py.coordinator.reasons import REFUSAL_REASONS
from psyche_py.coordinator.state import CoordinatorAccount, Dispute

State = CoordinatorAccount


def find_dispute_rules(name: str, before: State, after: State) -> Iterator[str]:
    """What happened to disputes in an accepted step."""
    old = {d.slot: d for d in before.disputes}
    if name == "verdict":
        yield from _find_opening_rules(before, after)
    if name == "vote" and before.run_state is RunState.Cooldown:
        yield "vote: in Cooldown"
    for d in after.disputes:
        was = old.get(d.slot)
        if was is None or not was.is_open:
            continue
        if d.judge_height and not was.judge_height:
            yield f"dispute: judged by {'as many as wanted' if _is_full(after, d) else 'fewer than wanted'}"
        if not d.is_open:
            yield from _find_settling_rules(before, after, was, d)
    if before.disputes and not after.disputes and name != "migrate":
        yield "dispute: an epoch begins without any"


def _is_full(after: State, d: Dispute) -> bool:
    return d.tie_breakers == after.config.num_tie_breakers


def _find_opening_rules(before: State, after: State) -> Iterator[str]:
    known = {d.evidence_hash for d in before.disputes}
    opened = next(d for d in after.disputes if d.evidence_hash not in known)
    late = before.current_round.height - opened.height - 1
    yield f"verdict: {late} rounds after the verifier's" if late else "verdict: in the verifier's round"
    if opened.slot in {d.slot for d in before.disputes}:
        yield "verdict: in the place of a settled one"
    state = before.epoch_clients[opened.trainer].state
    if state is not ClientState.Healthy:
        yield f"verdict: about a client that is {state.name}"
    if before.current_round.apply_only:
        yield "verdict: in a round that trains nothing"


def _find_settling_rules(before: State, after: State, was: Dispute, d: Dispute) -> Iterator[str]:
    if d.state is DisputeState.Undecided:
        if before.run_state is RunState.Cooldown:
            yield "dispute: undecided when the epoch ends"
        elif not was.judge_height:
            yield "dispute: undecided, since everybody is a party"
        elif after.current_round.height >= d.judge_height + NUM_STORED_ROUNDS:
            yield "dispute: undecided when its round leaves the ring"
        for is_guilty in (True, False):
            if 2 * d.count_votes(is_guilty) > d.tie_breakers > 0:
                yield f"dispute: undecided, though most say {'guilty' if is_guilty else 'not guilty'}"
        return
    is_split = d.count_votes(True) and d.count_votes(False)
    yield f"dispute: {d.state.name}, {'with votes on both sides' if is_split else 'with one voice'}"
    if d.state is DisputeState.NotGuilty and d.reason in REFUSAL_REASONS:
        yield "dispute: a refusal that was answered"
        for party in (d.accuser, d.trainer):
            if before.epoch_clients[party].state is not after.epoch_clients[party].state:
                yield "dispute: Dropped, since there were too many refusals"
        return
    loser = d.trainer if d.state is DisputeState.Guilty else d.accuser
    state = before.epoch_clients[loser].state
    yield f"dispute: {d.state.name}, the loser was {state.name}"
    entry = after.entries[after.epoch_clients[loser].entry]
    if entry.debt:
        yield "dispute: slashed beyond what it had"


def find_debt_rules(before: State, after: State) -> Iterator[str]:
    """What is settled with points."""
    if any(old.debt and not new.debt for old, new in zip(before.entries, after.entries, strict=True)):
        yield "debt: all of it"


def find_extra_round_rules(before: State, after: State) -> Iterator[str]:
    """An epoch goes on so that a dispute gets its judges."""
    if 0 < after.last_step <= after.step:
        yield "round end: one more, for a dispute"
