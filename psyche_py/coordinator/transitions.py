"""The state machine as a table, for people: docs/protocol.md and its diagram are generated from it.

``tick`` and ``owner`` are the code; tests/unit/coordinator/test_transition_table.py drives random histories
through it, and finds every row in them and nothing else.
"""

from __future__ import annotations

from typing import NamedTuple

from psyche_py.coordinator.layout import RunState


class TransitionRule(NamedTuple):
    """One way out of a state. ``condition`` is Markdown, and says everything that leads this way."""

    before: RunState
    after: RunState
    condition: str
    label: str
    """The condition in the few words a diagram has room for, without Mermaid's own ``:``, ``;`` and ``#``."""


U, W, R, T = RunState.Uninitialized, RunState.WaitingForMembers, RunState.Warmup, RunState.RoundTrain
N, C, F, P = RunState.RoundWitness, RunState.Cooldown, RunState.Finished, RunState.Paused

_ALL = "every elected witness that is still healthy has attested"
_COMPLETE = f"{_ALL}, and each saw every healthy client of the previous round take part"
_LAST = (
    "that round was the epoch's last: no quorum attested it, fewer than `min_clients` are left, or its step "
    "is the last that was planned (unless a dispute has no tie-breakers yet: then one more round follows)"
)

TRANSITIONS = (
    TransitionRule(U, W, "the owner resumes the run for the first time", "resumed"),
    TransitionRule(U, F, "the same, with fewer than three steps to go", "resumed, no steps left"),
    TransitionRule(
        W,
        R,
        "`init_min_clients` have joined, and `waiting_for_members_extra_time` has passed",
        "enough clients",
    ),
    TransitionRule(W, P, "the owner pauses", "paused"),
    TransitionRule(
        R,
        T,
        "every client has its model in place, or `warmup_time` has passed (and one has it, if they share it)",
        "models in place",
    ),
    TransitionRule(
        R,
        W,
        "fewer than `min_clients` are left, or clients share the model and nobody has had it in the whole "
        "`warmup_time`; nobody is paid",
        "too few clients, or no model",
    ),
    TransitionRule(R, P, "the owner pauses", "paused"),
    TransitionRule(
        T, T, f"{_COMPLETE}: the next round begins in the same transaction", "all attested everything"
    ),
    TransitionRule(T, C, f"the same, and {_LAST}", "all attested everything, epoch over"),
    TransitionRule(
        T,
        N,
        f"{_ALL}, but not each saw everybody; or `max_round_train_time` has passed",
        "all attested, or time is up",
    ),
    TransitionRule(
        N, T, f"{_COMPLETE}, or `round_witness_time` has passed: the next round begins", "round over"
    ),
    TransitionRule(N, C, f"the same, and {_LAST}", "round over, epoch over"),
    TransitionRule(
        C,
        W,
        "`cooldown_time` has passed (`max_round_train_time`, if that is longer and tie-breakers are asked): "
        "points are paid",
        "points paid",
    ),
    TransitionRule(
        C, P, "the same, and the owner has asked for a pause since the epoch began", "pause was asked"
    ),
    TransitionRule(C, F, "the same, with fewer than three steps to go", "no steps left"),
    TransitionRule(P, W, "the owner resumes; everybody joins again", "resumed"),
    TransitionRule(P, F, "the same, with fewer than three steps to go", "resumed, no steps left"),
)


def render_diagram() -> str:
    """The table as a Mermaid state diagram."""
    ways = [f"    {rule.before.name} --> {rule.after.name}: {rule.label}" for rule in TRANSITIONS]
    start, end = f"    [*] --> {RunState.Uninitialized.name}", f"    {RunState.Finished.name} --> [*]"
    return "\n".join(["stateDiagram-v2", start, *ways, end])


def render_table() -> str:
    """The table in Markdown."""
    rows = [f"| {rule.before.name} | {rule.after.name} | {rule.condition} |" for rule in TRANSITIONS]
    return "\n".join(["| state | to | when |", "|---|---|---|", *rows])
