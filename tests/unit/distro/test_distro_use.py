"""The optimizer used alone: groups of parameters, 16-bit weights, compiled models, saved state, memory."""

from __future__ import annotations

import hashlib
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from distro_tools import fill_gradients
from torch import Tensor, nn
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroError, DistroOptimizer, digest
from psyche_py.distro.digest import compute_model_digest

LR = 0.02


def make_parameters(dtype: torch.dtype = torch.float32) -> dict[str, Parameter]:
    generator = torch.Generator().manual_seed(3)
    shapes = {"a": (128, 128), "b": (128, 64), "c": (4096,), "d": (70,)}
    return {
        name: Parameter(torch.randn(shape, generator=generator).to(dtype)) for name, shape in shapes.items()
    }


def snapshot(named: dict[str, Parameter]) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in named.items()}


# -- groups --


def make_groups(named: dict[str, Parameter], **rates: float) -> list[Any]:
    """Two groups: "a" and "c" with ``rates``, "b" and "d" as configured."""
    return [
        {"params": [(name, named[name]) for name in ("a", "c")], **rates},
        {"params": [(name, named[name]) for name in ("b", "d")]},
    ]


def test_groups_scale_the_move_and_its_decay() -> None:
    plain, grouped = make_parameters(), make_parameters()
    config = DistroConfig(weight_decay=0.1, step_levels=1)
    one = DistroOptimizer(plain.items(), config)
    two = DistroOptimizer(make_groups(grouped, lr_scale=0.5, weight_decay=0.0), config)
    assert one.payload_layout == two.payload_layout
    before = snapshot(plain)
    fill_gradients(plain, 0)
    payload = one.step(LR)
    one.apply([payload], LR)
    two.apply([payload], LR)
    factor = np.float32(1 - LR * 0.1).item()
    for name in ("a", "c"):
        signs = torch.sign(before[name] * factor - plain[name])
        assert torch.equal(grouped[name], before[name] - signs * np.float32(LR * 0.5).item())
    for name in ("b", "d"):
        assert torch.equal(grouped[name], plain[name])


@pytest.mark.parametrize(("is_lr_outside", "factor"), [(False, 2.0), (True, 1.0)])
def test_groups_scale_what_enters_momentum_where_the_rate_does(is_lr_outside: bool, factor: float) -> None:
    plain, grouped = make_parameters(), make_parameters()
    config = DistroConfig(clip_grad_norm=None, compression_topk=1, lr_outside_momentum=is_lr_outside)
    one, two = (
        DistroOptimizer(plain.items(), config),
        DistroOptimizer(make_groups(grouped, lr_scale=0.5), config),
    )
    for named in (plain, grouped):
        fill_gradients(named, 1)
    fill = {"a", "c"}
    for name in fill:  # half the rate on twice the gradient is the same
        assert grouped[name].grad is not None
        grouped[name].grad *= factor
    assert one.step(LR) == two.step(LR)
    assert torch.equal(one.state_dict()["momentum"], two.state_dict()["momentum"])


def test_a_group_with_rate_zero_stands_still() -> None:
    named = make_parameters()
    optimizer = DistroOptimizer(make_groups(named, lr_scale=0.0), DistroConfig(weight_decay=0.5))
    before = snapshot(named)
    fill_gradients(named, 0)
    optimizer.apply([optimizer.step(LR)], LR)
    assert {name for name, p in named.items() if not torch.equal(p, before[name])} == {"b", "d"}


def test_groups_are_listed_and_checked() -> None:
    named = make_parameters()
    optimizer = DistroOptimizer(make_groups(named, lr_scale=2.0), DistroConfig(weight_decay=0.1))
    assert optimizer.param_groups == [
        {"names": ["a", "c"], "lr_scale": 2.0, "weight_decay": 0.1},
        {"names": ["b", "d"], "lr_scale": 1.0, "weight_decay": 0.1},
    ]
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(DistroError, match="must not be negative"):
            DistroOptimizer(make_groups(named, lr_scale=bad), DistroConfig())
    twice = [{"params": [("a", named["a"])]}, {"params": [("a", named["b"])]}]
    with pytest.raises(DistroError, match="Two parameters"):
        DistroOptimizer(twice, DistroConfig())  # type: ignore[arg-type]
    with pytest.raises(DistroError, match="no name"):
        DistroOptimizer([("", named["a"])], DistroConfig())


# -- 16-bit weights --


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_weights_keep_a_float32_momentum(dtype: torch.dtype) -> None:
    """Momentum takes in gradients far smaller than 16 bits could add to it."""
    named = make_parameters(dtype)
    config = DistroConfig(clip_grad_norm=None, compression_decay=0.999, compression_topk=1)
    optimizer = DistroOptimizer(named.items(), config)
    assert optimizer.state_dict()["momentum"].dtype == torch.float32
    first = torch.randn(128, 128)
    momenta = []
    for step in range(40):
        named["a"].grad = (first * (1.0 if step == 0 else 2e-3)).to(dtype)
        for name in ("b", "c", "d"):
            named[name].grad = None
        optimizer.step(1.0)
        momenta.append(optimizer.state_dict()["momentum"])
    ratio = momenta[-1] / momenta[0]
    kept = ratio[torch.isfinite(ratio) & (ratio != 0)].median()  # what was sent is 0, or x / 0
    grown = 0.999**39 + 2e-3 * sum(0.999**i for i in range(39))
    assert kept == pytest.approx(grown, rel=2e-3)
    assert grown > 0.999**39 * 1.05


def test_16_bit_replicas_agree_and_the_lookahead_leaves_them_alone() -> None:
    digests = set()
    for order in (1, -1):
        named = make_parameters(torch.bfloat16)
        optimizer = DistroOptimizer(named.items(), DistroConfig(weight_decay=0.1))
        payloads = []
        for seed in range(3):
            fill_gradients(named, seed)
            payloads.append(optimizer.step(LR))
        before = snapshot(named)
        with optimizer.lookahead(LR):
            assert all(p.dtype == torch.bfloat16 for p in named.values())
            assert not torch.equal(named["a"], before["a"])
        assert all(torch.equal(named[name], before[name]) for name in named)
        optimizer.apply(payloads[::order], LR)
        digests.add(optimizer.model_digest())
    assert len(digests) == 1


# -- compiled models --


def train(model: nn.Module, run: nn.Module, num_steps: int) -> tuple[bytes, list[bytes]]:
    optimizer = DistroOptimizer(model.named_parameters(), DistroConfig(compression_chunk=16))
    generator = torch.Generator().manual_seed(0)
    payloads: list[bytes] = []
    for step in range(num_steps):
        if step >= 2:
            optimizer.apply([payloads[step - 2]], LR)
        optimizer.zero_grad()
        with optimizer.lookahead(LR):
            x = torch.randn(32, 16, generator=generator)
            nn.functional.mse_loss(run(x), x.sum(1, keepdim=True)).backward()
        payloads.append(optimizer.step(LR))
    return optimizer.model_digest(), payloads


def test_compiled_models_see_lookahead_and_updates(recwarn: pytest.WarningsRecorder) -> None:
    """A compiled model computes with the weights that are in its parameters at the time."""
    results = []
    for is_compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        run = torch.compile(model, backend="aot_eager") if is_compiled else model
        results.append(train(model, run, 6))  # type: ignore[arg-type]
    assert results[0] == results[1]


def test_the_compiled_wrapper_gives_other_names_but_the_same_update() -> None:
    """torch.compile prefixes names with _orig_mod: a run must take the names of the model itself."""
    model = nn.Linear(64, 64)
    compiled = torch.compile(model, backend="eager")
    own = DistroOptimizer(model.named_parameters(), DistroConfig()).payload_layout
    wrapped = DistroOptimizer(compiled.named_parameters(), DistroConfig()).payload_layout  # type: ignore[attr-defined]
    assert own.digest != wrapped.digest
    assert own.num_bytes == wrapped.num_bytes


# -- state --


def test_state_survives_a_file_and_a_strict_loader() -> None:
    named = make_parameters()
    optimizer = DistroOptimizer(named.items(), DistroConfig())
    for seed in range(3):
        fill_gradients(named, seed)
        payload = optimizer.step(LR)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    twins = make_parameters()
    twin = DistroOptimizer(twins.items(), DistroConfig())
    twin.load_state_dict(torch.load(file, weights_only=True))
    assert twin.state_dict()["pending"].numpy().tobytes() == payload
    for one, its in ((optimizer, named), (twin, twins)):
        fill_gradients(its, 9)
        one.apply([payload], LR)
    assert optimizer.step(LR) == twin.step(LR)
    assert optimizer.model_digest() == twin.model_digest()


def test_states_that_do_not_fit_change_nothing() -> None:
    named = make_parameters()
    optimizer = DistroOptimizer(named.items(), DistroConfig())
    fill_gradients(named, 0)
    optimizer.step(LR)
    state = optimizer.state_dict()
    broken = dict(state, pending=state["pending"][:-1])
    with pytest.raises(DistroError):
        optimizer.load_state_dict(broken)  # type: ignore[arg-type]
    with pytest.raises(DistroError, match="another model"):
        optimizer.load_state_dict(dict(state, momentum=state["momentum"][:-1]))  # type: ignore[arg-type]
    after = optimizer.state_dict()
    assert all(torch.equal(after[key], state[key]) for key in ("momentum", "pending"))  # type: ignore[literal-required]


# -- digest --


def test_the_digest_is_a_tree_that_threads_may_share(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = {"w": torch.randn(3, 2000), "b": torch.randn(5)}
    monkeypatch.setattr(digest, "LEAF_BYTES", 4096)
    one = compute_model_digest(tensors)
    torch.set_num_threads(3)
    assert compute_model_digest(tensors) == one
    hasher = hashlib.sha256(b"psyche-py/model-digest/3" + bytes(4) + (2).to_bytes(4, "little"))
    leaves = []
    for name in ("b", "w"):
        data = tensors[name]
        hasher.update(bytes([1, 0]) + name.encode() + bytes([0, data.dim()]))
        hasher.update(b"".join(x.to_bytes(8, "little") for x in data.shape))
        raw = data.numpy().tobytes()
        leaves += [raw[i : i + 4096] for i in range(0, len(raw), 4096)]
    for leaf in leaves:
        hasher.update(hashlib.sha256(b"\0" + leaf).digest())
    assert one == hasher.digest()


# -- memory --


def test_nothing_as_large_as_a_weight_is_allocated_after_the_first_cycle() -> None:
    named = {f"w{i}": Parameter(torch.randn(1024, 1024)) for i in range(4)}
    optimizer = DistroOptimizer(named.items(), DistroConfig(weight_decay=0.1))
    fill_gradients(named, 0)

    def run() -> None:
        payloads = [optimizer.step(LR) for _ in range(4)]
        with optimizer.lookahead(LR):
            pass
        optimizer.apply(payloads, LR)

    run()
    held = optimizer._workspace.num_bytes
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
    ) as profile:
        run()
    largest = max(event.self_cpu_memory_usage for event in profile.events() or [])
    assert 0 < largest < 4 * 1024 * 1024 // 2
    assert optimizer._workspace.num_bytes == held
    assert held < 16 << 20
