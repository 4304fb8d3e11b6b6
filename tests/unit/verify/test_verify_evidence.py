"""Evidence: one encoding, nothing in it that cannot be checked, and no way to convict an honest trainer."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verify_cheats import CHEATS, Deed
from verify_fleet import Compute, Fleet, Scene
from verify_model import make_batches, make_fleet

from psyche_py.verify import (
    FP32,
    Case,
    Commitment,
    Duty,
    Evidence,
    EvidenceError,
    Finding,
    Measurement,
    Reason,
    Verdict,
    check_message,
    decode_evidence,
    encode_evidence,
)
from psyche_py.verify.evidence import ANNOUNCEMENT_BYTES, HEADER_BYTES
from psyche_py.verify.tiles import FloatArray

CASE = Case(b"\7" * 32, epoch=2, height=900, step=901, random_seed=2**63 + 5, duty=Duty(3, 0), num_sampled=12)


@cache
def play() -> tuple[Fleet, Scene, FloatArray]:
    fleet = make_fleet([Compute(), Compute()])
    for number in range(4):
        scenes = fleet.play_round(make_batches(2, number), 1e-3)
    return fleet, scenes[0], fleet.recompute(scenes[0], Compute())


FRAME = bytes(range(256)) + bytes(range(ANNOUNCEMENT_BYTES - 256))


def accuse(deed: Deed, verdict: Verdict | None = None) -> Evidence:
    """What a verifier makes of a deed, or claims to."""
    fleet, _, gradient = play()
    tiles = CASE.compute_tiles(fleet.layout)
    answer = deed.answer(tiles)
    if verdict is None:
        verdict = check_message(fleet.make_check(deed.scene, tiles, gradient), answer, FP32)
    commitment = Commitment(hashlib.sha256(deed.scene.payload).digest(), deed.scene.after.root, bytes(32))
    reveal = answer or b"" if verdict.reason.has_reveal else b""
    return Evidence(CASE, deed.scene.before.root, commitment, FRAME, verdict, deed.scene.payload, reveal)


@cache
def make_evidence(name: str) -> Evidence:
    fleet, scene, _ = play()
    return accuse(CHEATS[name](fleet, scene, np.random.default_rng(1)))


@pytest.mark.parametrize("name", CHEATS)
def test_evidence_of_every_cheat_goes_through_bytes(name: str) -> None:
    fleet, _, gradient = play()
    evidence = make_evidence(name)
    data = encode_evidence(evidence)
    read = decode_evidence(fleet.layout, data)
    assert read == evidence
    assert read.compute_hash() == evidence.compute_hash()
    finding = read.recheck(fleet.layout, gradient, fleet.config.compression_decay, FP32)
    if evidence.verdict.finding is Finding.FRAUD:
        assert finding == evidence.verdict
    else:  # no reveal can be pinned on the trainer: the tie-breaker has to ask
        assert finding.finding is not Finding.HONEST
        assert len(data) == HEADER_BYTES + fleet.layout.num_bytes


def test_the_hash_covers_every_byte() -> None:
    evidence = make_evidence("no_work")
    changes = [
        replace(evidence, case=replace(CASE, height=901)),
        replace(evidence, case=replace(CASE, duty=Duty(4, 0))),
        replace(evidence, before_root=bytes(32)),
        replace(evidence, verdict=Verdict(Reason.JACCARD, evidence.verdict.measurement)),
        replace(evidence, verdict=Verdict(evidence.verdict.reason, Measurement(residual=1))),
    ]
    assert len({x.compute_hash() for x in [evidence, *changes]}) == len(changes) + 1


def test_a_false_accusation_does_not_stand() -> None:
    """True bytes of an honest trainer under made-up numbers: recomputation clears it."""
    fleet, scene, gradient = play()
    claimed = Verdict(Reason.RESIDUAL, Measurement(alignment=10, residual=999_999))
    evidence = accuse(Deed(scene, scene.answer), claimed)
    read = decode_evidence(fleet.layout, encode_evidence(evidence))
    found = read.recheck(fleet.layout, gradient, fleet.config.compression_decay, FP32)
    assert found.finding is Finding.HONEST


def test_an_accuser_cannot_make_up_tiles() -> None:
    fleet, scene, _ = play()
    forged = CHEATS["no_work"](fleet, scene, np.random.default_rng(1))
    claimed = Verdict(Reason.RESIDUAL, Measurement(residual=999_999))
    evidence = accuse(Deed(scene, forged.answer), claimed)
    with pytest.raises(EvidenceError, match="committed"):
        decode_evidence(fleet.layout, encode_evidence(evidence))


def test_an_accuser_cannot_choose_the_payload() -> None:
    fleet, scene, _ = play()
    other = fleet.results[-1][1]
    claimed = Verdict(Reason.ALIGNMENT, Measurement(alignment=-1))
    evidence = replace(accuse(Deed(scene, scene.answer), claimed), payload=other)
    with pytest.raises(EvidenceError, match="committed"):
        decode_evidence(fleet.layout, encode_evidence(evidence))


def test_fields_must_go_together() -> None:
    fraud, refusal = make_evidence("no_work"), make_evidence("refusal")
    for evidence in (
        replace(fraud, reveal=b""),
        replace(refusal, reveal=fraud.reveal),
        replace(fraud, verdict=Verdict(Reason.NONE, Measurement())),
        replace(refusal, verdict=Verdict(Reason.ILL_CONDITIONED, Measurement())),
        replace(fraud, case=replace(CASE, run=b"short")),
        replace(fraud, case=replace(CASE, num_sampled=0)),
        replace(fraud, case=replace(CASE, epoch=2**32)),
        replace(fraud, case=replace(CASE, duty=Duty(-1, 0))),
    ):
        with pytest.raises(EvidenceError):
            encode_evidence(evidence)


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_bytes_are_refused_or_name_another_case(data: st.DataObject) -> None:
    """Only case and claimed numbers can be changed: the chain knows the first, nobody trusts the second."""
    fleet, _, _ = play()
    evidence = make_evidence("no_work")
    changed = bytearray(encode_evidence(evidence))
    place = data.draw(st.one_of(st.integers(0, HEADER_BYTES - 1), st.integers(0, len(changed) - 1)))
    changed[place] ^= data.draw(st.integers(1, 255))
    try:
        read = decode_evidence(fleet.layout, bytes(changed))
    except EvidenceError:
        return
    assert place < HEADER_BYTES
    assert encode_evidence(read) == bytes(changed)
    kept = (read.payload, read.reveal, read.before_root, read.commitment.momentum_root)
    assert kept == (
        evidence.payload,
        evidence.reveal,
        evidence.before_root,
        evidence.commitment.momentum_root,
    )


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400))
def test_junk_is_refused(junk: bytes) -> None:
    fleet, _, _ = play()
    for data in (junk, b"DTVE\1\0\6\0" + junk, b"DTVE\1\0\2\0" + junk):
        with pytest.raises(EvidenceError):
            decode_evidence(fleet.layout, data)


@pytest.mark.parametrize("cut", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, 5000])
def test_cut_evidence_is_refused(cut: int) -> None:
    fleet, _, _ = play()
    data = encode_evidence(make_evidence("no_work"))
    with pytest.raises(EvidenceError):
        decode_evidence(fleet.layout, data[:cut])
    with pytest.raises(EvidenceError):
        decode_evidence(fleet.layout, data + b"\0")
