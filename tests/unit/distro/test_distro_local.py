"""LocalOptimizer: a round against a naive reference, replicas bit for bit, what is private and refused."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from fractions import Fraction

import numpy as np
import pytest
import torch
from distro_tools import cut, get_matrix
from torch.nn import Parameter

from psyche_py.distro import (
    DistroConfig,
    DistroError,
    DistroOptimizer,
    LocalOptimizer,
    NonFiniteGradientError,
    PayloadError,
    make_optimizer,
)
from psyche_py.distro.layout import METHOD_LOCAL_STEPS
from psyche_py.distro.magnitudes import MAGNITUDES, UNIT, choose_codes, count_units
from psyche_py.distro.outer import CAP
from psyche_py.distro.payload import decode_payload
from psyche_py.errors import ConfigError

# a matrix of whole tiles, one padded at both edges, and two that share the pool
SHAPES = {"a": (128, 64), "b": (100, 130), "n": (70,), "s": (5, 3)}
STEPS = 3
LR = 0.01
CONFIG = DistroConfig(local_steps=STEPS, compression_topk=8, compression_decay=0.9)

Named = dict[str, Parameter]


def make_parameters(seed: int = 0) -> Named:
    generator = torch.Generator().manual_seed(seed)
    return {name: Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}


def make_local(named: Named, config: DistroConfig = CONFIG) -> LocalOptimizer:
    return LocalOptimizer(named.items(), config)


def draw_gradients(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 + seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


def take_inner_steps(optimizer: LocalOptimizer, named: Named, seed: int, num: int = STEPS) -> None:
    for i in range(num):
        for name, gradient in draw_gradients(100 * seed + i).items():
            named[name].grad = gradient
        optimizer.inner_step(LR)
        optimizer.zero_grad()


def work(
    optimizer: LocalOptimizer, named: Named, seed: int, received: tuple[bytes, ...] = (), num: int = STEPS
) -> bytes:
    """A round: ``num`` steps with gradients that follow from the seed."""
    with optimizer.lookahead(LR, received):
        take_inner_steps(optimizer, named, seed, num)
    return optimizer.step(LR)


def copy_weights(named: Named) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in named.items()}


def make_payloads(num: int, config: DistroConfig = CONFIG) -> list[bytes]:
    payloads = []
    for seed in range(num):
        named = make_parameters()
        payloads.append(work(make_local(named, config), named, seed))
    return payloads


def run_adamw(named: Named, seed: int, clip: float | None, weight_decay: float) -> dict[str, np.ndarray]:
    """How far torch's AdamW goes in one round."""
    before = copy_weights(named)
    ours = (CONFIG.adam_beta1, CONFIG.adam_beta2)
    optimizer = torch.optim.AdamW(
        named.values(), LR, betas=ours, eps=CONFIG.adam_eps, weight_decay=weight_decay
    )
    for i in range(STEPS):
        for name, gradient in draw_gradients(100 * seed + i).items():
            named[name].grad = gradient
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(named.values(), clip)
        optimizer.step()
    return {name: (before[name] - p.detach()).double().numpy() for name, p in named.items()}


@pytest.mark.parametrize(("clip", "weight_decay"), [(1.0, 0.0), (None, 0.1)])
def test_a_message_is_the_largest_parts_of_the_way_that_torch_s_adamw_goes(
    clip: float | None, weight_decay: float
) -> None:
    config = DistroConfig(
        local_steps=STEPS, compression_topk=8, clip_grad_norm=clip, weight_decay=weight_decay
    )
    named, twins = make_parameters(), make_parameters()
    optimizer = make_local(named, config)
    message = decode_payload(optimizer.payload_layout, work(optimizer, named, 1))
    ways = run_adamw(twins, 1, clip, weight_decay)
    for group, content in zip(optimizer.payload_layout.groups, message, strict=True):
        assert content.magnitudes is not None
        for slot in group.slots:
            tiles = cut(slot, get_matrix(slot, ways)).reshape(slot.num_tiles, -1)
            for number, tile in enumerate(tiles, slot.first_tile):
                sent, signs = content.positions[number], content.signs[number]
                least = np.sort(np.abs(tile))[-group.topk]
                assert (np.abs(tile[sent]) >= least * (1 - 1e-4)).all()
                assert (np.sign(tile[sent]) == signs).all()
                magnitude = MAGNITUDES[content.magnitudes[number]] * UNIT
                mean = np.abs(tile[sent]).mean()
                assert magnitude == pytest.approx(mean, rel=2 ** (1 / 16) - 1 + 1e-3), "the nearest code"


def test_what_is_not_sent_stays_and_decays() -> None:
    named = make_parameters()
    optimizer = make_local(named)
    work(optimizer, named, 1)
    unsent = optimizer.state_dict()["unsent"]
    layout = optimizer.payload_layout
    second = work(optimizer, named, 1, num=0)  # no way at all: only what is left
    for group, content in zip(layout.groups, decode_payload(layout, second), strict=True):
        assert content.magnitudes is not None
        buffer = unsent[group.first_element :][: group.num_stored].numpy() * np.float32(0.9)
        for slot in group.slots:
            matrix = buffer[slot.first_element :][: slot.num_tiles * group.tile_size]
            tiles = cut(slot, matrix.reshape(slot.padded_shape)).reshape(slot.num_tiles, -1)
            for number, tile in enumerate(tiles, slot.first_tile):
                picked = np.abs(tile[content.positions[number]])
                assert picked.min() >= np.sort(np.abs(tile))[-group.topk] * (1 - 1e-6)


def compute_move(optimizer: LocalOptimizer, payloads: list[bytes], lr: float) -> Mapping[str, np.ndarray]:
    """The mean of all messages in exact fractions, by tensor, rounded as the update rounds it."""
    layout = optimizer.payload_layout
    limit = count_units(CAP * STEPS * lr)
    moves: dict[str, np.ndarray] = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    factor = UNIT / len(payloads)
    for i, group in enumerate(layout.groups):
        for slot in group.slots:
            sums = np.zeros(slot.padded_shape, dtype=object)
            for payload in payloads:
                content = decode_payload(layout, payload)[i]
                assert content.magnitudes is not None
                for tile in range(slot.num_tiles):
                    number = slot.first_tile + tile
                    band, across = divmod(tile, slot.across)
                    units = min(int(MAGNITUDES[content.magnitudes[number]]), limit)
                    for position, sign in zip(
                        content.positions[number].tolist(), content.signs[number].tolist(), strict=True
                    ):
                        row, col = divmod(position, slot.width)
                        sums[band * slot.height + row, across * slot.width + col] += sign * units
            exact = sums[: slot.rows, : slot.cols].reshape(-1)
            for member in slot.members:
                own = exact[member.first : member.first + member.num_elements]
                rounded = [np.float32(float(Fraction(int(x)) * Fraction(factor))) for x in own]
                moves[member.name] = np.array(rounded, np.float32).reshape(member.shape)
    return moves


@pytest.mark.parametrize("lr", [LR, LR / 100])
def test_the_outer_step_is_the_mean_in_exact_numbers_and_is_capped(lr: float) -> None:
    payloads = make_payloads(3)
    named = make_parameters()
    before = copy_weights(named)
    optimizer = make_local(named)
    optimizer.apply(payloads, lr)
    moves = compute_move(optimizer, payloads, lr)
    for name, p in named.items():
        expected = before[name].numpy() - moves[name]
        assert p.detach().numpy().tobytes() == expected.tobytes()
        assert np.abs(moves[name]).max() <= CAP * STEPS * lr
    assert any(move.any() for move in moves.values())


def test_replicas_are_bit_identical_whatever_the_order_and_a_restart() -> None:
    assert train_replicas(restarts=False) == train_replicas(restarts=True)


def test_threads_and_order_do_not_change_an_update() -> None:
    payloads = make_payloads(4)
    usual = torch.get_num_threads()
    digests = set()
    try:
        for threads in (1, 2):
            for order in (payloads, payloads[::-1], payloads[2:] + payloads[:2]):
                torch.set_num_threads(threads)
                optimizer = make_local(make_parameters())
                optimizer.prepare(payloads)  # decoded ahead, in this order or another
                optimizer.apply(order, LR)
                digests.add(optimizer.model_digest())
    finally:
        torch.set_num_threads(usual)
    assert len(digests) == 1
    assert digests != {make_local(make_parameters()).model_digest()}


def train_replicas(*, restarts: bool) -> list[bytes]:
    """Digest of every round of three workers a round late; each applies in an order of its own."""
    models = [make_parameters() for _ in range(3)]
    workers = [make_local(named) for named in models]
    rounds: list[list[bytes]] = []
    digests = []
    for number in range(6):
        if restarts and number == 3:
            for i, worker in enumerate(workers):
                models[i], workers[i] = restart(worker, models[i])
        due = rounds[number - 2] if number >= 2 else []
        for i, worker in enumerate(workers):
            worker.apply(due[i:] + due[:i], LR)
        (digest,) = {worker.model_digest() for worker in workers}
        digests.append(digest)
        pending = rounds[number - 1] if number else []
        rounds.append(
            [
                work(worker, models[i], 10 * number + i, tuple(x for j, x in enumerate(pending) if j != i))
                for i, worker in enumerate(workers)
            ]
        )
    return [*digests, *(payload for payloads in rounds for payload in payloads)]


def restart(worker: LocalOptimizer, named: Named) -> tuple[Named, LocalOptimizer]:
    """Another process, with weights and state from disk."""
    file = io.BytesIO()
    torch.save(worker.state_dict(), file)
    file.seek(0)
    copies = {name: Parameter(p.detach().clone()) for name, p in named.items()}
    other = make_local(copies)
    other.load_state_dict(torch.load(file, weights_only=True))
    return copies, other


def test_a_round_moves_no_weight_and_one_that_was_left_has_not_happened() -> None:
    named, twins = make_parameters(), make_parameters()
    optimizer, other = make_local(named), make_local(twins)
    before = optimizer.model_digest()
    first = work(optimizer, named, 1)
    assert optimizer.model_digest() == before
    assert first == work(other, twins, 1)
    state = optimizer.state_dict()
    with pytest.raises(RuntimeError, match="stop"), optimizer.lookahead(LR):
        take_inner_steps(optimizer, named, 2)
        raise RuntimeError("stop")
    assert optimizer.model_digest() == before
    left = optimizer.state_dict()
    assert all(torch.equal(left[key], state[key]) for key in ("unsent", "moments", "pending"))  # type: ignore[literal-required]
    assert left["num_steps"] == state["num_steps"] == STEPS
    assert work(optimizer, named, 3) == work(other, twins, 3)


def test_a_forgotten_batch_leaves_the_moments_and_sends_what_is_left() -> None:
    named, twins = make_parameters(), make_parameters()
    optimizer, other = make_local(named), make_local(twins)
    for each, own in ((optimizer, named), (other, twins)):
        work(each, own, 1)
    with optimizer.lookahead(LR):
        take_inner_steps(optimizer, named, 2)
    optimizer.forget_batch()
    assert optimizer.step(LR) == other.step(LR)
    assert work(optimizer, named, 3) == work(other, twins, 3)


def test_steps_begin_where_the_pending_messages_lead_to() -> None:
    named, twins = make_parameters(), make_parameters()
    optimizer = make_local(named)
    others = make_payloads(2)
    own = work(optimizer, named, 7)
    with optimizer.lookahead(LR, others):
        seen = copy_weights(named)
    make_local(twins).apply([*others, own], LR)
    for name, p in twins.items():
        assert torch.equal(p, seen[name])


def test_a_gradient_that_is_not_finite_changes_nothing() -> None:
    named = make_parameters()
    optimizer = make_local(named)
    with optimizer.lookahead(LR):
        take_inner_steps(optimizer, named, 1)
        seen = copy_weights(named)
        named["a"].grad = torch.full(SHAPES["a"], math.inf)
        with pytest.raises(NonFiniteGradientError):
            optimizer.inner_step(LR)
        assert all(torch.equal(named[name], x) for name, x in seen.items())


def test_a_learning_rate_of_zero_moves_and_sends_nothing() -> None:
    named = make_parameters()
    optimizer = make_local(named)
    with optimizer.lookahead(0.0):
        for name, gradient in draw_gradients(1).items():
            named[name].grad = gradient
        optimizer.inner_step(0.0)
    payload = optimizer.step(0.0)
    before = optimizer.model_digest()
    assert all(not content.signs.any() for content in decode_payload(optimizer.payload_layout, payload))
    optimizer.apply(make_payloads(1), 0.0)
    assert optimizer.model_digest() == before
    optimizer.apply([payload], LR)
    assert optimizer.model_digest() == before


def test_rates_of_groups_hold_for_steps_and_for_the_cap() -> None:
    named = {name: Parameter(torch.zeros(64, 64)) for name in ("slow", "fast", "still")}
    scales = {"slow": 1.0, "fast": 4.0, "still": 0.0}
    groups = [{"params": [(name, named[name])], "lr_scale": scale} for name, scale in scales.items()]
    config = DistroConfig(local_steps=2, compression_topk=64, clip_grad_norm=None)
    optimizer = LocalOptimizer(groups, config)  # type: ignore[arg-type]
    with optimizer.lookahead(LR):
        for p in named.values():
            p.grad = torch.ones(64, 64)
        optimizer.inner_step(LR)
        seen = {name: float(p.detach().abs().max()) for name, p in named.items()}
    assert seen["fast"] == pytest.approx(4 * seen["slow"], rel=1e-6)
    assert seen["slow"] == pytest.approx(LR, rel=1e-6)
    payload = optimizer.step(LR)
    optimizer.apply([payload], 1e-6)
    assert float(named["fast"].detach().abs().max()) == pytest.approx(CAP * 2 * 1e-6 * 4, rel=1e-3)
    assert float(named["slow"].detach().abs().max()) == pytest.approx(CAP * 2 * 1e-6, rel=1e-3)
    assert not named["still"].detach().any()


def test_each_kind_refuses_the_other_s_payloads() -> None:
    named, twins = make_parameters(), make_parameters()
    local, plain = make_local(named), DistroOptimizer(twins.items(), DistroConfig())
    own, other = work(local, named, 1), plain.step(LR)
    assert own[6:8] == METHOD_LOCAL_STEPS.to_bytes(2, "little")
    # as long as ours, so that the header is what is looked at
    fitted = other[:16] + bytes(len(own) - 16)
    before = local.model_digest(), plain.model_digest()
    for optimizer, payload in ((local, fitted), (local, other), (plain, own)):
        for refuse in (optimizer.check_payload, lambda x, o=optimizer: o.apply([x], LR)):
            with pytest.raises(PayloadError):
                refuse(payload)
    with pytest.raises(PayloadError, match=r"method 2 \(local steps\)"):
        local.check_payload(fitted)
    with pytest.raises(PayloadError, match="local steps"):
        make_local(make_parameters(), DistroConfig(local_steps=STEPS + 1)).check_payload(own)
    assert before == (local.model_digest(), plain.model_digest())


def test_the_configuration_chooses_the_optimizer_and_each_refuses_the_other_s() -> None:
    named = make_parameters().items()
    assert isinstance(make_optimizer(named, CONFIG), LocalOptimizer)
    assert isinstance(make_optimizer(named, DistroConfig()), DistroOptimizer)
    with pytest.raises(ConfigError, match="local_steps"):
        DistroOptimizer(named, CONFIG)
    with pytest.raises(ConfigError, match="local_steps"):
        LocalOptimizer(named, DistroConfig())
    for bad in ({"local_steps": 0}, {"local_steps": 65}, {"adam_beta1": 1.0}, {"adam_eps": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            DistroConfig(**bad)  # type: ignore[arg-type]


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(DistroError, match="float32"):
        LocalOptimizer([("w", Parameter(torch.zeros(64, 64, dtype=torch.bfloat16)))], CONFIG)
    named = make_parameters()
    optimizer = make_local(named)
    with pytest.raises(DistroError, match="inside of a lookahead"):
        optimizer.inner_step(LR)
    other = LocalOptimizer([("w", Parameter(torch.zeros(64, 64)))], CONFIG)
    with pytest.raises(DistroError, match="another model"):
        optimizer.load_state_dict(other.state_dict())


def test_magnitudes_ascend_by_ninths_and_the_nearest_below_the_limit_is_taken() -> None:
    assert MAGNITUDES[0] == 0
    assert (np.diff(MAGNITUDES) > 0).all()
    steps = MAGNITUDES[2:] / MAGNITUDES[1:-1]
    assert np.allclose(steps, 2 ** (1 / 8), rtol=4e-3)
    assert int(MAGNITUDES[-1]) * 4096 < 2**53
    values = torch.from_numpy((MAGNITUDES * UNIT).astype(np.float32))
    assert choose_codes(values, 1.0)[1:].tolist() == list(range(1, 256))
    assert choose_codes(values, 1.0)[0] == 0
    assert choose_codes(torch.tensor([5.0, 1e-12]), 1.0).tolist() == [255, 0]
    limit = float(MAGNITUDES[100] * UNIT)
    assert choose_codes(torch.tensor([0.5]), limit).tolist() == [100]
    assert choose_codes(torch.tensor([0.5]), 0.0).tolist() == [0]
    assert choose_codes(torch.tensor([5.0]), 1e30).tolist() == [255]
    assert np.minimum(MAGNITUDES, count_units(1e30)).tolist() == MAGNITUDES.tolist()
