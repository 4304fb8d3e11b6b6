"""A trainer of the nano model, what it committed to, and clients of the same run that look at it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from verify_cheats import Deed
from verify_fleet import Compute, Fleet, Scene

from psyche_py.client.targets import ResultHeader, Target
from psyche_py.client.trainer import Trainer
from psyche_py.client.verification_jobs import VerificationJobs
from psyche_py.coordinator.commitment import Commitment, make_bitmap
from psyche_py.coordinator.model import CoordinatorConfig
from psyche_py.distro import Constant, DistroConfig
from psyche_py.model.loader import load_from_config
from psyche_py.p2p.frames import make_frame
from psyche_py.p2p.identity import SigningKey
from psyche_py.p2p.message import RoundHeader, TrainingResult, encode_message
from psyche_py.verify import Duty, compute_sampled_tiles

NANO = Path(__file__).parents[2] / "configs" / "models" / "nano"
LR, BATCH, NUM_ROUNDS, HEIGHT = 4e-3, 8, 7, 5
SEQ_LEN, VOCAB = 32, 512
PROGRAM_ID, RUN_ID = bytes(range(32)), b"run".ljust(32, b"\0")
KEY = SigningKey(b"\5" * 32)
TIMES = dict.fromkeys(("warmup_time", "cooldown_time", "max_round_train_time", "round_witness_time"), 10)
COUNTS = dict.fromkeys(("epoch_time", "total_steps", "init_min_clients", "min_clients"), 100)
SIZES = {"global_batch_size_start": 16, "global_batch_size_end": 16}
CONFIG = CoordinatorConfig(
    **TIMES,
    **COUNTS,
    **SIZES,
    verification_percent=10,
    max_residual=10_000,
    max_violation=10_000,
    min_jaccard=950_000,
)


class Counting:
    """Samples that can be learnt: steps of one to four through a small vocabulary."""

    seq_len, vocab_size, num_samples = SEQ_LEN, VOCAB, 1 << 30

    def get_batch(self, start: int, end: int):  # type: ignore[no-untyped-def]
        rows = []
        for sample in range(start, end + 1):
            generator = torch.Generator().manual_seed(sample)
            steps = torch.randint(1, 5, (SEQ_LEN + 1,), generator=generator)
            rows.append((sample + steps.cumsum(0)) % 97)
        return torch.stack(rows).numpy()


def compute_loss(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Mean nats per token."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def get_range(worker: int, step: int) -> tuple[int, int]:
    """Samples of a worker."""
    first = (step * 2 + worker) * BATCH
    return first, first + BATCH - 1


@dataclass
class Scenery:
    """A fleet of two trainers after some rounds, and what its first one did in round HEIGHT."""

    fleet: Fleet
    scene: Scene
    results: list[list[bytes]]


def play() -> Scenery:
    """Rounds 0 .. HEIGHT of two honest trainers, and the results that clients apply after it."""
    model = load_from_config(NANO, 1).model.float()
    fleet = Fleet(model, compute_loss, DistroConfig(compression_decay=0.99), [Compute(), Compute()])
    data = Counting()
    for step in range(HEIGHT + 1):
        batches = [torch.from_numpy(data.get_batch(*get_range(worker, step))) for worker in range(2)]
        scenes = fleet.play_round(batches, LR)
    return Scenery(fleet, scenes[0], fleet.results)


class Looker:
    """A client that followed the run and is past the round in question."""

    def __init__(self, results: list[list[bytes]], config: CoordinatorConfig = CONFIG) -> None:
        distro = DistroConfig(compression_decay=0.99)
        loaded = load_from_config(NANO, 1)
        self.trainer = Trainer(loaded, distro, Constant(LR), Counting(), device="cpu")
        self.jobs = VerificationJobs(self.trainer, config, 1, lambda: False)
        self.trainer.start_epoch(0, is_cold=False)
        self.jobs.start_epoch()
        for height in range(2, HEIGHT + 2):
            self.trainer.apply(results[height - 2], height)
            self.jobs.take_applied(height, results[height - 2], height)


def make_target(scene: Scene, **changes: object) -> Target:
    """What is known of the scene's result: trainer 0, looked at by client 1."""
    values = {
        "run": RUN_ID,
        "epoch": 3,
        "height": HEIGHT,
        "step": HEIGHT,
        "random_seed": 77,
        "verifier": 1,
        "trainer": 0,
        "trainer_key": KEY.public_key,
        "num_sampled": 16,
        "ranges": (get_range(0, HEIGHT),),
        "before_root": scene.before.root,
        "previous": {0: b"own", 1: b"other"},
    }
    return Target(**(values | changes))  # type: ignore[arg-type]


def make_previous(scene: Scene, results: list[list[bytes]]) -> dict[int, bytes | None]:
    """Payloads of the round before; the scene's trainer foresaw its own only."""
    return {0: scene.pending, 1: results[HEIGHT - 1][1]}


@dataclass
class Claim:
    """A deed as its trainer announces it."""

    commitment: Commitment
    frame: bytes
    payload: bytes
    answer: bytes | None


def make_claim(target: Target, deed: Deed) -> Claim:
    """Sign what the deed's trainer says, and let it answer the question."""
    payload = deed.scene.payload
    root, foreseen = deed.scene.after.root, make_bitmap({0})
    commitment = Commitment(hashlib.sha256(payload).digest(), root, foreseen)
    tiles = compute_sampled_tiles(
        target.random_seed,
        Duty(target.verifier, target.trainer),
        deed.scene.after.layout.num_tiles,
        target.num_sampled,
    )
    return Claim(commitment, sign(target, commitment, len(payload)), payload, deed.answer(tiles))


def sign(target: Target, commitment: Commitment, size: int, key: SigningKey = KEY, **changes: int) -> bytes:
    """The announcement of a result."""
    header = RoundHeader(PROGRAM_ID, RUN_ID, target.epoch, target.height, target.trainer)
    batch = {"batch_start": target.ranges[0][0], "batch_end": target.ranges[0][1]} | changes
    message = TrainingResult(header, batch["batch_start"], batch["batch_end"], commitment.encode(), size)
    return make_frame(key, encode_message(message)).raw


HEADER = ResultHeader(PROGRAM_ID, RUN_ID)
