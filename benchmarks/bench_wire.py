"""How many bytes does a DisTrO message take, against what counting demands, and how fast is it packed?

    python benchmarks/bench_wire.py [--tiles 20000] [--repeats 5]

The last line is one JSON object:
    ratio_to_entropy   by top-k: bits of a 64 x 64 tile over log2 of the number of messages (sets of at most
                       top-k positions with signs) that it can hold; every top-k from 1 to 64
    tiles              for top-k 1, 2, 4, 8, 16, 32: bytes per tile, encode and decode in million tiles per
                       second of CPU time on one thread (best of the repeats)
    worst_density      bits per element over those of a 64 x 64 tile: the dearest of shapes that do not divide
                       by 64, and the limit 1.5
    models             bytes per step of Llama shapes, top-k 8: ours, Psyche's format, float32 gradients
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Mapping

import numpy as np
import torch

from psyche_py.distro import DistroConfig, PayloadLayout
from psyche_py.distro.payload import Message, decode_payload, encode_payload, make_group_message
from psyche_py.distro.tilecode import get_tile_code

TOPKS = (1, 2, 4, 8, 16, 32)
# (name, hidden, layers, feed-forward, key/value width, vocabulary, tied)
LLAMAS = (
    ("20M", 256, 8, 1024, 256, 32000, False),
    ("1.2B", 2048, 16, 8192, 512, 128256, True),
    ("8B", 4096, 32, 14336, 1024, 128256, False),
    ("40B", 6656, 72, 17920, 6656, 129280, False),
)
ODD_SHAPES = (
    (768,), (1000003,), (50257, 768), (32003, 64), (97, 97), (1013, 2029), (3, 70000), (20, 4096), (1, 5000),
    (65, 4097), (12288, 5), (64, 32, 3, 3), (8, 577, 1537), (61, 61),
)  # fmt: skip


def get_llama_shapes(
    hidden: int, layers: int, ffn: int, kv: int, vocab: int, tied: bool
) -> dict[str, tuple[int, ...]]:
    """Shapes of a Llama's tensors."""
    shapes: dict[str, tuple[int, ...]] = {"embed": (vocab, hidden), "norm": (hidden,)}
    if not tied:
        shapes["head"] = (vocab, hidden)
    for i in range(layers):
        shapes |= {f"{i}.q": (hidden, hidden), f"{i}.o": (hidden, hidden)}
        shapes |= {f"{i}.k": (kv, hidden), f"{i}.v": (kv, hidden)}
        shapes |= {f"{i}.gate": (ffn, hidden), f"{i}.up": (ffn, hidden), f"{i}.down": (hidden, ffn)}
        shapes |= {f"{i}.norm1": (hidden,), f"{i}.norm2": (hidden,)}
    return shapes


def get_divisor_side(n: int, chunk: int = 64) -> int:
    """Psyche's tile side: the largest divisor up to the chunk."""
    return next(side for side in range(min(n, chunk), 0, -1) if n % side == 0)


def compute_psyche_bytes(shapes: Mapping[str, tuple[int, ...]], topk: int) -> int:
    """Psyche's 1-bit format: per coefficient 1 or 2 bytes and a sign, about 25 bytes per tensor."""
    total = 0
    for shape in shapes.values():
        height = get_divisor_side(shape[0]) if len(shape) == 2 else 1
        size = height * get_divisor_side(shape[-1])
        coefficients = math.prod(shape) // size * min(topk, size)
        total += 25 + coefficients * (1 if size <= 256 else 2) + -(-coefficients // 8)
    return total


def compute_entropy(n: int, k: int) -> float:
    """log2 of the number of sets of at most k of n positions with signs."""
    return math.log2(sum(math.comb(n, size) << size for size in range(k + 1)))


def make_message(layout: PayloadLayout, rng: np.random.Generator) -> Message:
    """Full tiles of random positions and signs."""
    (group,) = layout.groups
    shape = (group.num_tiles, group.tile_size)
    positions = np.argpartition(rng.random(shape, dtype=np.float32), group.topk - 1, axis=1)[:, : group.topk]
    values = rng.choice(np.array([-1.0, 1.0], dtype=np.float32), positions.shape)
    return (make_group_message(positions, values),)


def measure(work: Callable[[], object], repeats: int) -> float:
    """Best CPU seconds."""
    best = math.inf
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def measure_tiles(topk: int, num_tiles: int, repeats: int) -> dict[str, float]:
    """Size and speed for one top-k."""
    config = DistroConfig(compression_topk=topk)
    layout = PayloadLayout.from_shapes({"w": (64 * num_tiles, 64)}, config)
    message = make_message(layout, np.random.default_rng(topk))
    payload = encode_payload(layout, message)
    encode = measure(lambda: encode_payload(layout, message), repeats)
    decode = measure(lambda: decode_payload(layout, payload), repeats)
    return {
        "topk": topk,
        "bytes_per_tile": round((len(payload) - 16) / num_tiles, 4),
        "entropy_bytes": round(compute_entropy(4096, topk) / 8, 4),
        "encode_mtiles_per_s": round(num_tiles / encode / 1e6, 2),
        "decode_mtiles_per_s": round(num_tiles / decode / 1e6, 2),
    }


def compute_worst_density() -> dict[str, object]:
    """Every odd shape beside one usual matrix, every power of two of top-k."""
    worst: tuple[float, str] = (0.0, "")
    for topk in (1, 2, 4, 8, 16, 32, 64):
        config = DistroConfig(compression_topk=topk)
        nominal = PayloadLayout.from_shapes({"x": (4096, 64)}, config).compute_bits_per_element("x")
        for shape in ODD_SHAPES:
            layout = PayloadLayout.from_shapes({"x": shape, "usual": (256, 256)}, config)
            density = float(layout.compute_bits_per_element("x") / nominal)
            worst = max(worst, (density, f"{list(shape)} at top-k {topk}"))
    return {"density": round(worst[0], 3), "of": worst[1], "limit": 1.5}


def describe_model(name: str, topk: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, object]:
    """Bytes of one step of one trainer."""
    layout = PayloadLayout.from_shapes(shapes, DistroConfig(compression_topk=topk))
    psyche, gradients = compute_psyche_bytes(shapes, topk), 4 * layout.num_elements
    return {
        "model": name,
        "parameters": layout.num_elements,
        "bytes_per_step": layout.num_bytes,
        "psyche_bytes": psyche,
        "float32_bytes": gradients,
        "of_psyche": round(layout.num_bytes / psyche, 3),
        "float32_over_ours": round(gradients / layout.num_bytes),
    }


def main() -> None:
    """Print a table, then one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiles", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    ratios = {}
    for topk in range(1, 65):
        code = get_tile_code(4096, topk)
        bits = code.compute_num_bits(1 << 16) / (1 << 16)
        ratios[topk] = round(bits / compute_entropy(4096, topk), 5)
    tiles = [measure_tiles(topk, args.tiles, args.repeats) for topk in TOPKS]
    models = [describe_model(name, 8, get_llama_shapes(*shape)) for name, *shape in LLAMAS]
    for row in (*tiles, *models):
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    result = {
        "ratio_to_entropy": {topk: ratios[topk] for topk in TOPKS},
        "worst_ratio_of_topk_1_to_64": max(ratios.values()),
        "tiles": tiles,
        "worst_density": compute_worst_density(),
        "models": models,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
