"""The Triton kernels without a GPU: interpreted, compiled for one, and when they are chosen."""

from __future__ import annotations

import importlib
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer, triton_choice
from psyche_py.distro.layout import Member, Slot, TileGroup
from psyche_py.distro.steps import StepRule

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
GPU = torch.device("cuda:3")  # only a name here; nothing touches it
HOPPER = 90


def make_slot(height: int, width: int) -> Slot:
    rows, cols = 2 * height - 1, 2 * width - 3
    return Slot("w", (Member("w", (rows, cols), 0),), rows, cols, height, width, 0, 0)


def make_group(height: int, width: int, topk: int) -> TileGroup:
    slot = make_slot(height, width)
    return TileGroup(height, width, topk, (slot,), slot.num_tiles, 0, 0)


# -- what they compute --


def test_kernels_in_the_interpreter() -> None:
    """``triton_interpreted.py`` in a process of its own: the switch to the interpreter is read at import."""
    pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be interpreted")
    paths = [str(ROOT), str(ROOT / "tests" / "support"), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(HERE / "triton_interpreted.py")]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=380)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]
    assert re.search(r"\d\d passed", result.stdout), result.stdout


# -- what they are compiled to --


class Launch(NamedTuple):
    """A kernel, and with what it was launched."""

    kernel: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class Recorder:
    """Takes the place of a kernel."""

    def __init__(self, kernel: Any, launches: list[Launch]) -> None:
        self._kernel, self._launches = kernel, launches

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        assert len(grid) == 1
        return lambda *args, **kw: self._launches.append(Launch(self._kernel, args, kw))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """What ``triton_launch`` launches, which is recorded and not run."""
    pytest.importorskip("triton", reason="triton is not installed: its kernels cannot be compiled")
    from psyche_py.distro import triton_kernels

    found: list[Launch] = []
    for name in ("fold_tiles", "move_tiles"):
        monkeypatch.setattr(triton_kernels, name, Recorder(getattr(triton_kernels, name), found))
    return found


def compile_for_hopper(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, **changed: Any
) -> str:
    """SASS for compute capability 9.0; skips where the compiler or the disassembler cannot be had."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # a cached kernel would prove nothing
    if "nvidia" not in triton.backends.backends:
        pytest.skip("this triton has no compiler for NVIDIA's GPUs")
    names = [name for name in launch.kernel.arg_names if name not in launch.keywords]
    signature = {name: describe(x) for name, x in zip(names, launch.arguments, strict=True)}
    constants = {name: x for name, x in launch.keywords.items() if name.isupper()}
    options = {name: x for name, x in launch.keywords.items() if not name.isupper()} | changed
    source = ASTSource(launch.kernel, signature | dict.fromkeys(constants, "constexpr"), constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", HOPPER, 32), options=options)
    sass = compiled.asm["sass"]
    assert "EXIT" in sass
    return str(sass)


def describe(argument: Any) -> str:
    """Triton's name for the type of an argument."""
    if isinstance(argument, torch.Tensor):
        sizes = {torch.float32: "fp32", torch.float16: "fp16", torch.int16: "i16", torch.int8: "i8"}
        return "*" + sizes[argument.dtype]
    return "i32" if isinstance(argument, int) else "fp32"


def count(sass: str, operation: str) -> int:
    return len(re.findall(rf"\b{operation}\b", sass))


def launch_move(height: int, width: int, messages: int, topk: int, dtype: torch.dtype) -> tuple[int, bool]:
    from psyche_py.distro import triton_launch

    group = make_group(height, width, topk)
    slot = group.slots[0]
    block = triton_choice.choose_block(slot, messages * topk)
    shape = (slot.num_tiles, messages, topk)
    votes = torch.zeros(shape, dtype=torch.int16), torch.zeros(shape, dtype=torch.int8)
    weights = torch.zeros(slot.rows, slot.cols, dtype=dtype)
    rule = StepRule(16, 0.25, torch.float32)
    triton_launch.move_slot(weights, weights, slot, group, *votes, rule, 0.5, 0.75, *block)
    return block


MOVES = [
    (64, 64, 4, 8, torch.float32),
    (64, 64, 4, 8, torch.bfloat16),
    (64, 64, 4, 8, torch.float16),
    (64, 64, 2, 8, torch.float32),
    (64, 64, 30, 8, torch.float32),
    (64, 64, 30, 8, torch.bfloat16),
    (64, 64, 30, 8, torch.float16),
    (32, 32, 4, 4, torch.float32),
    (32, 32, 30, 4, torch.bfloat16),
    (16, 64, 4, 5, torch.bfloat16),
    (16, 16, 4, 1, torch.float32),
    (16, 16, 60, 1, torch.float16),
]


@pytest.mark.parametrize(("height", "width", "messages", "topk", "dtype"), MOVES)
def test_no_multiplication_of_a_weight_is_fused(
    height: int,
    width: int,
    messages: int,
    topk: int,
    dtype: torch.dtype,
    launches: list[Launch],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine code holds as many fused operations as the exact products need, and not one more."""
    block, is_dense = launch_move(height, width, messages, topk, dtype)
    (launch,) = launches
    assert launch.keywords["enable_fp_fusion"] is False
    sass = compile_for_hopper(launch, tmp_path, monkeypatch)
    depth = height + width if is_dense else block
    assert count(sass, "FFMA") == height * width * depth // (32 * launch.keywords["num_warps"])
    assert not re.search(r"\bH[GM]MA\b|\bI[GM]MA\b", sass)  # no tensor cores, which have no float32
    assert not re.search(r"\bF(MUL|ADD|FMA)\.FTZ", sass)  # numbers below the normal ones stay


def test_fusing_would_be_seen(
    launches: list[Launch], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same kernel with fusion allowed has more fused operations: the test above can fail."""
    block, _ = launch_move(16, 16, 4, 1, torch.float32)
    sass = compile_for_hopper(launches[0], tmp_path, monkeypatch, enable_fp_fusion=True)
    assert count(sass, "FFMA") > 16 * 16 * block // 128


@pytest.mark.parametrize(
    ("height", "width", "topk", "dtype"),
    [
        (64, 64, 8, torch.float32),
        (64, 64, 64, torch.bfloat16),
        (64, 64, 1, None),
        (64, 32, 8, torch.float16),
        (32, 32, 4, torch.float32),
        (16, 64, 3, torch.bfloat16),
        (16, 16, 20, torch.float16),
    ],
)
def test_folding_compiles(
    height: int,
    width: int,
    topk: int,
    dtype: torch.dtype | None,
    launches: list[Launch],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products in float32, without tensor cores; half of them where even and odd frequencies are split."""
    from psyche_py.distro import triton_launch

    slot = make_slot(height, width)
    gradient = None if dtype is None else torch.zeros(slot.rows, slot.cols, dtype=dtype)
    positions, signs = (torch.zeros(slot.num_tiles, topk, dtype=x) for x in (torch.int16, torch.int8))
    momentum = torch.zeros(slot.padded_shape)
    triton_launch.fold_slot(momentum, gradient, slot, 0.999, 1.0, positions, signs)
    (launch,) = launches
    sass = compile_for_hopper(launch, tmp_path, monkeypatch)
    multiplications = height * width * (height + width) // (32 * launch.keywords["num_warps"])
    if dtype is None:
        multiplications = 0
    elif min(height, width) >= 32:
        multiplications //= 2
    assert count(sass, "FFMA") == multiplications
    assert not re.search(r"\bH[GM]MA\b", sass)


# -- when they are chosen --


@pytest.fixture
def as_if_supported(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(triton_choice, "is_supported", lambda device: device.type == "cuda")
    passes = triton_choice._passes  # tests put another in its place
    passes.cache_clear()
    yield
    passes.cache_clear()


def test_a_cpu_never_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_choice, "_is_installed", lambda: True)
    group = make_group(64, 64, 8)
    cpu = torch.device("cpu")
    assert not triton_choice.can_fold(group, frozenset({torch.float32}), cpu)
    assert not triton_choice.can_move(group, group.slots[0], 4, torch.float32, cpu)


@pytest.mark.parametrize(
    ("group", "is_fit"),
    [
        (make_group(64, 64, 8), True),
        (make_group(16, 64, 64), True),
        (make_group(64, 64, 65), False),
        (make_group(48, 64, 6), False),
        (make_group(128, 64, 8), False),
        (make_group(1, 64, 1), False),
    ],
)
def test_tiles_that_they_fit(group: TileGroup, is_fit: bool, as_if_supported: None) -> None:
    assert triton_choice.is_candidate(group, GPU) is is_fit


def test_the_switch(as_if_supported: None, monkeypatch: pytest.MonkeyPatch) -> None:
    group = make_group(64, 64, 8)
    for value, is_on in (("0", False), ("1", True), ("", True)):
        monkeypatch.setenv(triton_choice.SWITCH, value)
        assert triton_choice.is_candidate(group, GPU) is is_on
    monkeypatch.delenv(triton_choice.SWITCH)
    assert triton_choice.is_candidate(group, GPU)


def test_sums_that_need_float64_are_torch_s(as_if_supported: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton_choice, "_passes", lambda *variant: True)
    group = make_group(64, 64, 8)
    assert triton_choice.can_move(group, group.slots[0], 128, torch.float32, GPU)
    assert not triton_choice.can_move(group, group.slots[0], 129, torch.float32, GPU)


@pytest.mark.parametrize("failing", ["import", "check"])
def test_a_reason_against_them_is_logged_once(
    failing: str,
    as_if_supported: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A triton that cannot be imported, or a check that finds a difference: torch does the work."""

    class Checks:
        check_fold = check_move = staticmethod(lambda *variant: "it is wrong")

    def load(name: str) -> Any:
        assert name.startswith("psyche_py.distro.triton_")
        if failing == "import":
            raise ImportError("no libcuda")
        return Checks

    monkeypatch.setattr(importlib, "import_module", load)
    group = make_group(64, 64, 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert not triton_choice.can_fold(group, frozenset({torch.float32}), GPU)
            assert not triton_choice.can_move(group, group.slots[0], 4, torch.bfloat16, GPU)
    assert len(caplog.messages) == 2  # one for each kernel
    reason = "ImportError: no libcuda" if failing == "import" else "it is wrong"
    assert all(reason in message and "cuda:3" in message for message in caplog.messages)


def test_a_missing_triton_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    triton_choice._is_installed.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert not triton_choice.is_supported(GPU)
        assert not triton_choice.is_supported(GPU)
    triton_choice._is_installed.cache_clear()
    assert caplog.messages == ["triton is not installed: DisTrO runs on torch alone."]


def test_an_optimizer_whose_kernels_fail_their_checks_says_what_torch_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their answer is asked for, and heeded."""
    asked: list[str] = []
    monkeypatch.setattr("psyche_py.distro.jit.load_kernels", lambda name: None)
    results = []
    for is_asking in (False, True):
        monkeypatch.setattr(triton_choice, "is_supported", lambda device, x=is_asking: x)
        monkeypatch.setattr(triton_choice, "_passes", lambda check, *variant: asked.append(check) or False)
        named = {"w": Parameter(torch.linspace(-1, 1, 64 * 128).view(64, 128))}
        optimizer = DistroOptimizer(named.items(), DistroConfig())
        named["w"].grad = torch.cos(torch.arange(64.0 * 128)).view(64, 128)
        payload = optimizer.step(0.01)
        optimizer.apply([payload], 0.01)
        results.append((payload, optimizer.model_digest()))
    assert results[0] == results[1]
    assert asked == ["check_fold", "check_move"]
