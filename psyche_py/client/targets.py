"""A result that somebody looks at: all that the chain and the announcements say about it.

A verifier and every tie-breaker of a dispute make their own; where both are honest, both are the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SampleRange = tuple[int, int]
"""First and last sample id, both included."""
ZERO_MOMENTUM = b""
"""In the place of a root: the trainer began with momentum of zero everywhere."""


@dataclass(frozen=True, slots=True)
class Target:
    """Round, trainer and verifier of a duty, and what the check starts from.

    run:          id of the run, 32 bytes
    height, step: of the round whose result is looked at
    random_seed:  of the round after it, which drew the verifier and the tiles
    verifier, trainer:  epoch client indices; ``trainer_key`` is the trainer's mesh key
    num_sampled:  tiles that the run's configuration asks for
    ranges:       samples that the trainer was to train
    before_root:  what it committed to last before this round; ZERO_MOMENTUM; None where that is not known
    previous:     hashes of the payloads of the round before, those that its lookahead can have foreseen, by
                  epoch client index; None where we do not know which it was
    """

    run: bytes
    epoch: int
    height: int
    step: int
    random_seed: int
    verifier: int
    trainer: int
    trainer_key: bytes
    num_sampled: int
    ranges: tuple[SampleRange, ...]
    before_root: bytes | None
    previous: Mapping[int, bytes | None]

    @property
    def key(self) -> TargetKey:
        """What names it within an epoch."""
        return self.height, self.trainer, self.verifier


TargetKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found. ``reason`` is a verify.Reason's number; ``statistics`` are in millionths, by name.

    evidence:      SHA-256 of the evidence in our blob store; empty when there is none
    """

    reason: int
    reason_name: str
    statistics: Mapping[str, int]
    seconds: float
    evidence: bytes = b""


@dataclass(frozen=True, slots=True)
class ResultHeader:
    """What the announcement of a target's result must say beside round and batch (32 bytes each)."""

    program_id: bytes
    run_id: bytes
