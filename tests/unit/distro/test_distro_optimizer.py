"""DistroOptimizer: each step against a naive reference in float64, replicas bit for bit, state."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from distro_tools import (
    LR,
    cut,
    fill_gradients,
    get_matrix,
    invert,
    join,
    make_parameters,
    make_payloads,
    put_matrix,
    snapshot,
    transform,
)
from torch import Tensor
from torch.nn import Parameter

from psyche_py.distro import (
    DistroConfig,
    DistroError,
    DistroOptimizer,
    NonFiniteGradientError,
    PayloadError,
)
from psyche_py.distro.payload import decode_payload
from psyche_py.errors import ConfigError

pytestmark = pytest.mark.usefixtures("each_path")


def sum_of_signs(optimizer: DistroOptimizer, payloads: list[bytes]) -> dict[str, np.ndarray]:
    """The naive decoder: scatter, scipy inverse, values not yet reduced to signs."""
    layout = optimizer.payload_layout
    result: dict[str, np.ndarray] = {}
    messages = [decode_payload(layout, payload) for payload in payloads]
    for i, group in enumerate(layout.groups):
        coefficients = np.zeros((group.num_tiles, group.tile_size))
        for message in messages:
            for tile, (positions, signs) in enumerate(
                zip(message[i].positions, message[i].signs, strict=True)
            ):
                np.add.at(coefficients[tile], positions, signs)
        values = invert(coefficients.reshape(-1, group.height, group.width))
        for slot in group.slots:
            tiles = values[slot.first_tile : slot.first_tile + slot.num_tiles]
            result |= put_matrix(slot, join(slot, tiles))
    return result


@pytest.mark.parametrize("is_lr_outside", [False, True])
def test_steps_match_a_naive_reference(is_lr_outside: bool) -> None:
    """Momentum in the weight domain, full transforms, exact values subtracted: the published algorithm."""
    parameters = make_parameters()
    config = DistroConfig(compression_decay=0.9, clip_grad_norm=1.0, lr_outside_momentum=is_lr_outside)
    rate = 1.0 if is_lr_outside else LR
    optimizer = DistroOptimizer(parameters.items(), config)
    layout = optimizer.payload_layout
    slots = [(i, group, slot) for i, group in enumerate(layout.groups) for slot in group.slots]
    assert {slot.name for _, _, slot in slots} == {"", "w", "experts"}
    momentum = {slot.name: np.zeros((slot.num_tiles, slot.height, slot.width)) for _, _, slot in slots}
    for step in range(4):
        fill_gradients(parameters, step)
        grads = {n: p.grad.double().numpy() for n, p in parameters.items() if p.grad is not None}
        norm = math.sqrt(sum(float((g**2).sum()) for g in grads.values()))
        message = decode_payload(layout, optimizer.step(LR))
        for i, group, slot in slots:
            gradient = cut(slot, get_matrix(slot, grads)) * min(1.0, 1.0 / norm)
            kept = momentum[slot.name] = 0.9 * momentum[slot.name] + rate * gradient
            full = transform(kept).reshape(slot.num_tiles, -1)
            for tile in range(slot.num_tiles):
                chosen = np.sort(np.argsort(-np.abs(full[tile]), kind="stable")[: group.topk])
                assert np.array_equal(message[i].positions[slot.first_tile + tile], chosen)
                assert np.array_equal(message[i].signs[slot.first_tile + tile], np.sign(full[tile][chosen]))
                full[tile][chosen] = 0
            momentum[slot.name] = invert(full.reshape(kept.shape))


def test_clipping_scales_the_whole_gradient_and_only_down() -> None:
    states = []
    for clip, scale in ((None, 1.0), (1.0, 1.0), (1e9, 1.0)):
        parameters = make_parameters()
        optimizer = DistroOptimizer(parameters.items(), DistroConfig(clip_grad_norm=clip))
        fill_gradients(parameters, 5, scale)
        optimizer.step(LR)
        states.append(optimizer.state_dict()["momentum"])
        norm = math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in parameters.values()))
    assert torch.equal(states[0], states[2])
    assert torch.allclose(states[0] / norm, states[1], atol=1e-7)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_apply_is_one_rounding_per_operation(weight_decay: float, dtype: torch.dtype) -> None:
    parameters = make_parameters(dtype=dtype)
    config = DistroConfig(weight_decay=weight_decay, step_levels=1)
    optimizer = DistroOptimizer(parameters.items(), config)
    payloads = make_payloads(3)
    before = {n: p.detach().float().numpy().copy() for n, p in parameters.items()}
    optimizer.apply(payloads, LR)
    true = sum_of_signs(optimizer, payloads)
    for name, p in parameters.items():
        value = before[name].reshape(true[name].shape)
        if weight_decay:
            value = value * np.float32(1.0 - LR * weight_decay)
        moved = p.detach().float().numpy().reshape(value.shape)
        certain = np.abs(true[name]) > 2e-3
        expected = (value - np.float32(LR) * np.sign(true[name]).astype(np.float32)).astype(np.float32)
        expected = torch.from_numpy(np.asarray(expected)).to(dtype).float().numpy()
        assert np.array_equal(moved[certain], expected[certain])
        assert certain.mean() > 0.9 or certain.size < 10


def test_order_threads_and_a_strange_memory_layout_do_not_matter() -> None:
    payloads = make_payloads(4)
    digests = set()
    for order in itertools.permutations(range(4)):
        parameters = make_parameters()
        optimizer = DistroOptimizer(reversed(list(parameters.items())), DistroConfig(weight_decay=0.1))
        optimizer.apply([payloads[i] for i in order], LR)
        digests.add(optimizer.model_digest())
    torch.set_num_threads(2)
    parameters = make_parameters()
    parameters["w"].data = parameters["w"].data.t().contiguous().t()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(weight_decay=0.1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        optimizer.apply(payloads, LR)
    digests.add(optimizer.model_digest())
    assert len(digests) == 1


def test_many_messages_switch_to_dense_and_to_float64_without_a_seam() -> None:
    payloads = make_payloads(3) * 50
    digests = set()
    for _ in range(2):
        parameters = make_parameters()
        optimizer = DistroOptimizer(parameters.items(), DistroConfig())
        optimizer.apply(payloads, LR)
        digests.add(optimizer.model_digest())
        payloads.reverse()
    assert len(digests) == 1


def test_reduced_precision_asked_for_by_the_caller_changes_nothing() -> None:
    payloads = make_payloads(3)
    digests = []
    for precision in ("highest", "medium"):
        parameters = make_parameters()
        optimizer = DistroOptimizer(parameters.items(), DistroConfig())
        torch.set_float32_matmul_precision(precision)
        try:
            optimizer.apply(payloads, LR)
        finally:
            torch.set_float32_matmul_precision("highest")
        digests.append(optimizer.model_digest())
    assert digests[0] == digests[1]


def test_signed_zeros_of_untouched_weights_survive() -> None:
    weight = Parameter(torch.tensor([[0.0, -0.0], [1.0, -1.0]]).repeat(32, 32))
    optimizer = DistroOptimizer([("w", weight)], DistroConfig())
    before = weight.detach().clone()
    payload = optimizer.step(LR)  # no gradient at all: an empty message
    for payloads in ([payload], [payload] * 40):
        optimizer.apply(payloads, LR)
        assert torch.equal(torch.signbit(weight), torch.signbit(before))
        assert torch.equal(weight, before)


def test_no_payloads_do_nothing_at_all() -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(weight_decay=0.5))
    before = optimizer.model_digest()
    optimizer.apply([], LR)
    assert optimizer.model_digest() == before


def test_empty_tiles_are_not_moved() -> None:
    weight = Parameter(torch.randn(128, 64))
    optimizer = DistroOptimizer([("w", weight)], DistroConfig())
    weight.grad = torch.zeros_like(weight)
    weight.grad[3, 5] = 1.0
    payload = optimizer.step(LR)
    (message,) = decode_payload(optimizer.payload_layout, payload)
    assert np.abs(message.signs).sum(axis=1).tolist() == [8, 0]
    before = weight.detach().clone()
    optimizer.apply([payload], LR)
    assert torch.equal(weight[64:], before[64:])
    assert not torch.equal(weight[:64], before[:64])


def test_fewer_nonzero_coefficients_than_topk_send_just_those() -> None:
    weight = Parameter(torch.zeros(2, 2))
    config = DistroConfig(compression_topk=3, compression_chunk=2, step_levels=1)
    optimizer = DistroOptimizer([("w", weight)], config)
    weight.grad = torch.ones(2, 2)  # a constant tile: one coefficient
    (message,) = decode_payload(optimizer.payload_layout, optimizer.step(LR))
    assert message.signs.tolist() == [[1, 0, 0]]
    optimizer.apply([optimizer.state_dict()["pending"].numpy().tobytes()], LR)
    assert torch.equal(weight, torch.full((2, 2), -np.float32(LR)))


def test_sent_coefficients_are_zero_in_momentum_and_the_rest_is_kept() -> None:
    weight = Parameter(torch.zeros(64, 64))
    optimizer = DistroOptimizer([("w", weight)], DistroConfig(clip_grad_norm=None, compression_decay=0.5))
    weight.grad = torch.randn(64, 64)
    full = transform(weight.grad.double().numpy()).reshape(-1)
    (message,) = decode_payload(optimizer.payload_layout, optimizer.step(LR))
    momentum = optimizer.state_dict()["momentum"].numpy()
    sent = message.positions[0]
    assert (momentum[sent] == 0).all()
    assert np.allclose(np.delete(momentum, sent), np.delete(full, sent), atol=1e-5)
    weight.grad = None
    optimizer.step(LR)
    assert np.count_nonzero(optimizer.state_dict()["momentum"]) == 4096 - 16


def test_a_bad_payload_among_good_ones_changes_nothing() -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(weight_decay=0.1))
    payloads = make_payloads(2)
    before = optimizer.model_digest()
    with pytest.raises(PayloadError):
        optimizer.apply([payloads[0], payloads[1][:-1]], LR)
    with pytest.raises(PayloadError):
        optimizer.check_payload(b"")
    assert optimizer.model_digest() == before


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_gradients_that_are_not_finite_change_nothing(bad: float) -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(clip_grad_norm=None))
    fill_gradients(parameters, 1)
    optimizer.step(LR)
    state = optimizer.state_dict()
    grad = parameters["bias"].grad
    assert grad is not None
    grad[7] = bad
    with pytest.raises(NonFiniteGradientError):
        optimizer.step(LR)
    assert torch.equal(optimizer.state_dict()["momentum"], state["momentum"])
    assert torch.equal(optimizer.state_dict()["pending"], state["pending"])


def test_saving_and_loading_in_the_middle_continues_exactly() -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig())
    for step in range(2):
        fill_gradients(parameters, step)
        optimizer.step(LR)
    state = optimizer.state_dict()
    twins = make_parameters()
    twin = DistroOptimizer(twins.items(), DistroConfig())
    twin.load_state_dict(state)
    results = []
    for one, its in ((optimizer, parameters), (twin, twins)):
        with one.lookahead(LR):
            looked = snapshot(its)
        fill_gradients(its, 9)
        results.append((looked, one.step(LR)))
    assert results[0] == results[1]
    other = DistroOptimizer(make_parameters().items(), DistroConfig(compression_topk=4))
    with pytest.raises(DistroError, match="another model"):
        other.load_state_dict(state)


def test_reset_forgets_momentum_and_pending() -> None:
    parameters = make_parameters()
    optimizer = DistroOptimizer(parameters.items(), DistroConfig())
    fill_gradients(parameters, 1)
    first = optimizer.step(LR)
    optimizer.reset()
    assert not optimizer.state_dict()["momentum"].any()
    assert len(optimizer.state_dict()["pending"]) == 0
    assert optimizer.step(LR) == first


def test_tied_parameters_count_once_and_frozen_ones_stay() -> None:
    shared, frozen = Parameter(torch.randn(64, 64)), Parameter(torch.randn(64, 64), requires_grad=False)
    optimizer = DistroOptimizer([("head", shared), ("frozen", frozen), ("embed", shared)], DistroConfig())
    assert optimizer.payload_layout.num_tiles == 1
    shared.grad = torch.randn(64, 64)
    before, digest = frozen.clone(), optimizer.model_digest()
    optimizer.apply([optimizer.step(LR)], LR)
    assert torch.equal(frozen, before)
    assert optimizer.model_digest() != digest
    digest = optimizer.model_digest()
    frozen.data[0, 0] += 1
    assert optimizer.model_digest() != digest


def test_digest_sees_names_shapes_types_and_every_bit() -> None:
    def digest(name: str, data: Tensor) -> bytes:
        return DistroOptimizer([(name, Parameter(data))], DistroConfig()).model_digest()

    base = torch.zeros(2, 3)
    changed = base.clone()
    changed[1, 2] = -0.0
    digests = [
        digest("a", base),
        digest("b", base),
        digest("a", base.view(3, 2)),
        digest("a", base.bfloat16()),
        digest("a", base.half()),
        digest("a", changed),
    ]
    assert len(set(digests)) == len(digests)
    assert digest("a", torch.arange(6.0).view(3, 2).t()) == digest(
        "a", torch.tensor([[0.0, 2, 4], [1, 3, 5]])
    )


def test_unusable_parameters_and_configs_are_refused() -> None:
    weight = torch.randn(4, 4)
    for parameters, words in (
        ([], "No parameter"),
        ([("a", Parameter(weight, requires_grad=False))], "No parameter"),
        ([("a", Parameter(weight.double()))], "float64"),
        ([("a", Parameter(weight)), ("a", Parameter(weight.clone()))], "Two parameters"),
        ([("a", Parameter(weight)), ("b", Parameter(weight))], "same memory"),
    ):
        with pytest.raises(DistroError, match=words):
            DistroOptimizer(parameters, DistroConfig())
    for settings in (
        {"quantize_1bit": False},
        {"compression_decay": 1.0},
        {"compression_topk": 0},
        {"compression_topk": 65},
        {"compression_chunk": 0},
        {"clip_grad_norm": 0.0},
        {"weight_decay": -0.1},
    ):
        with pytest.raises(ConfigError, match=next(iter(settings))):
            DistroConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("lr", [-1e-3, math.nan, math.inf])
def test_learning_rates_must_be_numbers(lr: float) -> None:
    optimizer = DistroOptimizer(make_parameters().items(), DistroConfig())
    with pytest.raises(DistroError, match="learning rate"):
        optimizer.step(lr)
    with pytest.raises(DistroError, match="learning rate"):
        optimizer.apply([], lr)
    with pytest.raises(DistroError, match="learning rate"), optimizer.lookahead(lr):
        pass


def test_learning_rate_zero_is_a_standstill() -> None:
    parameters = make_parameters()
    parameters["w"].data[::2] = -0.0
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(weight_decay=0.1))
    before = optimizer.model_digest()
    fill_gradients(parameters, 0)
    optimizer.apply([optimizer.step(0.0), *make_payloads(2)], 0.0)
    assert optimizer.model_digest() == before


def test_sparse_gradients_are_refused() -> None:
    embedding = torch.nn.Embedding(8, 4, sparse=True)
    optimizer = DistroOptimizer(embedding.named_parameters(), DistroConfig())
    embedding(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(DistroError, match="Sparse"):
        optimizer.step(LR)
