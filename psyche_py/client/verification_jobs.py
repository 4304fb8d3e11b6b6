"""A verifier's and a tie-breaker's work on the trainer's thread: recompute, check, write or weigh proof."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from psyche_py.client.own_momentum import OwnMomentum
from psyche_py.client.recompute import GradientPoint, Recomputer, get_verifiable
from psyche_py.client.targets import ZERO_MOMENTUM, Finding, ResultHeader, Target
from psyche_py.client.weight_history import WeightHistory
from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.duties import Duty
from psyche_py.p2p.errors import FrameError, MessageError
from psyche_py.p2p.frames import parse_frame
from psyche_py.p2p.message import TrainingResult, decode_message
from psyche_py.verify import (
    Case,
    CheckInput,
    Evidence,
    EvidenceError,
    Reason,
    Thresholds,
    Verdict,
    check_message,
    compute_sampled_tiles,
    compute_zero_root,
    decode_evidence,
    encode_evidence,
)
from psyche_py.verify import Finding as Kind
from psyche_py.verify.evidence import compute_evidence_bytes

if TYPE_CHECKING:
    from psyche_py.client.trainer import Trainer
    from psyche_py.coordinator.config import CoordinatorConfig
    from psyche_py.verify.tiles import FloatArray

Payloads = Mapping[int, bytes | None]
"""Payload bytes of the round before, by epoch client index; None where we lack them."""


@dataclass(frozen=True)
class Gradients:
    """What was recomputed; ``is_exact``: at the very point that the trainer committed to."""

    first: FloatArray
    second: FloatArray | None
    is_exact: bool


class VerificationJobs:
    """One trainer's memory for verification, and its checks of others. Lives as long as the trainer."""

    def __init__(
        self, trainer: Trainer, config: CoordinatorConfig, num_threads: int, should_stop: Callable[[], bool]
    ) -> None:
        self._trainer, self._should_stop = trainer, should_stop
        self._limits = get_thresholds(config)
        self._layout = trainer.optimizer.payload_layout
        self._weights = WeightHistory()
        self._recomputer: Recomputer | None = None
        self.momentum = OwnMomentum(get_verifiable(trainer.optimizer), num_threads)

    def start_epoch(self) -> None:
        """The replica is in place."""
        self._weights.start(self._trainer.parameters)
        self.momentum.start_epoch()

    def take_applied(self, height: int, payloads: Sequence[bytes], step: int) -> None:
        """Results have just been applied at the start of round ``height``."""
        lr = self._trainer.get_lr(step)
        self._weights.add(height, self._trainer.parameters, payloads, lr)

    def prepare_reveal(self, target: Target) -> bool:
        """Make our answer about ``target``, which is our own result."""
        return self.momentum.prepare_answer(target.key, self._compute_tiles(target))

    def get_reveal_bytes(self, target: Target) -> int:
        """Length of an answer about the target."""
        evidence = compute_evidence_bytes(self._layout, make_case(target), Reason.RESIDUAL)
        return evidence - compute_evidence_bytes(self._layout, make_case(target), Reason.NO_ANSWER)

    def get_evidence_bytes(self, target: Target, reason: int) -> int:
        """Length of evidence about the target."""
        return compute_evidence_bytes(self._layout, make_case(target), Reason(reason))

    # ---- the verifier -------------------------------------------------------------------------------

    def check(
        self,
        target: Target,
        commitment: Commitment,
        frame: bytes,
        payload: bytes,
        previous: Payloads,
        answer: bytes | None,
    ) -> tuple[Finding, bytes] | None:
        """What we find about a result, and the evidence, if it is to be accused; None when stopped.

        payload, frame:  of the commitment; without the trainer's signature there is no accusation
        """
        started = time.perf_counter()
        gradients = self._recompute(target, commitment, previous)
        if gradients is None:
            return None
        before = self._get_before_root(target)
        verdict = self._judge(target, commitment, payload, before, gradients, answer)
        evidence = b""
        if verdict.finding is not Kind.HONEST and frame:
            reveal = answer or b"" if verdict.reason.has_reveal else b""
            made = Evidence(make_case(target), before, commitment, frame, verdict, payload, reveal)
            evidence = encode_evidence(made)
        seconds = time.perf_counter() - started
        reason, numbers = verdict.reason, asdict(verdict.measurement)
        return Finding(int(reason), reason.name, numbers, seconds), evidence

    def _judge(
        self,
        target: Target,
        commitment: Commitment,
        payload: bytes,
        before: bytes | None,
        gradients: Gradients,
        answer: bytes | None,
    ) -> Verdict:
        check = CheckInput(
            self._layout,
            payload,
            before,
            commitment.momentum_root,
            self._compute_tiles(target),
            self._trainer.optimizer.config.compression_decay,
            gradients.first,
            gradients.second,
            gradients.is_exact,
        )
        return check_message(check, answer, self._limits)

    # ---- the tie-breaker ----------------------------------------------------------------------------

    def judge(
        self,
        target: Target,
        reason: int,
        data: bytes,
        previous: Payloads,
        answer: bytes | None,
        header: ResultHeader,
    ) -> tuple[bool, str] | None:
        """Whether the accused is guilty by our own check, and why; None when stopped.

        data:     the evidence, whose hash has been checked
        answer:   what the trainer showed us, in a dispute about a refusal
        header:   what its announcement must say
        """
        try:
            evidence = decode_evidence(self._layout, data)
            before = self._get_before_root(target)
            check_case(evidence, target, reason, before, header)
        except EvidenceError as error:
            return False, error.what
        gradients = self._recompute(target, evidence.commitment, previous)
        if gradients is None:
            return None
        shown = evidence.reveal or answer
        if evidence.verdict.reason is Reason.ALIGNMENT:
            shown = None  # convicts without an answer, or not at all
        verdict = self._judge(target, evidence.commitment, evidence.payload, before, gradients, shown)
        is_refusal = evidence.verdict.finding is Kind.REFUSAL
        is_guilty = verdict.finding is Kind.FRAUD or (is_refusal and verdict.finding is Kind.REFUSAL)
        return is_guilty, verdict.reason.name

    # ---- shared -------------------------------------------------------------------------------------

    def _compute_tiles(self, target: Target) -> list[int]:
        duty = Duty(target.verifier, target.trainer)
        return compute_sampled_tiles(target.random_seed, duty, self._layout.num_tiles, target.num_sampled)

    def _get_before_root(self, target: Target) -> bytes | None:
        is_zero = target.before_root == ZERO_MOMENTUM
        return compute_zero_root(self._layout) if is_zero else target.before_root

    def _recompute(self, target: Target, commitment: Commitment, previous: Payloads) -> Gradients | None:
        foreseen = [previous[index] for index in commitment.foreseen_indices if index in previous]
        held = tuple(payload for payload in foreseen if payload is not None)
        if self._recomputer is None:
            self._recomputer = Recomputer(self._trainer, self._weights)
        point = GradientPoint(target.height, target.step, target.ranges, held)
        with_second = self._limits.needs_second
        found = self._recomputer.compute(point, self._should_stop, with_second=with_second)
        return None if found is None else Gradients(*found, len(held) == len(foreseen))


def check_case(
    evidence: Evidence, target: Target, reason: int, before: bytes | None, header: ResultHeader
) -> None:
    """Raises EvidenceError unless it is about this dispute, and the trainer signed its commitment."""
    if evidence.case != make_case(target) or evidence.verdict.reason != reason:
        raise EvidenceError("The evidence is about something else than the dispute.")
    if evidence.reveal and before is not None and evidence.before_root != before:
        raise EvidenceError("The root before is not the one that the trainer committed to.")
    try:
        frame = parse_frame(evidence.announcement)
        frame.check_signature()
        message = decode_message(frame.body)
    except (FrameError, MessageError) as error:
        raise EvidenceError(f"The announcement cannot be read: {error.what}") from error
    if not isinstance(message, TrainingResult) or frame.signer != target.trainer_key:
        raise EvidenceError("The announcement is not one of the trainer's results.")
    where = message.header
    said = (where.program_id, where.run_id, where.epoch, where.height, where.sender_index)
    due = (header.program_id, header.run_id, target.epoch, target.height, target.trainer)
    is_due = said == due and (message.batch_start, message.batch_end) == target.ranges[0]
    if not is_due or message.commitment != evidence.commitment.encode():
        raise EvidenceError("The announcement is of another round, batch or commitment.")


def make_case(target: Target) -> Case:
    """The case of a target."""
    duty = Duty(target.verifier, target.trainer)
    numbers = target.epoch, target.height, target.step, target.random_seed
    return Case(target.run, *numbers, duty, target.num_sampled)


def get_thresholds(config: CoordinatorConfig) -> Thresholds:
    """The limits that a run's configuration sets."""
    limits = config.min_alignment, config.max_residual, config.max_violation, config.min_jaccard
    return Thresholds.from_limits(*limits)
