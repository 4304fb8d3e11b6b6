"""The clipped linear step: integer thresholds, whole units, products that are exact."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer, PayloadLayout, group_parameters
from psyche_py.distro.layout import TileGroup
from psyche_py.distro.steps import CLIP, compute_unit, count_units, get_step_rule
from psyche_py.distro.transform import get_precision
from psyche_py.errors import ConfigError

LR = 0.0371


def make_group(shape: tuple[int, ...] = (64, 64), topk: int = 8) -> TileGroup:
    (group,) = PayloadLayout.from_shapes({"w": shape}, DistroConfig(compression_topk=topk)).groups
    return group


# -- units --


@pytest.mark.parametrize("shape", [(64, 64), (192,), (1,)])
@pytest.mark.parametrize(("num_messages", "topk"), [(1, 8), (4, 64), (200, 8)])
def test_the_rate_is_reached_at_the_rms_of_votes_that_do_not_meet(
    shape: tuple[int, ...], num_messages: int, topk: int
) -> None:
    """The inverse transform keeps squares: each vote adds its own to the sum of squares of the tile."""
    group = make_group(shape, topk)
    rule = get_step_rule(group, num_messages, 10)
    bits = get_precision(group, num_messages).table_bits
    scale = math.prod(2**bits * math.sqrt(n / 2) for n in (group.height, group.width) if n > 1)
    rms = scale * math.sqrt(num_messages * group.topk / group.tile_size)
    assert rms * rule.slope * CLIP == pytest.approx(10, rel=1e-6)


@pytest.mark.parametrize("levels", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("num_messages", [1, 4, 40, 200])
def test_units_follow_integer_thresholds(levels: int, num_messages: int) -> None:
    """Odd, never falling, and each next unit begins at an integer that exact fractions put there too."""
    group = make_group()
    rule = get_step_rule(group, num_messages, levels)
    slope = Fraction(rule.slope)
    thresholds = [math.ceil(Fraction(2 * m - 1, 2) / slope) for m in range(1, levels + 1)]
    largest = 2 ** (2 * get_precision(group, num_messages).table_bits) * group.topk * num_messages
    for m, threshold in enumerate(thresholds, 1):
        assert 1 <= threshold < largest
        for offset, units in ((-2, m - 1), (2, m)):  # the product is rounded: its last bit is left out
            sums = torch.tensor([threshold + offset, -threshold - offset], dtype=rule.dtype)
            expected = max(units, 1) if levels == 1 and threshold + offset > 0 else units
            if levels > 1 or offset > 0:
                assert count_units(sums, rule).tolist() == [expected, -expected]
    far = torch.tensor([largest, -largest, 0], dtype=rule.dtype)
    assert count_units(far, rule).tolist() == [levels, -levels, 0]


def test_one_level_is_the_sign() -> None:
    rule = get_step_rule(make_group(), 4, 1)
    sums = torch.tensor([-(2.0**24), -1, -0.0, 0, 1, 7])
    units = count_units(sums, rule)
    assert units.tolist() == [-1, -1, 0, 0, 1, 1]
    assert not torch.signbit(units[2:]).any()


def test_sums_that_were_computed_in_float64_are_counted_in_the_rule_s_type() -> None:
    """Where a caller allows TF32 sums are doubles; their product with the slope must round as a float's."""
    rule = get_step_rule(make_group(), 4, 16)
    assert rule.dtype == torch.float32
    rng = np.random.default_rng(0)
    sums = torch.from_numpy(rng.integers(-(2**24), 2**24, 100_000))
    slope = rule.slope
    near = torch.tensor([round((m + 0.5) / slope) + i for m in range(-16, 16) for i in (-1, 0, 1)])
    sums = torch.cat([sums, near])
    assert torch.equal(count_units(sums.float(), rule), count_units(sums.double(), rule))


@settings(deadline=None)
@given(rate=st.floats(1e-12, 10.0), levels=st.integers(1, 64))
def test_units_times_a_unit_are_float32_numbers(rate: float, levels: int) -> None:
    unit = compute_unit(rate, levels)
    assert unit == np.float32(unit)
    clip = 1 if levels == 1 else CLIP
    assert unit * levels == pytest.approx(clip * rate, rel=2.0**-16)
    for units in range(1, levels + 1):
        product = np.float32(units) * np.float32(unit)
        assert Fraction(float(product)) == units * Fraction(unit)


def test_no_rate_is_no_unit() -> None:
    assert compute_unit(0.0, 16) == 0.0


# -- in the optimizer --


def apply_some(config: DistroConfig, num: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights before and after ``num`` messages of gradients that agree half."""
    torch.manual_seed(0)
    common, payloads = torch.randn(128, 128), []
    for _ in range(num):
        worker = DistroOptimizer([("w", Parameter(torch.zeros(128, 128)))], config)
        worker._trained["w"].grad = common + torch.randn(128, 128)
        payloads.append(worker.step(LR))
    weight = Parameter(torch.zeros(128, 128))
    optimizer = DistroOptimizer([("w", weight)], config)
    optimizer.apply(payloads, LR)
    return common, weight.detach()


@pytest.mark.parametrize("levels", [2, 5, 16])
def test_moves_are_whole_units_up_to_the_clip(levels: int) -> None:
    _, weight = apply_some(DistroConfig(step_levels=levels, compression_topk=64), 4)
    unit = compute_unit(LR, levels)
    units = weight.double() / unit
    assert torch.equal(units, units.round())
    assert float(units.abs().max()) == levels
    assert len(units.unique()) == 2 * levels + 1
    assert float(weight.square().mean().sqrt()) == pytest.approx(LR, rel=0.35)


def test_more_levels_say_more_of_a_gradient() -> None:
    likenesses = []
    for levels in (1, 16):
        common, weight = apply_some(DistroConfig(step_levels=levels, compression_topk=64), 4)
        likenesses.append(-float(torch.corrcoef(torch.stack([common.view(-1), weight.view(-1)]))[0, 1]))
    assert likenesses[1] > 1.1 * likenesses[0] > 0.1


def test_a_rate_in_momentum_weighs_gradients_and_one_outside_does_not() -> None:
    momenta = []
    for is_outside in (True, False):
        config = DistroConfig(lr_outside_momentum=is_outside, compression_topk=1, clip_grad_norm=None)
        weight = Parameter(torch.zeros(64, 64))
        optimizer = DistroOptimizer([("w", weight)], config)
        torch.manual_seed(1)
        weight.grad = torch.randn(64, 64)
        assert torch.equal(
            optimizer.transform_gradient(0.5), optimizer.transform_gradient(0.25) * (1 if is_outside else 2)
        )
        optimizer.step(0.5)
        momenta.append(optimizer.momentum.clone())
    assert torch.equal(momenta[0] * 0.5, momenta[1])


@pytest.mark.parametrize("levels", [0, -1, 65])
def test_levels_out_of_range_are_refused(levels: int) -> None:
    with pytest.raises(ConfigError, match="step_levels"):
        DistroConfig(step_levels=levels)


@pytest.mark.parametrize("scale", [-1.0, 0.0, math.nan, math.inf])
def test_scales_that_are_no_rates_are_refused(scale: float) -> None:
    with pytest.raises(ConfigError, match="vocab_lr_scale"):
        DistroConfig(vocab_lr_scale=scale)


# -- embedding and head --


def get_scales(model: nn.Module) -> dict[str, float]:
    optimizer = DistroOptimizer(group_parameters(model, DistroConfig(vocab_lr_scale=3.0)), DistroConfig())
    scales: dict[str, float] = {}
    for group in optimizer.param_groups:
        names = group["names"]
        assert isinstance(names, list)
        scales |= dict.fromkeys(names, group["lr_scale"])  # type: ignore[arg-type]
    return scales


@pytest.mark.parametrize("is_tied", [False, True])
def test_embedding_and_head_of_a_llama_are_found(is_tied: bool) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,  # of the head's shape: neither shapes nor names decide
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=is_tied,
    )
    scales = get_scales(LlamaForCausalLM(config))
    found = {name for name, scale in scales.items() if scale == 3.0}
    assert found == (
        {"model.embed_tokens.weight"} if is_tied else {"lm_head.weight", "model.embed_tokens.weight"}
    )
    assert set(scales.values()) == {1.0, 3.0}


def test_embeddings_of_any_module_are_found() -> None:
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    assert get_scales(model) == {"0.weight": 3.0, "1.weight": 1.0, "1.bias": 1.0}
    assert get_scales(nn.Linear(3, 3)) == {"weight": 1.0, "bias": 1.0}
