"""Honest trainers pass whatever they compute with; every cheat is found, for its own reason."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from verify_cheats import CHEATS, Deed
from verify_fleet import Compute, Fleet, Scene
from verify_model import make_batches, make_fleet

from psyche_py.distro import PayloadError
from psyche_py.distro.payload import decode_payload
from psyche_py.verify import (
    BF16,
    FP32,
    CheckInput,
    Finding,
    Measurement,
    Reason,
    Thresholds,
    VerificationError,
    check_message,
    compute_zero_root,
)
from psyche_py.verify.check import NOT_ALIGNABLE, compute_alignment
from psyche_py.verify.tiles import FloatArray

NUM_ROUNDS = 14
TRAINERS = [Compute(), Compute(threads=2), Compute(micro_batch=1), Compute(is_bf16=True)]
VERIFIERS = [Compute(), Compute(threads=2, micro_batch=8), Compute(is_bf16=True)]
REFUSALS = {"refusal", "cut_answer", "other_tiles", "forged_after", "forged_before", "late_commit"}
# What these leave undone hides in the noise of bfloat16; float32 thresholds find it (docs/verification.md).
FOUND_IN_FP32 = {"stale_model_1"}


@cache
def play() -> tuple[Fleet, list[Scene]]:
    fleet = make_fleet(TRAINERS)
    scenes: list[Scene] = []
    for number in range(NUM_ROUNDS):
        scenes = fleet.play_round(make_batches(len(TRAINERS), number), 1e-3)
    return fleet, scenes


@cache
def recompute(worker: int, compute: Compute) -> FloatArray:
    fleet, scenes = play()
    return fleet.recompute(scenes[worker], compute)


@cache
def get_tiles() -> list[int]:
    return list(range(play()[0].layout.num_tiles))


def get_thresholds(*computes: Compute) -> Thresholds:
    return BF16 if any(compute.is_bf16 for compute in computes) else FP32


def get_second(scene: Scene, compute: Compute) -> FloatArray | None:
    """The gradient in the other precision, where both are in play."""
    if not scene.compute.is_bf16 and not compute.is_bf16:
        return None
    return recompute(scene.worker, Compute(is_bf16=not compute.is_bf16))


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("worker", range(len(TRAINERS)))
def test_honest_work_is_found_honest(worker: int, verifier: Compute) -> None:
    fleet, scenes = play()
    scene = scenes[worker]
    second = get_second(scene, verifier)
    check = fleet.make_check(scene, get_tiles(), recompute(worker, verifier), second)
    verdict = check_message(check, scene.answer(get_tiles()), get_thresholds(scene.compute, verifier))
    assert verdict.finding is Finding.HONEST, verdict
    assert verdict.reason is Reason.NONE
    assert verdict.measurement.violation == 0


def test_the_same_computation_gives_the_same_bits() -> None:
    fleet, scenes = play()
    check = fleet.make_check(scenes[0], get_tiles(), recompute(0, Compute()))
    measurement = check_message(check, scenes[0].answer(get_tiles()), FP32).measurement
    assert (measurement.residual, measurement.violation, measurement.jaccard) == (0, 0, 1_000_000)


def test_first_round_starts_from_zero() -> None:
    fleet = make_fleet([Compute()])
    (scene,) = fleet.play_round(make_batches(1, 0), 1e-3)
    assert scene.before.root == compute_zero_root(fleet.layout)
    gradient = fleet.recompute(scene, Compute())
    verdict = check_message(fleet.make_check(scene, get_tiles(), gradient), scene.answer(get_tiles()), FP32)
    assert verdict.finding is Finding.HONEST


def test_a_learning_rate_of_zero_convicts_nobody() -> None:
    """A warm-up starts with it: nothing is added, the message speaks of old momentum or of nothing."""
    fleet = make_fleet([Compute()])
    for number, lr in enumerate((0.0, 1e-3, 0.0)):
        (scene,) = fleet.play_round(make_batches(1, number), lr)
        gradient = fleet.recompute(scene, Compute())
        check = fleet.make_check(scene, get_tiles(), gradient)
        assert check_message(check, scene.answer(get_tiles()), FP32).reason is Reason.NONE


def judge(name: str, thresholds: Thresholds, compute: Compute) -> tuple[Deed, Reason]:
    fleet, scenes = play()
    rng = np.random.default_rng(5)
    deed = CHEATS[name](fleet, scenes[0], rng)
    check = fleet.make_check(deed.scene, get_tiles(), recompute(0, compute))
    return deed, check_message(check, deed.answer(get_tiles()), thresholds).reason


@pytest.mark.parametrize("name", CHEATS)
def test_every_cheat_is_found(name: str) -> None:
    _, reason = judge(name, FP32, Compute())
    # poison and noise already fail the check that needs no answer
    allowed = {Finding.REFUSAL} if name in REFUSALS else {Finding.FRAUD}
    assert reason.finding in allowed, reason


@pytest.mark.parametrize("name", [name for name in CHEATS if name not in FOUND_IN_FP32])
def test_bfloat16_hides_almost_none(name: str) -> None:
    _, reason = judge(name, BF16, Compute(is_bf16=True))
    assert reason is not Reason.NONE


@pytest.mark.parametrize("name", ["negated_signs"])
def test_poison_needs_no_answer(name: str) -> None:
    fleet, scenes = play()
    deed = CHEATS[name](fleet, scenes[0], np.random.default_rng(5))
    verdict = check_message(fleet.make_check(deed.scene, get_tiles(), recompute(0, Compute())), None, FP32)
    assert verdict.reason is Reason.ALIGNMENT


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("no_work", Reason.RESIDUAL),
        ("half_batch", Reason.RESIDUAL),
        ("copied_payload", Reason.VIOLATION),
        ("kept_what_was_sent", Reason.EXTRACTION),
        ("refusal", Reason.NO_ANSWER),
        ("cut_answer", Reason.MALFORMED),
        ("forged_after", Reason.PROOF),
        ("forged_before", Reason.PROOF),
        ("late_commit", Reason.PROOF),
    ],
)
def test_each_rule_finds_its_cheat(name: str, expected: Reason) -> None:
    assert judge(name, FP32, Compute())[1] is expected


def test_some_tiles_are_enough_and_untouched_ones_do_not_convict() -> None:
    """Half the tensors untrained: a sample that meets one of them convicts, another does not."""
    fleet, scenes = play()
    deed = CHEATS["half_the_tensors"](fleet, scenes[0], np.random.default_rng(5))
    reasons = set()
    for tile in get_tiles():
        check = fleet.make_check(deed.scene, [tile], recompute(0, Compute()))
        reasons.add(check_message(check, deed.answer([tile]), FP32).reason)
    assert Reason.NONE in reasons
    assert Reason.RESIDUAL in reasons


def test_alignment_counts_tiles_with_a_gradient_only() -> None:
    fleet, scenes = play()
    message = decode_payload(fleet.layout, scenes[0].payload)
    nothing = np.zeros(fleet.layout.num_stored, dtype=np.float32)
    assert compute_alignment(fleet.layout, message, nothing) == NOT_ALIGNABLE
    gradient = recompute(0, Compute())
    assert (
        1.0
        < compute_alignment(fleet.layout, message, gradient)
        == pytest.approx(-compute_alignment(fleet.layout, message, -gradient))
    )


def test_noise_of_the_verifiers_own_convicts_nobody_but_excuses_no_bad_answer() -> None:
    """A gradient that two precisions see differently says nothing; proofs and extraction hold without it."""
    fleet, scenes = play()
    gradient, tiles = recompute(0, Compute()), get_tiles()
    other = gradient + np.float32(0.1) * recompute(1, Compute())

    def judge_both(name: str) -> tuple[Reason, Reason]:
        deed = CHEATS[name](fleet, scenes[0], np.random.default_rng(5))
        checks = [fleet.make_check(deed.scene, tiles, gradient, x) for x in (gradient, other)]
        sharp, blurred = (check_message(check, deed.answer(tiles), BF16) for check in checks)
        assert (sharp.measurement.noise, blurred.measurement.noise > 20_000) == (0, True)
        return sharp.reason, blurred.reason

    assert judge_both("no_work") == (Reason.RESIDUAL, Reason.ILL_CONDITIONED)
    assert judge_both("negated_signs") == (Reason.ALIGNMENT, Reason.ILL_CONDITIONED)
    assert judge_both("forged_after") == (Reason.PROOF, Reason.PROOF)
    assert judge_both("kept_what_was_sent") == (Reason.EXTRACTION, Reason.EXTRACTION)
    assert judge_both("refusal") == (Reason.NO_ANSWER, Reason.NO_ANSWER)


def test_bad_input_is_the_callers_fault() -> None:
    fleet, scenes = play()
    check = fleet.make_check(scenes[0], get_tiles(), recompute(0, Compute()))
    with pytest.raises(PayloadError):
        check_message(replace(check, payload=b"x"), None, FP32)
    with pytest.raises(VerificationError):
        replace(check, gradient=check.gradient[:5])
    with pytest.raises(VerificationError):
        CheckInput(**{**vars(check), "gradient": check.gradient * np.float32(np.nan)})


@pytest.mark.parametrize("values", [(3.0, 0, 0, 0), (0, -0.1, 0, 0), (0, 0, 1.1, 0), (0, 0, 0, float("nan"))])
def test_thresholds_are_checked(values: tuple[float, float, float, float]) -> None:
    with pytest.raises(VerificationError):
        Thresholds(*values)


def test_rules_are_judged_in_order() -> None:
    good = Measurement(alignment=1_000_000, jaccard=1_000_000)
    assert FP32.judge(good) is Reason.NONE
    noisy = Measurement(alignment=-1_000_000, noise=20_001)
    assert BF16.judge(noisy) is Reason.ILL_CONDITIONED
    assert BF16.judge(replace(noisy, noise=20_000)) is Reason.ALIGNMENT
    at_limit = Measurement(100_000, 10_000, 10_000, 950_000)
    assert FP32.judge(at_limit) is Reason.NONE
    assert FP32.judge(replace(at_limit, alignment=99_999)) is Reason.ALIGNMENT
    assert FP32.judge(replace(at_limit, residual=10_001)) is Reason.RESIDUAL
    assert FP32.judge(replace(at_limit, violation=10_001)) is Reason.VIOLATION
    assert FP32.judge(replace(at_limit, jaccard=949_999)) is Reason.JACCARD
