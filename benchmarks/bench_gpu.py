"""How long does one DisTrO cycle take on a GPU, with the Triton kernels and without, and is it still exact?

    python benchmarks/bench_gpu.py [--sizes 125,1200] [--peers 4] [--repeats 7]

Needs a CUDA GPU, and triton for its kernels; without a GPU it says so and exits with status 2. A cycle is a
step (clip, transform, momentum, top-k, packing) and an update by ``peers`` messages; times are wall-clock
milliseconds up to ``torch.cuda.synchronize``, medians, measured in turns. The last line is one JSON object:

    device, torch, triton   names and versions; triton is null where it is missing
    kernels                 of every kernel variant of the models: null when it passed its check, or why not
    sizes                   a list of
        parameters          of an untied Llama of about that many millions, in bfloat16
        parameters_that_fit those in tiles for which there are kernels
        kernels_ms          a cycle with the kernels; null where one of them did not pass
        torch_ms            a cycle through torch alone, with step_ and apply_ for both
        training_ms         forward and backward pass of the model, bfloat16, 8 x 512 tokens
        kernels_share, torch_share   a cycle over training_ms
        digests_equal       whether GPU (with the kernels, and without) and CPU have equal weights after
                            some updates by the same messages, --exact-steps of them
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from bench_distro import LR, make_model, make_parameters
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer, triton_choice

SWITCHES = {"kernels": "1", "torch": "0"}
SMALL = 10  # millions; of --cpu, which looks for mistakes in this script


@contextmanager
def switched(value: str) -> Iterator[None]:
    """Kernels on ("1") or off ("0")."""
    before = os.environ.get(triton_choice.SWITCH)
    os.environ[triton_choice.SWITCH] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[triton_choice.SWITCH]
        else:
            os.environ[triton_choice.SWITCH] = before


def synchronize(device: torch.device) -> None:
    """Wait until the device has nothing left to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_wall_ms(
    work: dict[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Median milliseconds of each, all measured once per round; two rounds warm up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(repeats + 2):
        for name, function in work.items():
            synchronize(device)
            start = time.perf_counter()
            function()
            synchronize(device)
            if number >= 2:
                times[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def measure_cycles(
    optimizer: DistroOptimizer, device: torch.device, peers: int, repeats: int
) -> dict[str, float]:
    """Milliseconds of ``step`` and ``apply``, by names like kernels_step_ms."""
    payloads = [optimizer.step(LR) for _ in range(peers)]

    def make(call: Callable[[], object], value: str) -> Callable[[], object]:
        def run() -> None:
            with switched(value):
                call()

        return run

    calls: dict[str, Callable[[], object]] = {
        "step": lambda: optimizer.step(LR),
        "apply": lambda: optimizer.apply(payloads, LR),
    }
    work = {
        f"{name}_{what}_ms": make(call, value)
        for (name, value), (what, call) in itertools.product(SWITCHES.items(), calls.items())
    }
    return measure_wall_ms(work, device, repeats)


def measure_training_ms(millions: int, device: torch.device, repeats: int) -> float:
    """Forward and backward pass of the model in bfloat16 over 8 x 512 tokens (2 x 64 on a CPU)."""
    model = make_model(millions).to(device, torch.bfloat16)
    shape = (8, 512) if device.type == "cuda" else (2, 64)
    tokens = torch.randint(0, model.config.vocab_size, shape, device=device)

    def train() -> None:
        model.zero_grad(set_to_none=False)
        loss: Any = model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()

    return measure_wall_ms({"training": train}, device, repeats)["training"]


def are_digests_equal(millions: int, device: torch.device, peers: int, steps: int) -> bool:
    """Whether weights are the same bits on the device, with the kernels and without, and on the CPU."""
    replicas = [("1", device), ("0", device), ("0", torch.device("cpu"))]
    optimizers, named = [], []
    for _, place in replicas:
        named.append(move_parameters(make_parameters(millions), place))
        optimizers.append(DistroOptimizer(named[-1].items(), DistroConfig(weight_decay=0.1)))
    for _ in range(steps):
        payloads = [optimizers[0].step(LR) for _ in range(peers)]
        for (value, _), optimizer in zip(replicas, optimizers, strict=True):
            with switched(value):
                optimizer.apply(payloads, LR)
    return len({optimizer.model_digest() for optimizer in optimizers}) == 1


def move_parameters(parameters: dict[str, Parameter], device: torch.device) -> dict[str, Parameter]:
    """Weights and gradients in bfloat16 on a device."""
    moved = {}
    for name, p in parameters.items():
        moved[name] = Parameter(p.detach().to(device, torch.bfloat16))
        assert p.grad is not None
        moved[name].grad = p.grad.to(device, torch.bfloat16)
    return moved


def check_kernels(optimizer: DistroOptimizer, device: torch.device, peers: int) -> dict[str, str | None]:
    """Of each variant that the model needs: None, or why it is not used."""
    if not triton_choice.is_supported(device):
        return {"all": f"there is no triton for {device}"}
    found: dict[str, str | None] = {}
    for group in optimizer.payload_layout.groups:
        sides = (group.height, group.width)
        if not triton_choice.is_candidate(group, device):
            continue
        # the pool's gradients are gathered in float32
        types = sorted({torch.bfloat16 if slot.name else torch.float32 for slot in group.slots}, key=str)
        variants: list[tuple[Any, ...]] = [("check_fold", *sides, group.topk, dtype) for dtype in types]
        blocks = {triton_choice.choose_block(slot, peers * group.topk) for slot in group.slots if slot.name}
        variants += [("check_move", *sides, *block, torch.bfloat16) for block in sorted(blocks)]
        for check, *variant in variants:
            found[f"{check} {', '.join(map(str, variant))}"] = triton_choice.find_problem(
                check, device, *variant
            )
    return found


def measure_size(
    millions: int, device: torch.device, peers: int, repeats: int, exact_steps: int
) -> tuple[dict[str, Any], dict[str, str | None]]:
    """All figures of one model, and what the kernels' checks said."""
    training_ms = measure_training_ms(millions, device, repeats)
    parameters = move_parameters(make_parameters(millions), device)
    optimizer = DistroOptimizer(parameters.items(), DistroConfig(weight_decay=0.1))
    checks = check_kernels(optimizer, device, peers)
    times = measure_cycles(optimizer, device, peers, repeats)
    layout = optimizer.payload_layout
    fit = [group for group in layout.groups if triton_choice.is_candidate(group, device)]
    num_fit = sum(slot.num_elements for group in fit for slot in group.slots)
    size: dict[str, Any] = {"parameters": layout.num_elements, "parameters_that_fit": num_fit}
    del optimizer, parameters
    for name in SWITCHES:
        steps = {what: times[f"{name}_{what}_ms"] for what in ("step", "apply")}
        is_used = name == "torch" or (bool(checks) and not any(checks.values()))
        size[f"{name}_ms"] = round(sum(steps.values()), 2) if is_used else None
        size |= {f"{name}_{what}_ms": round(ms, 2) if is_used else None for what, ms in steps.items()}
        size[f"{name}_share"] = round(sum(steps.values()) / training_ms, 5) if is_used else None
    size["training_ms"] = round(training_ms, 2)
    size["digests_equal"] = are_digests_equal(millions, device, peers, exact_steps)
    return size, checks


def get_triton_version() -> str | None:
    """None where it is not installed."""
    if importlib.util.find_spec("triton") is None:
        return None
    return str(importlib.import_module("triton").__version__)


def main() -> int:
    """Print a line per size, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="125,1200")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--exact-steps", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.cpu and not torch.cuda.is_available():
        print("There is no CUDA GPU here, so nothing was measured.", file=sys.stderr)
        return 2
    device = torch.device("cpu") if args.cpu else torch.device("cuda", torch.cuda.current_device())
    sizes, kernels = [], {}
    for millions in [SMALL] if args.cpu else map(int, args.sizes.split(",")):
        size, checks = measure_size(millions, device, args.peers, args.repeats, args.exact_steps)
        kernels |= checks
        print("  ".join(f"{key} {value}" for key, value in size.items()), flush=True)
        sizes.append(size)
    name = "CPU" if args.cpu else torch.cuda.get_device_name(device)
    versions = {"torch": torch.__version__, "triton": get_triton_version()}
    print(json.dumps({"device": name, **versions, "peers": args.peers, "kernels": kernels, "sizes": sizes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
