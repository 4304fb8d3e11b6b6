"""What verification adds to a client's rounds, on the client's own code: its trainer and verification jobs.

A trainer commits (copy of the momentum, hashes, tree), keeps the weights' history, and answers when it is
drawn. A verifier recomputes and checks. CPU seconds on one thread; a round is a step of 8 x 512 tokens.

    python benchmarks/verify_client_costs.py 10,125      alone, without the rest of bench_verify
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from bench_distro import MODELS

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from verify_case import CONFIG, KEY, RUN_ID, sign

from psyche_py.client.evidence_desk import REVEAL_QUESTION
from psyche_py.client.targets import ZERO_MOMENTUM, Finding, Target
from psyche_py.client.trainer import Trainer, TrainResult
from psyche_py.client.verification_jobs import VerificationJobs
from psyche_py.client.weight_history import SPACING
from psyche_py.coordinator.commitment import Commitment, make_bitmap
from psyche_py.distro import Constant, DistroConfig
from psyche_py.model.loader import load_from_config

SEQ_LEN, BATCH, MICRO_BATCH, LR = 512, 8, 2, 1e-3
PERCENT, NUM_SAMPLED = 5, 64
HEIGHT = 1
"""The round that is played: its weights are those that the epoch began with."""
COMMIT_BYTES = 64
"""Of a commitment's 96; the hash of the payload is announced without verification too."""
T = TypeVar("T")


class Noise:
    """Samples without a meaning: what a step costs does not depend on it."""

    seq_len, num_samples = SEQ_LEN, 1 << 30

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def get_batch(self, start: int, end: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Int64 [end - start + 1, SEQ_LEN + 1]."""
        shape = (end - start + 1, SEQ_LEN + 1)
        return np.random.default_rng(start).integers(self.vocab_size, size=shape, dtype=np.int64)


@dataclass
class Client:
    """A trainer and its memory for verification, at the start of an epoch."""

    trainer: Trainer
    jobs: VerificationJobs


def start_client(millions: int) -> Client:
    """A Llama of about that many million parameters."""
    dim, layers, ffn, vocab, heads = MODELS[millions]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": dim,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": SEQ_LEN,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.json"
        path.write_text(json.dumps(config))
        loaded = load_from_config(path, 1)
    options: dict[str, Any] = {"micro_batch_size": MICRO_BATCH, "device": "cpu", "num_threads": 1}
    trainer = Trainer(loaded, DistroConfig(), Constant(LR), Noise(vocab), **options)
    run = replace(CONFIG, verification_percent=PERCENT)
    jobs = VerificationJobs(trainer, run, 1, lambda: False)
    trainer.start_epoch(0, is_cold=False)
    jobs.start_epoch()
    jobs.momentum.prepare_training()
    return Client(trainer, jobs)


def measure(work: Callable[[], T]) -> tuple[float, T]:
    """CPU seconds of one go, and what came of it."""
    started = time.process_time()
    result = work()
    return time.process_time() - started, result


def make_target() -> Target:
    """The result of the round, looked at by client 1."""
    return Target(
        run=RUN_ID,
        epoch=0,
        height=HEIGHT,
        step=HEIGHT,
        random_seed=77,
        verifier=1,
        trainer=0,
        trainer_key=KEY.public_key,
        num_sampled=NUM_SAMPLED,
        ranges=((0, BATCH - 1),),
        before_root=ZERO_MOMENTUM,
        previous={},
    )


def train(trainer: Trainer) -> TrainResult:
    """The round's batch."""
    result = trainer.train(0, BATCH - 1, HEIGHT, lambda: False)
    assert result is not None, "nobody stops it"
    return result


def check(jobs: VerificationJobs, target: Target, payload: bytes, root: bytes, answer: bytes) -> Finding:
    """A verifier's look. Raises SystemExit when honest work is not found honest."""
    commitment = Commitment(hashlib.sha256(payload).digest(), root, make_bitmap(set()))
    frame = sign(target, commitment, len(payload))
    checked = jobs.check(target, commitment, frame, payload, {}, answer)
    if checked is None or checked[0].reason_name != "NONE":
        raise SystemExit(f"the honest message of the cost measurement was not found honest: {checked}")
    return checked[0]


def measure_history(client: Client, payload: bytes) -> float:
    """CPU seconds a round, over as many rounds as lie between two copies of the weights."""

    def go() -> None:
        for height in range(HEIGHT + 1, HEIGHT + 1 + SPACING):
            client.jobs.take_applied(height, [payload], height)

    return measure(go)[0] / SPACING


def measure_client(millions: int) -> dict[str, Any]:
    """Bytes and seconds a round, at a model of about that many million parameters.

    trainer_*:      commitment, history of the weights, and an answer in ``PERCENT`` of the rounds;
                    ``trainer_share`` is of the trainer's step without these
    verifier_*:     what a verifier downloads, and its recomputation and check in the place of a step
    """
    torch.set_num_threads(1)
    client, target = start_client(millions), make_target()
    momentum = client.jobs.momentum
    train_seconds, result = measure(lambda: train(client.trainer))
    root = momentum.take_result(HEIGHT)
    answer_seconds, is_ready = measure(lambda: client.jobs.prepare_reveal(target))
    answer = momentum.get_answer(target.key)
    assert is_ready, "it is the newest result"
    assert answer is not None, "it was prepared"
    verifier_seconds, _ = measure(lambda: check(client.jobs, target, result.payload, root, answer))
    # from the third on a snapshot takes over the memory of an older one, as in every later round
    commit_seconds = min(measure(partial(momentum.take_result, height))[0] for height in range(2, 6))
    history_seconds = measure_history(client, result.payload)
    trainer_seconds = commit_seconds + history_seconds + PERCENT / 100 * answer_seconds
    return {
        "parameters": sum(p.numel() for p in client.trainer.parameters.values()),
        "trainer_bytes": round(COMMIT_BYTES + PERCENT / 100 * len(answer)),
        "trainer_seconds": round(trainer_seconds, 4),
        "trainer_share": round(trainer_seconds / train_seconds, 5),
        "verifier_bytes": REVEAL_QUESTION.size + len(answer),
        "verifier_seconds": round(verifier_seconds, 3),
        "train_seconds": round(train_seconds, 3),
        "commit_seconds": round(commit_seconds, 4),
        "history_seconds": round(history_seconds, 4),
        "answer_seconds": round(answer_seconds, 4),
        "answer_bytes": len(answer),
    }


if __name__ == "__main__":
    for size in sys.argv[1].split(","):
        print(json.dumps(measure_client(int(size))), flush=True)
