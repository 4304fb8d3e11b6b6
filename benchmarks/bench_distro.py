"""How long does one DisTrO cycle take, beside the published algorithm and beside what the machine could do?

    python benchmarks/bench_distro.py [--sizes 10,50,125] [--peers 4] [--repeats 7] [--topk 8] [--no-share]

A cycle is a step (clip, transform, momentum, top-k, packing) and an update by ``peers`` messages (unpacking,
sum, inverse transform, weight decay, weights). Times are CPU milliseconds on one thread; what is compared is
measured in turns, and medians are taken. The last line is one JSON object with ``sizes``, a list of

    parameters     of an untied Llama of about that many millions
    speedup        plain_ms / ms: benchmarks/plain_demo.py does the same cycle tensor by tensor
    floor_ratio    ms over the larger of two floors, measured in turns with the rest: gemm_floor_ms, 320 flop
                   per element (two 64-wide products forward, one rank-32 product back) at the rate of a
                   2048 x 2048 product; memory_floor_ms, 20 bytes per element (gradient, momentum and weights
                   read, momentum and weights written) at the rate of a copy
    own_flop_ratio the same with 256 flop, what is left after splitting even from odd frequencies
    step_share     ms over a forward and backward pass of the model, 8 x 512 tokens (measured once)
    step_ms, apply_ms, lookahead_ms, digest_ms
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from plain_demo import PlainDemo
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer

# millions -> hidden, layers, feed-forward, vocabulary, heads
MODELS = {
    10: (384, 4, 1024, 4096, 6),
    50: (640, 8, 1728, 8192, 10),
    125: (768, 12, 2048, 25600, 12),
    1200: (2048, 18, 5632, 65536, 16),
}
LR = 1e-3


def make_parameters(millions: int) -> dict[str, Parameter]:
    """Tensors of an untied Llama with gradients of noise."""
    dim, layers, ffn, vocab, _ = MODELS[millions]
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocab, dim), "head": (vocab, dim), "norm": (dim,)}
    for i in range(layers):
        shapes |= {f"{i}.{name}": (dim, dim) for name in ("q", "k", "v", "o")}
        shapes |= {f"{i}.gate": (ffn, dim), f"{i}.up": (ffn, dim), f"{i}.down": (dim, ffn)}
        shapes |= {f"{i}.norm1": (dim,), f"{i}.norm2": (dim,)}
    generator = torch.Generator().manual_seed(0)
    parameters = {n: Parameter(torch.randn(s, generator=generator) * 0.02) for n, s in shapes.items()}
    for p in parameters.values():
        p.grad = torch.randn(p.shape, generator=generator)
    return parameters


def measure_in_turns(work: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median CPU milliseconds of each, all measured once per round; a first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for number in range(repeats + 1):
        for name, function in work.items():
            start = time.process_time()
            function()
            if number:
                times[name].append((time.process_time() - start) * 1e3)
    return {name: statistics.median(values) for name, values in times.items()}


def make_model(millions: int) -> Any:
    """The Llama of these tensors, float32 on the CPU."""
    from transformers import LlamaConfig, LlamaForCausalLM

    dim, layers, ffn, vocab, heads = MODELS[millions]
    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=dim,
        intermediate_size=ffn,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=512,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def measure_training_ms(millions: int) -> float:
    """CPU milliseconds of one forward and backward pass over 8 x 512 tokens, in four parts."""
    model = make_model(millions)
    tokens = torch.randint(0, model.config.vocab_size, (8, 512))
    start = time.process_time()
    for part in tokens.split(2):
        loss: Any = model(input_ids=part, labels=part, use_cache=False).loss
        (loss / 4).backward()
    return (time.process_time() - start) * 1e3


def measure_size(millions: int, peers: int, repeats: int, topk: int) -> dict[str, Any]:
    """All figures of one model, but its training step."""
    parameters = make_parameters(millions)
    config = DistroConfig(weight_decay=0.1, compression_topk=topk)
    optimizer = DistroOptimizer(parameters.items(), config)
    plain = PlainDemo(parameters, config)
    payloads = [optimizer.step(LR) for _ in range(peers)]
    messages = [plain.step(LR) for _ in range(peers)]
    a, b = torch.randn(2, 2048, 2048)
    source = torch.randn(1 << 25)
    target = torch.empty_like(source)

    def look() -> None:
        with optimizer.lookahead(LR):
            pass

    times = measure_in_turns(
        {
            "step": lambda: optimizer.step(LR),
            "apply": lambda: optimizer.apply(payloads, LR),
            "plain_step": lambda: plain.step(LR),
            "plain_apply": lambda: plain.apply(messages, LR),
            "gemm": lambda: a @ b,
            "copy": lambda: target.copy_(source),
            "lookahead": look,
            "digest": optimizer.model_digest,
        },
        repeats,
    )
    num = optimizer.payload_layout.num_elements
    ms, plain_ms = times["step"] + times["apply"], times["plain_step"] + times["plain_apply"]
    flops_per_ms, bytes_per_ms = 2 * 2048**3 / times["gemm"], 8 * (1 << 25) / times["copy"]
    gemm_ms, memory_ms = 320 * num / flops_per_ms, 20 * num / bytes_per_ms
    return {
        "parameters": num,
        "speedup": round(plain_ms / ms, 2),
        "floor_ratio": round(ms / max(gemm_ms, memory_ms), 2),
        "own_flop_ratio": round(ms / max(256 * num / flops_per_ms, memory_ms), 2),
        "ms": round(ms, 1),
        "plain_ms": round(plain_ms, 1),
        "gemm_floor_ms": round(gemm_ms, 1),
        "memory_floor_ms": round(memory_ms, 1),
        "gflops": round(flops_per_ms / 1e6, 1),
        "copy_gb_per_s": round(bytes_per_ms / 1e6, 1),
        **{f"{name}_ms": round(times[name], 1) for name in ("step", "apply", "lookahead", "digest")},
        "payload_bytes": optimizer.payload_layout.num_bytes,
    }


def main() -> None:
    """Print a line per size, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sizes", default="10,50,125")
    parser.add_argument("--peers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--topk", type=int, default=DistroConfig().compression_topk)
    parser.add_argument("--no-share", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    sizes = []
    for millions in map(int, args.sizes.split(",")):
        size = measure_size(millions, args.peers, args.repeats, args.topk)
        if not args.no_share:
            training_ms = measure_training_ms(millions)
            size |= {
                "step_share": round(size["ms"] / training_ms, 4),
                "training_ms": round(training_ms),
                "digest_share": round(size["digest_ms"] / training_ms, 4),
            }
        print("  ".join(f"{key} {value}" for key, value in size.items()), flush=True)
        sizes.append(size)
    print(json.dumps({"peers": args.peers, "topk": args.topk, "threads": 1, "sizes": sizes}))


if __name__ == "__main__":
    main()
