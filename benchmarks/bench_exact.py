"""Do replicas that apply the same messages end with the same bits, however they compute?

    python benchmarks/bench_exact.py [--steps 1000] [--workers 4]

Workers train a small model (matrices that divide by 64 and that do not, a stack of matrices, vectors;
embedding and head at four times the rate) for ``steps`` rounds, results applied two rounds late, weight
decay on: once with the clipped linear step in 16 levels and the rate outside of momentum, once with signs
and the rate inside, once with three local steps a round. Then every configuration replays the messages from
the first weights, and its model digest is compared at every 50th step and at the end. The last line is one
JSON object: ``compared`` configurations, ``different`` ones (must be 0), their names.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from unittest import mock

import torch
from torch.nn import Parameter

import psyche_py.distro
from psyche_py.distro import Cosine, DistroConfig, DistroOptimizer, LocalOptimizer, jit, transform
from psyche_py.distro.parameters import ParamGroup

SHAPES = {
    "embed": (320, 128),
    "head": (317, 128),
    "mlp": (128, 192),
    "odd": (97, 131),
    "experts": (3, 58, 66),
    "norm": (128,),
    "bias": (317,),
    "scalar": (),
}
VOCAB = ("embed", "head")
_SIGNS = DistroConfig(
    compression_topk=8, compression_decay=0.99, weight_decay=0.1, step_levels=1, lr_outside_momentum=False
)
CONFIGS = {
    "linear": replace(_SIGNS, step_levels=16, lr_outside_momentum=True),
    "signs": _SIGNS,
    "local": replace(_SIGNS, local_steps=3),
}
COMPARE_EVERY = 50
Messages = list[list[bytes]]
Optimizer = DistroOptimizer | LocalOptimizer


def make_parameters(device: str = "cpu") -> dict[str, Parameter]:
    """The first weights, always the same."""
    generator = torch.Generator().manual_seed(1)
    return {
        name: Parameter((torch.randn(shape, generator=generator) * 0.1).to(device))
        for name, shape in SHAPES.items()
    }


def make_optimizer(parameters: dict[str, Parameter], config: DistroConfig) -> Optimizer:
    """Embedding and head with a rate of their own."""
    scales = {name: config.vocab_lr_scale if name in VOCAB else 1.0 for name in parameters}
    groups: list[ParamGroup] = [
        {"params": [(name, p) for name, p in parameters.items() if scales[name] == scale], "lr_scale": scale}
        for scale in sorted(set(scales.values()))
    ]
    return psyche_py.distro.make_optimizer(groups, config)


def make_schedule(steps: int) -> Cosine:
    """Learning rate of the run."""
    return Cosine(base_lr=3e-3, total_steps=steps, final_lr=3e-4, warmup_steps=10)


def fill_gradients(parameters: dict[str, Parameter], generator: torch.Generator) -> None:
    """A quadratic bowl with noise: gradients that depend on the weights."""
    for p in parameters.values():
        p.grad = p.data + torch.randn(p.shape, generator=generator)


def train(num_steps: int, num_workers: int, config: DistroConfig) -> tuple[Messages, dict[int, bytes]]:
    """Messages of every round, and the digests of worker 0 at the steps that are compared."""
    replicas = [make_parameters() for _ in range(num_workers)]
    workers = [make_optimizer(parameters, config) for parameters in replicas]
    schedule, generator = make_schedule(num_steps), torch.Generator().manual_seed(2)
    messages: Messages = []
    digests: dict[int, bytes] = {}
    for step in range(num_steps):
        lr = schedule.get_lr(step)
        results = []
        for parameters, worker in zip(replicas, workers, strict=True):
            if step >= 2:
                worker.apply(messages[step - 2], lr)
            with worker.lookahead(lr):
                for _ in range(config.local_steps):
                    fill_gradients(parameters, generator)
                    if isinstance(worker, LocalOptimizer):
                        worker.inner_step(lr)
            results.append(worker.step(lr))
        messages.append(results)
        if is_compared(step, num_steps):
            assert len({worker.model_digest() for worker in workers}) == 1
            digests[step] = workers[0].model_digest()
    return messages, digests


def is_compared(step: int, num_steps: int) -> bool:
    """Whether digests are compared after this step."""
    return step % COMPARE_EVERY == 0 or step == num_steps - 1


def replay(
    messages: Messages,
    config: DistroConfig,
    *,
    device: str = "cpu",
    order: Callable[[list[bytes], int], list[bytes]] = lambda payloads, step: payloads,
    around: Callable[[], AbstractContextManager[object]] = nullcontext,
    prepare: Callable[[dict[str, Parameter]], None] = lambda parameters: None,
    reload_at: int = -1,
) -> dict[int, bytes]:
    """Apply all messages from the first weights; the digests at the steps that are compared."""
    parameters = make_parameters(device)
    prepare(parameters)
    optimizer = make_optimizer(parameters, config)
    schedule, digests = make_schedule(len(messages)), {}
    with around():
        for step in range(len(messages)):
            lr = schedule.get_lr(step)
            if step == reload_at:
                optimizer = reload(optimizer, parameters, config)
            if step >= 2:
                optimizer.apply(order(messages[step - 2], step), lr)
            if is_compared(step, len(messages)):
                digests[step] = optimizer.model_digest()
    return digests


def reload(optimizer: Optimizer, parameters: dict[str, Parameter], config: DistroConfig) -> Optimizer:
    """Weights and optimizer state through a file's bytes, into new objects."""
    file = io.BytesIO()
    torch.save(({name: p.data for name, p in parameters.items()}, optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file, weights_only=True)
    parameters.clear()
    parameters |= {name: Parameter(weight) for name, weight in weights.items()}
    twin = make_optimizer(parameters, config)
    twin.load_state_dict(state)
    return twin


@contextmanager
def threads(number: int) -> Iterator[None]:
    """That many torch threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def low_precision() -> Iterator[None]:
    """A caller who allows bfloat16 or TF32 products."""
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


def transpose_storage(parameters: dict[str, Parameter]) -> None:
    """Parameters whose memory runs column by column."""
    for name in ("embed", "mlp", "odd"):
        parameters[name].data = parameters[name].data.t().contiguous().t()


def shuffle(payloads: list[bytes], step: int) -> list[bytes]:
    """Another order every step."""
    return random.Random(step).sample(payloads, len(payloads))


@contextmanager
def torch_alone(num_threads: int = 1, **values: object) -> Iterator[None]:
    """No compiled kernels, as where numba is missing; ``values`` replace what ``transform`` holds."""
    with (
        threads(num_threads),
        mock.patch.object(jit, "load_kernels", return_value=None),
        mock.patch.multiple(transform, **values) if values else nullcontext(),
    ):
        yield


@contextmanager
def small_blocks() -> Iterator[None]:
    """Work cut into many pieces, shared by two threads."""
    with threads(2), mock.patch.object(transform, "get_block_elements", return_value=5000):
        yield


def get_configurations(
    num_steps: int, config: DistroConfig
) -> dict[str, Callable[[Messages], dict[int, bytes]]]:
    """What is compared with the training replicas, by name."""
    again = partial(replay, config=config)

    def autocast() -> AbstractContextManager[object]:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    def dense_reversed(messages: Messages) -> dict[int, bytes]:
        around = lambda: torch_alone(2, is_low_rank=lambda *_: False)  # noqa: E731
        return again(messages, order=lambda payloads, _: payloads[::-1], around=around)

    found: dict[str, Callable[[Messages], dict[int, bytes]]] = {
        "1 thread": again,
        "2 threads": lambda m: again(m, around=lambda: threads(2)),
        "4 threads": lambda m: again(m, around=lambda: threads(4)),
        "small blocks, 2 threads": lambda m: again(m, around=small_blocks),
        "reversed payloads": lambda m: again(m, order=lambda payloads, _: payloads[::-1]),
        "shuffled payloads": lambda m: again(m, order=shuffle),
        "saved and loaded": lambda m: again(m, reload_at=num_steps // 2),
        "bfloat16 products allowed": lambda m: again(m, around=low_precision),
        "autocast": lambda m: again(m, around=autocast),
        "transposed storage": lambda m: again(m, prepare=transpose_storage),
        "torch alone": lambda m: again(m, around=torch_alone),
        "torch, 2 threads": lambda m: again(m, around=lambda: torch_alone(2)),
        "torch, rank-k": lambda m: again(m, around=lambda: torch_alone(is_low_rank=lambda *_: True)),
        "torch, dense": lambda m: again(m, around=lambda: torch_alone(is_low_rank=lambda *_: False)),
        "torch, dense, 2 threads, reversed": dense_reversed,
        "torch, small blocks": lambda m: again(
            m, around=lambda: torch_alone(get_block_elements=lambda _: 5000)
        ),
        "torch, float64": lambda m: again(m, around=lambda: torch_alone(is_float32_ieee=lambda: False)),
    }
    if torch.cuda.is_available():
        found["CUDA"] = lambda m: again(m, device="cuda")
        found["CUDA, TF32 allowed"] = lambda m: again(m, device="cuda", around=low_precision)
    if config.is_local:  # no transform, so no other ways to make one
        return {name: run for name, run in found.items() if not name.startswith("torch, ")}
    return found


def main() -> None:
    """Train, replay, print a line per configuration and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    torch.set_num_threads(1)
    different, compared, num_digests = [], [], 0
    for kind, config in CONFIGS.items():
        messages, expected = train(args.steps, args.workers, config)
        num_digests = len(expected)
        for name, run in get_configurations(args.steps, config).items():
            wrong = sorted(step for step, digest in run(messages).items() if digest != expected[step])
            compared.append(f"{kind}: {name}")
            if wrong:
                different.append(compared[-1])
            print(
                f"{compared[-1]:44} {'same' if not wrong else f'differs from step {wrong[0]} on'}", flush=True
            )
    result = {
        "compared": len(compared),
        "different": len(different),
        "names_of_different": different,
        "steps": args.steps,
        "workers": args.workers,
        "digests_per_configuration": num_digests,
        "configurations": compared,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
