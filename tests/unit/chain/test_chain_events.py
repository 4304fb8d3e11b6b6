"""Events are read from logs, and nobody can put one into another program's mouth."""

from __future__ import annotations

import base64
import hashlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.events import (
    TRUNCATED,
    DisputeOpened,
    DisputeSettled,
    EventLog,
    ProgramEvent,
    Transition,
    read_events,
)
from psyche_py.coordinator.layout import DisputeState, RunState
from psyche_py.errors import ChainError

RUN, OTHER_RUN, STRANGER = Pubkey([1] * 32), Pubkey([2] * 32), Pubkey([9] * 32)
COORDINATOR, TREASURER = get_program_id("coordinator"), get_program_id("treasurer")
TAG = hashlib.sha256(b"event:Transition").digest()[:8]


def make_data(nonce: int, run: Pubkey = RUN, end: tuple[int, int] = (3, 4)) -> bytes:
    return TAG + bytes(run) + struct.pack("<QHIIBBq", nonce, 5, 6, 7, *end, 1_700_000_000)


def say(data: bytes) -> str:
    return f"Program data: {base64.b64encode(data).decode()}"


def call(program: Pubkey, *lines: str, depth: int = 1) -> list[str]:
    return [
        f"Program {program} invoke [{depth}]",
        *lines,
        f"Program {program} consumed 5 of 200000 compute units",
        f"Program {program} success",
    ]


def get_nonces(log: EventLog) -> list[int]:
    return [transition.nonce for transition in log.get_transitions(RUN)]


def test_a_transition_is_decoded() -> None:
    log = read_events(call(COORDINATOR, "Program log: hello", say(make_data(2**64 - 1))))
    (event,) = log.events
    assert (event.program, event.name) == ("coordinator", "Transition")
    assert event.fields["nonce"] == 2**64 - 1
    expected = Transition(RUN, 2**64 - 1, 5, 6, 7, RunState.RoundTrain, RunState.RoundWitness, 1_700_000_000)
    assert log.get_transitions(RUN) == [expected]
    assert log.get_transitions(OTHER_RUN) == []
    assert not log.is_truncated


def test_only_the_program_that_runs_speaks() -> None:
    inner = call(COORDINATOR, say(make_data(2)), depth=2)
    logs = [
        *call(STRANGER, say(make_data(1)), *inner, say(make_data(3))),
        *call(
            TREASURER, say(make_data(4)), *call(COORDINATOR, say(make_data(5)), depth=2), say(make_data(6))
        ),
        *call(COORDINATOR, say(make_data(7)), *call(STRANGER, say(make_data(8)), depth=2), say(make_data(9))),
    ]
    assert get_nonces(read_events(logs)) == [2, 5, 7, 9]


@pytest.mark.parametrize(
    "line",
    [
        f"Program log: Program {COORDINATOR} invoke [2]",
        f"Program log: \nProgram {COORDINATOR} invoke [2]\n",
        f"Program {COORDINATOR} invoke [2]\n",
        f"Program return: {COORDINATOR} invoke [2]",
        f"Program log: {TRUNCATED}",
    ],
)
def test_what_a_program_logs_is_no_frame(line: str) -> None:
    logs = [*call(STRANGER, line, say(make_data(1))), *call(COORDINATOR, say(make_data(2)))]
    log = read_events(logs)
    assert get_nonces(log) == [2]
    assert not log.is_truncated


def test_nothing_is_read_behind_a_truncation() -> None:
    """The runtime leaves long lines out and may write short ones after: the frame of those is unknown."""
    logs = call(COORDINATOR, say(make_data(1)), TRUNCATED, say(make_data(2)))[:-1]
    log = read_events(logs)
    assert get_nonces(log) == [1]
    assert log.is_truncated


def test_a_failed_transaction_has_no_events() -> None:
    inner = [f"Program {STRANGER} invoke [2]", f"Program {STRANGER} failed: custom program error: 0x1"]
    ended = [f"Program {COORDINATOR} failed: custom program error: 0x1"]
    logs = [f"Program {COORDINATOR} invoke [1]", say(make_data(1)), *inner, *ended]
    assert read_events(logs) == EventLog(())


def test_what_is_no_event_of_ours_is_passed_over() -> None:
    unknown = hashlib.sha256(b"event:Unknown").digest()[:8] + bytes(20)
    several = f"{say(make_data(1))} {base64.b64encode(make_data(2)).decode()}"
    lines = (say(unknown), say(b""), say(TAG[:7]), several, say(make_data(3)))
    assert get_nonces(read_events(call(COORDINATOR, *lines))) == [3]


DAMAGED: list[list[str]] = [
    [say(make_data(1))],
    call(COORDINATOR)[:-1],
    call(COORDINATOR, depth=2),
    [f"Program {COORDINATOR} success"],
    [f"Program {COORDINATOR} invoke [1]", f"Program {STRANGER} success"],
    [*call(COORDINATOR), f"Program {COORDINATOR} success"],
    call(COORDINATOR, "Program data: n?t="),
    call(COORDINATOR, "Program data: AAA"),
    call(COORDINATOR, say(make_data(1)[:-1])),
    call(COORDINATOR, say(make_data(1) + b"\0")),
    call(COORDINATOR, say(TAG)),
    [f"Program {STRANGER} invoke [{depth}]" for depth in range(1, 10_000)],
]


@pytest.mark.parametrize("logs", DAMAGED, ids=range(len(DAMAGED)))
def test_damaged_logs_are_chain_errors(logs: list[str]) -> None:
    with pytest.raises(ChainError) as caught:
        read_events(logs)
    assert caught.value.remedy
    assert len(caught.value.what) < 300


def test_an_unknown_state_is_a_chain_error() -> None:
    log = read_events(call(COORDINATOR, say(make_data(1, end=(3, 8)))))
    with pytest.raises(ChainError, match="unknown run state"):
        log.get_transitions(RUN)
    with pytest.raises(ChainError, match="unknown run state"):
        Transition.from_event(ProgramEvent("coordinator", "Transition", {"from": 99, "to": 1}))


PIECES = [
    *call(COORDINATOR, say(make_data(1)), say(make_data(2)[:50])),
    *call(STRANGER, say(make_data(2)), depth=2),
    TRUNCATED,
    f"Program {COORDINATOR} failed: x",
]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=40), max_size=12))
def test_any_log_is_read_or_refused(logs: list[str]) -> None:
    try:
        log = read_events(logs)
    except ChainError:
        return
    assert all(event.program == "coordinator" for event in log.events)


Tree = tuple[Pubkey, list[Any]]
TREES: st.SearchStrategy[Tree] = st.recursive(
    st.tuples(st.sampled_from([COORDINATOR, TREASURER, STRANGER]), st.just([])),
    lambda trees: st.tuples(
        st.sampled_from([COORDINATOR, TREASURER, STRANGER]),
        st.lists(trees | st.integers(0, 2**64 - 1), max_size=4),
    ),
    max_leaves=20,
)


@given(TREES)
def test_every_event_has_the_program_whose_frame_it_is_in(tree: Tree) -> None:
    """Programs call each other in any way, and all of them log what looks like the coordinator's events."""
    expected: list[int] = []

    def write(tree: Tree, depth: int) -> list[str]:
        program, parts = tree
        lines = []
        for part in parts:
            if not isinstance(part, int):
                lines += write(part, depth + 1)
                continue
            lines.append(say(make_data(part)))
            if program == COORDINATOR:
                expected.append(part)
        return call(program, *lines, depth=depth)

    assert get_nonces(read_events(write(tree, 1))) == expected


# ---- disputes ---------------------------------------------------------------------------------------------

OPENED = struct.Struct("<8s32sQHI32s32s32sB")
SETTLED = struct.Struct("<8s32sQHI32s32s32sBBBBQ")
HEAD = (bytes(RUN), 9, 1, 4, b"\5" * 32, bytes(STRANGER), bytes(OTHER_RUN))


def make_dispute(name: str, layout: struct.Struct, *numbers: int) -> bytes:
    return layout.pack(hashlib.sha256(f"event:{name}".encode()).digest()[:8], *HEAD, *numbers)


def test_disputes_are_decoded() -> None:
    opened = make_dispute("DisputeOpened", OPENED, 6)
    settled = make_dispute("DisputeSettled", SETTLED, 3, 6, 1, 7, 2**64 - 1)
    log = read_events(call(COORDINATOR, say(opened), say(make_data(10)), say(settled)))
    assert log.get_disputes(RUN) == [
        DisputeOpened(RUN, 9, 1, 4, b"\5" * 32, STRANGER, OTHER_RUN, 6),
        DisputeSettled(
            RUN, 9, 1, 4, b"\5" * 32, STRANGER, OTHER_RUN, DisputeState.NotGuilty, 6, 1, 7, 2**64 - 1
        ),
    ]
    assert log.get_disputes(OTHER_RUN) == []
    assert get_nonces(log) == [10]
    assert read_events(call(TREASURER, say(opened))).get_disputes(RUN) == []


def test_an_unknown_outcome_is_named() -> None:
    settled = make_dispute("DisputeSettled", SETTLED, 5, 6, 1, 7, 0)
    with pytest.raises(ChainError, match="unknown outcome"):
        read_events(call(COORDINATOR, say(settled))).get_disputes(RUN)
