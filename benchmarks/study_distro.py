"""The study of how DisTrO learns: many short runs in one process, every result a committed line.

    python benchmarks/study_distro.py --prepare plays.txt kjv.txt [--text NAME]
    python benchmarks/study_distro.py --grid "method=distro lr=1e-3,2e-3 topk=8"
    python benchmarks/study_distro.py --table

--prepare makes the tokens of every model size; text=NAME in a grid means those prepared with --text NAME.
--grid takes the product of its values (see study_methods.Setting for the names). A run whose setting is in
--results already is not made again, so a stopped study goes on where it was. --table prints
the results, of those with all the WORDS that follow it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from study_local import Local
from study_methods import AdamW, Distro, Method, Setting, compute_lr
from study_model import SIZES, Corpus, evaluate, make_weights, prepare_corpus

RESULTS = Path(__file__).parent / "results" / "distro_study.jsonl"
METHODS = {"adamw": AdamW, "distro": Distro, "local": Local}
DEFAULTS = {item.name: item.default for item in fields(Setting)}


def parse_grid(text: str) -> list[Setting]:
    """All combinations of "name=value,value name=value"."""
    types = {item.name: item.type for item in fields(Setting)}
    names, choices = [], []
    for item in text.split():
        name, values = item.split("=")
        names.append(name)
        choices.append([_parse(types[name], value) for value in values.split(",")])
    return [
        Setting(**dict(zip(names, combination, strict=True))) for combination in itertools.product(*choices)
    ]


def _parse(kind: Any, value: str) -> Any:
    if kind == "bool":
        return value == "true"
    return {"str": str, "int": int, "float": float}[kind](value)


def describe(setting: Setting) -> dict[str, Any]:
    """What differs from the defaults."""
    return {name: value for name, value in asdict(setting).items() if value != DEFAULTS[name]}


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Finished runs by key."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = [json.loads(line) for line in lines]
    return {json.dumps(result["setting"], sort_keys=True): result for result in results}


def name_tokens(text: str, vocab: int) -> str:
    """File name of a corpus."""
    return f"tokens-{text}-{vocab}.npz" if text else f"tokens-{vocab}.npz"


def run(setting: Setting, corpora: Path) -> dict[str, Any]:
    """Train; the curve is validation loss in nats per token, every hundred steps or tenth, and at the end."""
    size = SIZES[setting.size]
    corpus = Corpus(corpora / name_tokens(setting.text, size.vocab), setting.seed, setting.seq_len)
    method: Method = METHODS[setting.method](setting, size, make_weights(size, setting.seed))
    started, curve = time.process_time(), []
    every = max(100, setting.steps // 10)
    for step in range(setting.steps):
        method.train(step, compute_lr(setting, step), corpus.get_batch(setting.sequences))
        if (step + 1) % every == 0 or step + 1 == setting.steps:
            curve.append((step + 1, round(evaluate(method.weights, corpus, size), 4)))
            if not curve[-1][1] < 20.0:
                break
    return {
        "setting": describe(setting),
        "loss": curve[-1][1],
        "curve": curve,
        "cpu_seconds": round(time.process_time() - started, 1),
    }


def print_table(path: Path, words: list[str]) -> None:
    """Results whose settings contain all words, best first, by number of steps."""
    results = sorted(read_results(path).values(), key=lambda r: (r["setting"].get("steps", 0), r["loss"]))
    for result in results:
        line = " ".join(f"{name}={value}" for name, value in result["setting"].items())
        if all(word in line for word in words):
            print(f"{result['loss']:.4f}  {line}")


def main() -> None:
    """Prepare, run or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--corpora", type=Path, default=Path("runs/study"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--prepare", type=Path, nargs="+")
    parser.add_argument("--text", default="")
    parser.add_argument("--grid", action="append", default=[])
    parser.add_argument("--table", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.prepare:
        for vocab in sorted({size.vocab for size in SIZES.values()}):
            prepare_corpus(args.corpora / name_tokens(args.text, vocab), args.prepare, vocab)
    for setting in [setting for grid in args.grid for setting in parse_grid(grid)]:
        if json.dumps(describe(setting), sort_keys=True) in read_results(args.results):
            continue
        result = run(setting, args.corpora)
        with args.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(result["loss"], result["cpu_seconds"], json.dumps(result["setting"]), flush=True)
    if args.table is not None:
        print_table(args.results, args.table)


if __name__ == "__main__":
    main()
