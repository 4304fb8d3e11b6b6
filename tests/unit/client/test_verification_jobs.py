"""A verifier's and a tie-breaker's work with the real trainer: honest is honest, every cheat is convicted."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from verify_case import (
    CONFIG,
    HEADER,
    HEIGHT,
    KEY,
    Claim,
    Looker,
    Scenery,
    get_range,
    make_claim,
    make_previous,
    make_target,
    play,
    sign,
)
from verify_cheats import CHEATS, Deed

from psyche_py.client.targets import Finding, Target
from psyche_py.p2p.identity import SigningKey
from psyche_py.verify import Finding as Kind
from psyche_py.verify import Reason


@cache
def get_scenery() -> Scenery:
    return play()


@cache
def get_looker(name: str) -> Looker:
    return Looker(get_scenery().results)


def check(target: Target, claim: Claim, looker: Looker | None = None) -> tuple[Finding, bytes]:
    """What a verifier finds."""
    scenery = get_scenery()
    found = (looker or get_looker("verifier")).jobs.check(
        target,
        claim.commitment,
        claim.frame,
        claim.payload,
        make_previous(scenery.scene, scenery.results),
        claim.answer,
    )
    assert found is not None
    return found


def judge(
    target: Target, reason: int, evidence: bytes, answer: bytes | None = None, looker: Looker | None = None
) -> tuple[bool, str]:
    """What a tie-breaker finds."""
    scenery = get_scenery()
    previous = make_previous(scenery.scene, scenery.results)
    judged = (looker or get_looker("judge")).jobs.judge(target, reason, evidence, previous, answer, HEADER)
    assert judged is not None
    return judged


def make_honest() -> tuple[Target, Claim]:
    scene = get_scenery().scene
    target = make_target(scene)
    return target, make_claim(target, Deed(scene, scene.answer))


def test_honest_work_is_found_honest_and_leaves_the_replica_alone() -> None:
    target, claim = make_honest()
    looker = get_looker("verifier")
    before = looker.trainer.digest(), looker.trainer.optimizer.momentum.clone()
    finding, evidence = check(target, claim)
    assert (finding.reason_name, evidence) == ("NONE", b"")
    assert finding.statistics["residual"] < 1_000
    assert finding.statistics["jaccard"] > 990_000
    assert looker.trainer.digest() == before[0]
    assert looker.trainer.optimizer.momentum.equal(before[1])


def test_with_the_limits_of_mixed_fleets_both_precisions_are_computed() -> None:
    target, claim = make_honest()
    mixed = replace(CONFIG, max_residual=60_000, max_violation=20_000, min_jaccard=900_000)
    finding, _ = check(target, claim, Looker(get_scenery().results, mixed))
    assert finding.reason_name == "NONE"
    assert 0 < finding.statistics["noise"] < 20_000


@pytest.mark.parametrize("name", CHEATS)
def test_every_cheat_is_accused_and_convicted(name: str) -> None:
    scenery = get_scenery()
    deed = CHEATS[name](scenery.fleet, scenery.scene, np.random.default_rng(1))
    target = make_target(scenery.scene)
    claim = make_claim(target, deed)
    finding, evidence = check(target, claim)
    reason = Reason(finding.reason)
    assert reason.finding is not Kind.HONEST
    assert evidence
    is_guilty, why = judge(target, reason, evidence, claim.answer)
    assert is_guilty, why
    if reason.finding is Kind.REFUSAL:  # answered after all, and honestly: nobody is convicted
        _honest_target, honest = make_honest()
        honest_claim = replace(claim, commitment=honest.commitment, payload=honest.payload, answer=None)
        honest_claim.frame = sign(target, honest.commitment, len(honest.payload))
        accused, evidence = check(target, honest_claim)
        assert accused.reason_name == "NO_ANSWER"
        assert judge(target, Reason.NO_ANSWER, evidence, honest.answer) == (False, "NONE")
        assert judge(target, Reason.NO_ANSWER, evidence, None) == (True, "NO_ANSWER")


def test_without_a_signature_there_is_no_accusation() -> None:
    scenery = get_scenery()
    deed = CHEATS["no_work"](scenery.fleet, scenery.scene, np.random.default_rng(1))
    target = make_target(scenery.scene)
    claim = replace(make_claim(target, deed), frame=b"")
    finding, evidence = check(target, claim)
    assert finding.reason_name != "NONE"
    assert evidence == b""


def test_what_is_not_known_convicts_nobody() -> None:
    """Without the root before, or a foreseen message, only alignment and extraction can be judged."""
    scenery = get_scenery()
    target, claim = make_honest()
    unknown = replace(target, before_root=None)
    assert check(unknown, claim)[0].reason_name == "NONE"
    looker = get_looker("verifier")
    found = looker.jobs.check(
        target, claim.commitment, claim.frame, claim.payload, {0: None, 1: None}, claim.answer
    )
    assert found is not None
    assert found[0].reason_name == "NONE"
    half = CHEATS["half_batch"](scenery.fleet, scenery.scene, np.random.default_rng(1))
    assert check(unknown, make_claim(target, half))[0].reason_name == "NONE"
    negated = CHEATS["negated_gradient"](scenery.fleet, scenery.scene, np.random.default_rng(1))
    assert check(unknown, make_claim(target, negated))[0].reason_name == "ALIGNMENT"


def test_made_up_evidence_convicts_nobody() -> None:
    """Each part that an accuser could forge, and an honest trainer's true tiles under made-up numbers."""
    scenery = get_scenery()
    target = make_target(scenery.scene)
    deed = CHEATS["half_batch"](scenery.fleet, scenery.scene, np.random.default_rng(1))
    finding, evidence = check(target, make_claim(target, deed))
    assert finding.reason_name == "RESIDUAL"
    reason = Reason.RESIDUAL
    assert judge(target, reason, evidence)[0]
    others = {
        "epoch": 4,
        "height": HEIGHT - 1,
        "random_seed": 78,
        "verifier": 2,
        "trainer_key": SigningKey(b"\6" * 32).public_key,
        "ranges": (get_range(1, HEIGHT),),
        "before_root": b"\1" * 32,
    }
    for field, value in others.items():
        assert not judge(replace(target, **{field: value}), reason, evidence)[0], field
    assert not judge(target, Reason.VIOLATION, evidence)[0]
    assert not judge(target, reason, evidence[:-1])[0]
    assert not judge(target, reason, bytes(len(evidence)))[0]
    honest_target, honest = make_honest()
    lie = forge(honest_target, honest)
    assert judge(honest_target, reason, lie) == (False, "NONE")


def forge(target: Target, claim: Claim) -> bytes:
    """What a false accuser writes about honest work."""
    from psyche_py.client.verification_jobs import make_case
    from psyche_py.verify import Evidence, Measurement, Verdict, encode_evidence

    assert claim.answer is not None
    verdict = Verdict(Reason.RESIDUAL, Measurement(alignment=1, residual=999_999))
    return encode_evidence(
        Evidence(
            make_case(target),
            target.before_root,
            claim.commitment,
            claim.frame,
            verdict,
            claim.payload,
            claim.answer,
        )
    )


def test_an_unsigned_or_foreign_announcement_is_no_evidence() -> None:
    scenery = get_scenery()
    target = make_target(scenery.scene)
    deed = CHEATS["no_work"](scenery.fleet, scenery.scene, np.random.default_rng(1))
    claim = make_claim(target, deed)
    stranger = SigningKey(b"\7" * 32)
    size = len(claim.payload)
    frames = [
        claim.frame[:40] + bytes(1) + claim.frame[41:],
        sign(target, claim.commitment, size, stranger),
        sign(replace(target, height=HEIGHT + 1), claim.commitment, size),
        sign(target, claim.commitment, size, batch_end=target.ranges[0][1] + 1),
        sign(target, replace(claim.commitment, foreseen=bytes(32)), size),
    ]
    for frame in frames:
        finding, evidence = check(target, replace(claim, frame=frame))
        assert evidence
        assert not judge(target, finding.reason, evidence, claim.answer)[0]
    assert KEY.public_key == target.trainer_key
