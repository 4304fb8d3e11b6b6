"""What our programs told in a transaction's log: "Program data: " lines, as Anchor's clients read them.

Any program in a transaction can write such a line with any bytes in it. What tells whose line it is are the
runtime's own lines around it, "Program ID invoke [DEPTH]" and "Program ID success", which no program can
forge: what a program logs by itself begins with "Program log: ", "Program data: " or "Program return: ".
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from solders.pubkey import Pubkey

from psyche_py.chain.anchor import find_program
from psyche_py.coordinator.layout import DisputeState, RunState
from psyche_py.errors import ChainError

MAX_DEPTH = 64
"""More than any release of the runtime lets programs call each other (5, soon 9)."""
TRUNCATED = "Log truncated"
"""The runtime's line where it began to leave lines out. What follows may lack its frame."""
DATA = "Program data: "

_INVOKE = re.compile(r"Program ([1-9A-HJ-NP-Za-km-z]{32,44}) invoke \[([0-9]{1,4})\]")
_SUCCESS = re.compile(r"Program ([1-9A-HJ-NP-Za-km-z]{32,44}) success")
_FAILED = re.compile(r"Program ([1-9A-HJ-NP-Za-km-z]{32,44}) failed: .*", re.S)


@dataclass(frozen=True, slots=True)
class ProgramEvent:
    """An event of one of our programs: ``program`` and ``name`` as in its IDL, ``fields`` by Rust's names."""

    program: str
    name: str
    fields: Mapping[str, Any]


def _make_unknown(text: str) -> ChainError:
    return ChainError(text, "The program on this cluster may be newer: `pip install --upgrade psyche-py`.")


@dataclass(frozen=True, slots=True)
class Transition:
    """A run has gone from one state to another, or from RoundTrain to the next round's RoundTrain.

    Numbers are the account's as the program had them when it made the transition. Anybody can make a run:
    look at ``coordinator_account`` before believing it is yours.
    """

    coordinator_account: Pubkey
    nonce: int
    epoch: int
    step: int
    height: int
    from_state: RunState
    to_state: RunState
    unix_timestamp: int

    @classmethod
    def from_event(cls, event: ProgramEvent) -> Self:
        """From a coordinator's "Transition". Raises ChainError at a state that this version does not know."""
        fields = dict(event.fields)
        try:
            from_state, to_state = RunState(fields.pop("from")), RunState(fields.pop("to"))
        except ValueError as error:
            raise _make_unknown(f"A Transition event names an unknown run state: {error}.") from None
        return cls(**fields, from_state=from_state, to_state=to_state)


@dataclass(frozen=True, slots=True)
class DisputeOpened:
    """A verifier has accused a trainer for its result of the round of ``height``."""

    coordinator_account: Pubkey
    nonce: int
    epoch: int
    height: int
    evidence_hash: bytes
    accuser: Pubkey
    trainer: Pubkey
    reason: int

    @classmethod
    def from_event(cls, event: ProgramEvent) -> Self:
        """From a coordinator's "DisputeOpened"."""
        fields = dict(event.fields)
        return cls(**{**fields, "evidence_hash": bytes(fields["evidence_hash"])})


@dataclass(frozen=True, slots=True)
class DisputeSettled:
    """A dispute was decided, or its time is over. ``slashed`` are points, of the one who lost."""

    coordinator_account: Pubkey
    nonce: int
    epoch: int
    height: int
    evidence_hash: bytes
    accuser: Pubkey
    trainer: Pubkey
    state: DisputeState
    reason: int
    num_guilty: int
    num_not_guilty: int
    slashed: int

    @classmethod
    def from_event(cls, event: ProgramEvent) -> Self:
        """From a coordinator's "DisputeSettled". Raises ChainError at an outcome that we do not know."""
        fields = dict(event.fields)
        try:
            state = DisputeState(fields["state"])
        except ValueError as error:
            raise _make_unknown(f"A DisputeSettled event names an unknown outcome: {error}.") from None
        return cls(**{**fields, "evidence_hash": bytes(fields["evidence_hash"]), "state": state})


@dataclass(frozen=True, slots=True)
class EventLog:
    """The events of one transaction, in order.

    ``is_truncated``: the log was too long and its end is missing, so there may have been more; read the
    account. A transaction that failed has no events, whatever its log says: nothing of it happened.
    """

    events: tuple[ProgramEvent, ...]
    is_truncated: bool = False

    def get_transitions(self, coordinator_account: Pubkey) -> list[Transition]:
        """Those of one run. Raises ChainError at a state that this version does not know."""
        found = [
            Transition.from_event(event)
            for event in self.events
            if (event.program, event.name) == ("coordinator", "Transition")
        ]
        return [transition for transition in found if transition.coordinator_account == coordinator_account]

    def get_disputes(self, coordinator_account: Pubkey) -> list[DisputeOpened | DisputeSettled]:
        """What was opened and settled in one run. Raises ChainError at an outcome that we do not know."""
        kinds: dict[str, type[DisputeOpened] | type[DisputeSettled]] = {
            "DisputeOpened": DisputeOpened,
            "DisputeSettled": DisputeSettled,
        }
        found = [
            kinds[event.name].from_event(event)
            for event in self.events
            if event.program == "coordinator" and event.name in kinds
        ]
        return [dispute for dispute in found if dispute.coordinator_account == coordinator_account]


class _Failed(Exception):
    """The log says that the transaction failed."""


def read_events(logs: Iterable[str]) -> EventLog:
    """The events in a transaction's log, as `getTransaction` or `logsSubscribe` gives it.

    Ask only about transactions without an error: a truncated log need not say that its transaction failed.
    Lines of other programs and events that the IDL does not have are passed over. Raises ChainError when the
    lines are not nested as the runtime nests them, or an event of ours is not of its length.
    """
    events, is_truncated = [], False
    try:
        for program_id, data in _iterate_data(logs):
            if program_id is None:
                is_truncated = True
                break
            program = find_program(program_id)
            decoded = None if program is None or data is None else program.decode_event(data)
            if program is not None and decoded is not None:
                events.append(ProgramEvent(program.name, *decoded))
    except _Failed:
        return EventLog(())
    return EventLog(tuple(events), is_truncated)


def _iterate_data(logs: Iterable[str]) -> Iterator[tuple[str | None, bytes | None]]:
    """(program id, bytes) of each data line; (None, None) where the log was truncated."""
    running: list[str] = []
    for line in logs:
        if line == TRUNCATED:
            yield None, None
            return
        if match := _INVOKE.fullmatch(line):
            running.append(match[1])
            if int(match[2]) != len(running) or len(running) > MAX_DEPTH:
                raise _damaged(line)
        elif match := _SUCCESS.fullmatch(line):
            if not running or running.pop() != match[1]:
                raise _damaged(line)
        elif _FAILED.fullmatch(line):
            raise _Failed
        elif line.startswith(DATA):
            if not running:
                raise _damaged(line)
            yield running[-1], _decode_data(line)
    if running:
        raise ChainError(f"A transaction's log ends while program {running[-1]} runs.", _REMEDY)


_REMEDY = "Ask another RPC endpoint."


def _damaged(line: str) -> ChainError:
    return ChainError(f"A transaction's log is not as the runtime writes it, at {line[:100]!r}.", _REMEDY)


def _decode_data(line: str) -> bytes | None:
    """The bytes of a line with one item, as Anchor writes events; None with several, which are no event."""
    text = line.removeprefix(DATA)
    if " " in text:
        return None
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:
        raise _damaged(line) from None
