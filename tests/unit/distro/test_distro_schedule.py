"""Learning rate schedules against hand-computed values and the formulas of psyche.md 4.8; exact cosines."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
import scipy.fft

from psyche_py.distro import Constant, Cosine, Linear, WarmupStableDecay
from psyche_py.distro.trig import PI, cos_pi, dct_matrix, integer_dct_matrix
from psyche_py.errors import ConfigError


def test_constant_warms_up_linearly_then_stays() -> None:
    schedule = Constant(base_lr=0.01, warmup_steps=10, warmup_init_lr=0.001)
    assert schedule.get_lr(0) == 0.001
    assert schedule.get_lr(5) == pytest.approx(0.0055, rel=1e-15)
    assert schedule.get_lr(10) == schedule.get_lr(10**9) == 0.01
    assert Constant(0.01).get_lr(0) == 0.01


def test_linear_ends_at_final() -> None:
    schedule = Linear(base_lr=0.01, total_steps=100, final_lr=0.0001, warmup_steps=10, warmup_init_lr=0.001)
    assert schedule.get_lr(9) == pytest.approx(0.0091)
    assert schedule.get_lr(10) == 0.01
    assert schedule.get_lr(55) == pytest.approx(0.00505)
    assert schedule.get_lr(100) == schedule.get_lr(1000) == 0.0001


def test_cosine_is_clamped_after_total_steps() -> None:
    schedule = Cosine(base_lr=0.01, total_steps=110, final_lr=0.002, warmup_steps=10)
    assert schedule.get_lr(10) == 0.01
    assert schedule.get_lr(60) == pytest.approx(0.006, rel=1e-15)
    assert schedule.get_lr(110) == schedule.get_lr(160) == schedule.get_lr(210) == 0.002
    expected = 0.002 + 0.008 * 0.5 * (1 + math.cos(math.pi * 0.37))
    assert schedule.get_lr(47) == pytest.approx(expected, rel=1e-15)
    assert all(schedule.get_lr(s) >= schedule.get_lr(s + 1) for s in range(10, 120))


def test_warmup_stable_decay_has_four_parts() -> None:
    schedule = WarmupStableDecay(0.01, 60, 110, 0.001, 20, 0.0, warmup_steps=10, warmup_init_lr=0.001)
    assert schedule.get_lr(5) == pytest.approx(0.0055)
    assert schedule.get_lr(10) == schedule.get_lr(69) == 0.01
    assert schedule.get_lr(70) == pytest.approx(0.01, rel=1e-15)
    assert schedule.get_lr(125) == pytest.approx(0.0055)
    assert schedule.get_lr(180) == 0.001
    assert schedule.get_lr(190) == pytest.approx(0.0005)
    assert schedule.get_lr(200) == schedule.get_lr(250) == 0.0
    assert WarmupStableDecay(0.01, 0, 0, 0.001, 0, 0.001).get_lr(0) == 0.001


def test_total_steps_inside_the_warmup_do_not_divide_by_zero() -> None:
    assert Cosine(0.01, total_steps=10, warmup_steps=10).get_lr(10) == 0.0
    assert Linear(0.01, total_steps=5, warmup_steps=10).get_lr(12) == 0.0


@pytest.mark.parametrize("bad", [-1.0, math.nan, math.inf])
def test_schedules_refuse_numbers_that_are_not(bad: float) -> None:
    with pytest.raises(ConfigError):
        Constant(bad)
    with pytest.raises(ConfigError):
        Cosine(0.1, 10, final_lr=bad)


def test_decays_must_not_rise() -> None:
    with pytest.raises(ConfigError, match="must not increase"):
        WarmupStableDecay(0.01, 1, 1, 0.02, 1, 0.0)


def test_cosines_agree_with_the_library_and_are_symmetric() -> None:
    for denominator in (1, 2, 3, 7, 64, 1000):
        for numerator in range(-denominator, 3 * denominator):
            expected = math.cos(math.pi * numerator / denominator)
            assert float(cos_pi(numerator, denominator)) == pytest.approx(expected, abs=1e-14)
            assert cos_pi(numerator, denominator) == cos_pi(-numerator, denominator)
            assert (
                cos_pi(denominator - numerator, denominator) == cos_pi(numerator, denominator).copy_negate()
            )


def test_a_known_cosine_to_fifty_digits() -> None:
    # cos(pi/5) is a quarter of 1 + sqrt(5).
    with localcontext() as context:
        context.prec = 60
        golden = (1 + Decimal(5).sqrt()) / 4
        assert abs(cos_pi(1, 5) - golden) < Decimal("1e-55")
        # 16 atan(1/5) - 4 atan(1/239), Machin's formula, checks the digits of pi themselves.
        arctans = [
            sum(((-1) ** i) / (Decimal(x) ** (2 * i + 1) * (2 * i + 1)) for i in range(60)) for x in (5, 239)
        ]
        assert abs(16 * arctans[0] - 4 * arctans[1] - PI) < Decimal("1e-55")


def test_cosines_do_not_depend_on_the_caller_s_decimal_context() -> None:
    expected = [cos_pi(i, 77) for i in range(154)]
    with localcontext() as context:
        context.prec = 5
        assert [cos_pi(i, 77) for i in range(154)] == expected


@pytest.mark.parametrize("n", [1, 2, 3, 29, 58, 64])
def test_dct_matrix_is_scipy_s(n: int) -> None:
    assert np.allclose(dct_matrix(n), scipy.fft.dct(np.eye(n), axis=0, norm="ortho"), atol=1e-15)
    assert np.allclose(dct_matrix(n) @ dct_matrix(n).T, np.eye(n), atol=1e-14)


def test_integer_tables_have_no_entry_near_a_tie_and_keep_their_bound() -> None:
    for n in range(2, 65):
        exact = dct_matrix(n) * math.sqrt(n / 2)
        for bits in (7, 8, 9, 10, 19, 20):
            table = integer_dct_matrix(n, bits)
            scaled = exact * 2**bits
            assert np.abs(table - scaled).max() <= 0.5 + 1e-6
            assert np.abs(table).max() <= 2**bits
            near_tie = np.abs(np.abs(scaled - np.floor(scaled)) - 0.5) < 1e-7
            # Were there one, rounding would hang on the last digits; 50 digits decide it either way.
            assert not near_tie.any()
    assert integer_dct_matrix(1, 9).tolist() == [[1]]
