"""What an accuser publishes: all that a tie-breaker needs beside model and batch, in one fixed form.

    0    magic "DTVE", version u16 LE = 2, reason u8, zero u8
    8    case: run 32 bytes, epoch u32, height u32, step u32, seed u64, verifier u16, trainer u16, tiles u32
    68   before_root 32 bytes, commitment 96 bytes
    196  announcement 286 bytes: the trainer's signed frame with this commitment
    482  measurement: alignment, residual, violation, jaccard, noise, i32 each, in millionths
    502  payload, then the reveal where the reason has one

``before_root`` is zeros where the accuser does not know it. The announcement proves that the trainer did
commit to this; who reads it checks its signature, with the keys of the run (client/verification_jobs.py).

Integers are little-endian. The length follows from the layout, the draw and the reason. The tiles are not
written down: they follow from the seed. A reveal counts only with proofs that hold, so an accuser cannot make
one up; where there is none, the tie-breakers ask the trainer themselves.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import astuple, dataclass

from psyche_py.coordinator.commitment import COMMITMENT_BYTES, HASH_BYTES, Commitment
from psyche_py.coordinator.duties import Duty
from psyche_py.distro.errors import PayloadError
from psyche_py.distro.layout import PayloadLayout
from psyche_py.distro.payload import check_payload
from psyche_py.verify.check import CheckInput, check_message
from psyche_py.verify.draw import compute_sampled_tiles
from psyche_py.verify.errors import EvidenceError, RevealError, VerificationError
from psyche_py.verify.reveal import MAX_TILES, compute_reveal_bytes, decode_reveal
from psyche_py.verify.thresholds import Thresholds
from psyche_py.verify.tiles import FloatArray
from psyche_py.verify.verdict import Finding, Measurement, Reason, Verdict

MAGIC = b"DTVE"
VERSION = 2
_PREFIX = struct.Struct("<4sHBB")
_CASE = struct.Struct("<32sIIIQHHI")
_MEASUREMENT = struct.Struct("<5i")
ANNOUNCEMENT_BYTES = 286
_COMMITMENT_PLACE = _PREFIX.size + _CASE.size + HASH_BYTES
_ANNOUNCEMENT_PLACE = _COMMITMENT_PLACE + COMMITMENT_BYTES
HEADER_BYTES = _ANNOUNCEMENT_PLACE + ANNOUNCEMENT_BYTES + _MEASUREMENT.size


@dataclass(frozen=True)
class Case:
    """Who accuses whom of what; a tie-breaker compares it with the chain before anything else.

    run:          address of the run's account
    epoch, height, step: of the round whose result is in question
    random_seed:  of the round after it, which drew the verifier and the tiles
    num_sampled:  tiles that the run's configuration asks for
    """

    run: bytes
    epoch: int
    height: int
    step: int
    random_seed: int
    duty: Duty
    num_sampled: int

    def encode(self) -> bytes:
        """60 bytes. Raises EvidenceError for a number that does not fit its field."""
        if len(self.run) != HASH_BYTES or not 1 <= self.num_sampled <= MAX_TILES:
            raise EvidenceError(f"A case has an address of 32 bytes and 1 to {MAX_TILES} tiles.")
        numbers = self.epoch, self.height, self.step, self.random_seed
        try:
            return _CASE.pack(self.run, *numbers, self.duty.verifier, self.duty.trainer, self.num_sampled)
        except struct.error as error:
            raise EvidenceError(f"A number of the case is out of range: {error}.") from None

    @classmethod
    def decode(cls, data: bytes) -> Case:
        """Inverse of ``encode``. Raises EvidenceError."""
        run, epoch, height, step, seed, verifier, trainer, num_sampled = _CASE.unpack(data)
        if not 1 <= num_sampled <= MAX_TILES:
            raise EvidenceError(f"A case has 1 to {MAX_TILES} tiles, not {num_sampled}.")
        return cls(run, epoch, height, step, seed, Duty(verifier, trainer), num_sampled)

    def compute_tiles(self, layout: PayloadLayout) -> list[int]:
        """The tiles that were drawn."""
        return compute_sampled_tiles(self.random_seed, self.duty, layout.num_tiles, self.num_sampled)


@dataclass(frozen=True)
class Evidence:
    """An accusation. ``before_root`` is None where not known, ``reveal`` empty where the reason has none."""

    case: Case
    before_root: bytes | None
    commitment: Commitment
    announcement: bytes
    verdict: Verdict
    payload: bytes
    reveal: bytes = b""

    def compute_hash(self) -> bytes:
        """The 32 bytes that go on chain, and by which the evidence is served: sha256 of its bytes."""
        return hashlib.sha256(encode_evidence(self)).digest()

    def recheck(
        self,
        layout: PayloadLayout,
        gradient: FloatArray,
        decay: float,
        thresholds: Thresholds,
        second: FloatArray | None = None,
        *,
        answer: bytes | None = None,
        is_exact: bool = True,
    ) -> Verdict:
        """What a tie-breaker finds with gradients of its own; NO_ANSWER when there is no reveal.

        answer:  what the trainer showed the tie-breaker itself, for evidence without a reveal
        """
        tiles = self.case.compute_tiles(layout)
        roots = self.before_root, self.commitment.momentum_root
        check = CheckInput(layout, self.payload, *roots, tiles, decay, gradient, second, is_exact)
        return check_message(check, self.reveal or answer, thresholds)


def compute_evidence_bytes(layout: PayloadLayout, case: Case, reason: Reason) -> int:
    """Length of evidence."""
    reveal = compute_reveal_bytes(layout, case.compute_tiles(layout)) if reason.has_reveal else 0
    return HEADER_BYTES + layout.num_bytes + reveal


def encode_evidence(evidence: Evidence) -> bytes:
    """Its bytes. Raises EvidenceError when the fields do not go together."""
    reason, measurement = evidence.verdict.reason, evidence.verdict.measurement
    if reason.finding is Finding.HONEST or bool(evidence.reveal) != reason.has_reveal:
        raise EvidenceError(f"{reason.name} is no accusation, or its reveal is missing or too many.")
    if len(evidence.announcement) != ANNOUNCEMENT_BYTES:
        raise EvidenceError(f"An announcement of a result has {ANNOUNCEMENT_BYTES} bytes.")
    return b"".join(
        [
            _PREFIX.pack(MAGIC, VERSION, reason, 0),
            evidence.case.encode(),
            evidence.before_root or bytes(HASH_BYTES),
            evidence.commitment.encode(),
            evidence.announcement,
            _MEASUREMENT.pack(*astuple(measurement)),
            evidence.payload,
            evidence.reveal,
        ]
    )


def decode_evidence(layout: PayloadLayout, data: bytes) -> Evidence:
    """Read evidence and check all that needs neither model nor batch.

    That is: length, every field, the payload against the commitment, and the reveal against both roots.
    Raises EvidenceError; nothing larger than ``data`` is allocated.
    """
    if len(data) < HEADER_BYTES:
        raise EvidenceError(f"Evidence has at least {HEADER_BYTES} bytes, not {len(data)}.")
    reason = _read_reason(data)
    case_end = _PREFIX.size + _CASE.size
    case = Case.decode(data[_PREFIX.size : case_end])
    before = data[case_end:_COMMITMENT_PLACE]
    before_root = before if any(before) else None
    commitment = Commitment.decode(data[_COMMITMENT_PLACE:_ANNOUNCEMENT_PLACE])
    announcement = data[_ANNOUNCEMENT_PLACE:][:ANNOUNCEMENT_BYTES]
    measurement = Measurement(*_MEASUREMENT.unpack_from(data, HEADER_BYTES - _MEASUREMENT.size))
    expected = compute_evidence_bytes(layout, case, reason)
    if len(data) != expected:
        raise EvidenceError(f"Evidence of {reason.name} has {expected} bytes here, not {len(data)}.")
    tiles = case.compute_tiles(layout)
    payload, reveal = data[HEADER_BYTES:][: layout.num_bytes], data[HEADER_BYTES + layout.num_bytes :]
    verdict = Verdict(reason, measurement)
    evidence = Evidence(case, before_root, commitment, announcement, verdict, payload, reveal)
    _check_content(layout, evidence, tiles)
    return evidence


def _read_reason(data: bytes) -> Reason:
    magic, version, reason, zero = _PREFIX.unpack_from(data)
    is_known = Reason.NONE < reason <= Reason.JACCARD
    if (magic, version, zero) != (MAGIC, VERSION, 0) or not is_known:
        raise EvidenceError(f"These bytes are not evidence of version {VERSION}, or name no reason.")
    return Reason(reason)


def _check_content(layout: PayloadLayout, evidence: Evidence, tiles: list[int]) -> None:
    commitment = evidence.commitment
    if hashlib.sha256(evidence.payload).digest() != commitment.payload_hash:
        raise EvidenceError("The payload is not the one committed to.")
    try:
        check_payload(layout, evidence.payload)
        reveals = decode_reveal(layout, tiles, evidence.reveal) if evidence.reveal else []
    except (PayloadError, RevealError, VerificationError) as error:
        raise EvidenceError(f"Payload or reveal cannot be read: {error.what}") from error
    if not all(x.is_proven(evidence.before_root, commitment.momentum_root) for x in reveals):
        raise EvidenceError("The revealed tiles are not those committed to.")
