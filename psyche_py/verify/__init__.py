"""Verification by recomputation: commitments to momentum, the draw, the check of a message, evidence.

Pure: bytes, seeds and gradients in, verdicts out. Who fetches, sends and pays is not decided here.
docs/verification.md has the protocol, its odds and the measurements behind the thresholds.
"""

from psyche_py.coordinator.commitment import Commitment
from psyche_py.coordinator.duties import Duty
from psyche_py.verify.check import CheckInput, check_message
from psyche_py.verify.commit import MomentumSnapshot, compute_zero_root
from psyche_py.verify.draw import compute_sampled_tiles
from psyche_py.verify.errors import EvidenceError, RevealError, VerificationError
from psyche_py.verify.evidence import Case, Evidence, decode_evidence, encode_evidence
from psyche_py.verify.reveal import TileReveal, decode_reveal, encode_reveal
from psyche_py.verify.thresholds import BF16, FP32, Thresholds
from psyche_py.verify.verdict import Finding, Measurement, Reason, Verdict

__all__ = [
    "BF16",
    "FP32",
    "Case",
    "CheckInput",
    "Commitment",
    "Duty",
    "Evidence",
    "EvidenceError",
    "Finding",
    "Measurement",
    "MomentumSnapshot",
    "Reason",
    "RevealError",
    "Thresholds",
    "TileReveal",
    "Verdict",
    "VerificationError",
    "check_message",
    "compute_sampled_tiles",
    "compute_zero_root",
    "decode_evidence",
    "decode_reveal",
    "encode_evidence",
    "encode_reveal",
]
