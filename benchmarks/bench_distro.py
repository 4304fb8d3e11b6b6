"""How long does one DisTrO step take, and how many bytes does it send? Compared with a plain DeMo in one run.

    python benchmarks/bench_distro.py [--dim 320 --layers 6 --vocab 2048 --ffn 896] [--peers 4] [--threads 1]

Times are CPU milliseconds of this process, the best of ``--repeats``. The last line is one JSON object:
    step_ms            gradient to payload: clip, forward DCT, momentum, top-k, encoding
    apply_ms           ``peers`` payloads to new weights: decoding, sum, inverse DCT, sign, update
    lookahead_ms       entering and leaving a lookahead
    reference_ms       the same work by the reference below (step and apply)
    ratio              reference_ms / (step_ms + apply_ms)
    payload_bytes, bytes_per_tile, encode_mtiles_per_s, decode_mtiles_per_s
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Parameter

from psyche_py.distro import DistroConfig, DistroOptimizer
from psyche_py.distro.layout import get_tile_side
from psyche_py.distro.payload import decode_payload, encode_payload
from psyche_py.distro.trig import dct_matrix


def make_parameters(dim: int, layers: int, vocab: int, ffn: int) -> dict[str, Parameter]:
    """Tensors of an untied Llama with gradients of noise."""
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


class DemoReference:
    """DeMo as published, tensor by tensor: momentum in the weight domain, three transforms, int64 indices.

    It spends no time on clipping, packing or unpacking, which the timed optimizer does.
    """

    def __init__(self, parameters: dict[str, Parameter], config: DistroConfig) -> None:
        self.parameters, self.config = parameters, config
        self.momentum = {name: torch.zeros_like(p) for name, p in parameters.items()}
        sizes = {n for p in parameters.values() for n in self.get_sides(p)}
        self.tables = {n: torch.from_numpy(dct_matrix(n).copy()).float() for n in sizes}

    def get_sides(self, p: Tensor) -> tuple[int, int]:
        chunk = self.config.compression_chunk
        return (get_tile_side(p.shape[0], chunk) if p.dim() == 2 else 1), get_tile_side(p.shape[-1], chunk)

    def transform(self, p: Tensor, x: Tensor) -> Tensor:
        h, w = self.get_sides(p)
        tiles = x.view(-1, h, p.shape[-1] // w, w)
        return torch.einsum("yhxw,uh,vw->yxuv", tiles, self.tables[h], self.tables[w]).reshape(-1, h * w)

    def invert(self, p: Tensor, coefficients: Tensor) -> Tensor:
        h, w = self.get_sides(p)
        tiles = coefficients.view(-1, p.shape[-1] // w, h, w)
        return torch.einsum("yxuv,uh,vw->yhxw", tiles, self.tables[h], self.tables[w]).reshape(p.shape)

    @torch.no_grad()
    def step(self, lr: float) -> dict[str, tuple[Tensor, Tensor]]:
        message = {}
        for name, p in self.parameters.items():
            assert p.grad is not None
            momentum = self.momentum[name].mul_(self.config.compression_decay).add_(p.grad, alpha=lr)
            coefficients = self.transform(p, momentum)
            topk = min(self.config.compression_topk, coefficients.shape[1])
            indices = coefficients.abs().topk(topk, dim=1, sorted=False).indices
            values = coefficients.gather(1, indices)
            sent = torch.zeros_like(coefficients).scatter_(1, indices, values)
            momentum.sub_(self.invert(p, sent))
            message[name] = (indices, values)
        return message

    @torch.no_grad()
    def apply(self, messages: list[dict[str, tuple[Tensor, Tensor]]], lr: float) -> None:
        for name, p in self.parameters.items():
            h, w = self.get_sides(p)
            total = torch.zeros(p.numel() // (h * w), h * w)
            indices = torch.cat([message[name][0] for message in messages], dim=1)
            values = torch.cat([message[name][1] for message in messages], dim=1)
            total.scatter_reduce_(1, indices, values, reduce="mean", include_self=False)
            p.sub_(self.invert(p, total).sign(), alpha=lr)


def measure_ms(work: Callable[[], object], repeats: int) -> float:
    """Best CPU milliseconds of ``repeats`` calls after one that warms up."""
    work()
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best * 1e3


def run(args: argparse.Namespace) -> dict[str, object]:
    """All figures of one run."""
    torch.set_num_threads(args.threads)
    config = DistroConfig(compression_topk=args.topk, compression_chunk=args.chunk)
    parameters = make_parameters(args.dim, args.layers, args.vocab, args.ffn)
    optimizer = DistroOptimizer(parameters.items(), config)
    layout = optimizer.payload_layout
    lr = 1e-3
    payloads = [optimizer.step(lr) for _ in range(args.peers)]

    def look() -> None:
        with optimizer.lookahead(lr):
            pass

    step_ms = measure_ms(lambda: optimizer.step(lr), args.repeats)
    apply_ms = measure_ms(lambda: optimizer.apply(payloads, lr), args.repeats)
    lookahead_ms = measure_ms(look, args.repeats)
    message = decode_payload(layout, payloads[0])
    encode_ms = measure_ms(lambda: encode_payload(layout, message), args.repeats)
    decode_ms = measure_ms(lambda: decode_payload(layout, payloads[0]), args.repeats)
    reference = DemoReference(parameters, config)
    messages = [reference.step(lr) for _ in range(args.peers)]
    reference_ms = measure_ms(lambda: reference.step(lr), args.repeats)
    reference_ms += measure_ms(lambda: reference.apply(messages, lr), args.repeats)
    return {
        "parameters": layout.num_elements,
        "tiles": layout.num_tiles,
        "threads": args.threads,
        "peers": args.peers,
        "step_ms": round(step_ms, 2),
        "apply_ms": round(apply_ms, 2),
        "lookahead_ms": round(lookahead_ms, 2),
        "reference_ms": round(reference_ms, 2),
        "ratio": round(reference_ms / (step_ms + apply_ms), 2),
        "payload_bytes": layout.num_bytes,
        "bytes_per_tile": round(layout.num_bytes / layout.num_tiles, 3),
        "encode_mtiles_per_s": round(layout.num_tiles / encode_ms / 1e3, 2),
        "decode_mtiles_per_s": round(layout.num_tiles / decode_ms / 1e3, 2),
    }


def main() -> None:
    """Parse the flags, measure, print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    sizes = {"dim": 320, "layers": 6, "vocab": 2048, "ffn": 896, "peers": 4, "threads": 1, "repeats": 5}
    for name, default in (sizes | {"topk": 8, "chunk": 64}).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
