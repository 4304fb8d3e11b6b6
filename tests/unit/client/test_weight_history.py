"""Weights of past rounds: any of them is the very bits that were trained on, from few copies."""

from __future__ import annotations

import pytest
import torch
from verify_case import LR, NANO, Counting, get_range

from psyche_py.client.trainer import Trainer
from psyche_py.client.weight_history import REACH, SPACING, Update, WeightHistory, Weights
from psyche_py.distro import Constant, DistroConfig
from psyche_py.model.loader import load_from_config

NUM_ROUNDS = 21


def never() -> bool:
    return False


@pytest.fixture(scope="module")
def played() -> tuple[Trainer, WeightHistory, dict[int, Weights]]:
    """One trainer's rounds, and true copies of all its weights."""
    trainer = Trainer(load_from_config(NANO, 1), DistroConfig(), Constant(LR), Counting(), device="cpu")
    history, true, results = WeightHistory(), {}, []
    history.start(trainer.parameters)
    for height in range(NUM_ROUNDS):
        if height >= 2:
            due = results[height - 2] if height % 5 else []  # a round that nobody delivered
            trainer.apply(due, height)
            history.add(height, trainer.parameters, due, LR)
        true[height] = {name: p.detach().clone() for name, p in trainer.parameters.items()}
        result = trainer.train(*get_range(0, height), height, never)
        assert result is not None
        results.append([result.payload])
    return trainer, history, true


def test_every_round_within_reach_is_rebuilt_to_the_bit(
    played: tuple[Trainer, WeightHistory, dict[int, Weights]],
) -> None:
    trainer, history, true = played
    before = trainer.digest()
    bench = trainer.make_optimizer()

    def apply(weights: Weights, update: Update) -> None:
        kept = {name: p.data for name, p in trainer.parameters.items()}
        for name, p in trainer.parameters.items():
            p.data = weights[name]
        bench.apply(update.payloads, update.lr)
        for name, p in trainer.parameters.items():
            p.data = kept[name]

    for height in range(NUM_ROUNDS - REACH, NUM_ROUNDS):
        weights = history.rebuild(height, apply, torch.device("cpu"))
        assert weights is not None
        assert all(weights[name].equal(true[height][name]) for name in weights), height
    assert trainer.digest() == before


def test_few_copies_are_kept(played: tuple[Trainer, WeightHistory, dict[int, Weights]]) -> None:
    _, history, _ = played
    assert len(history._copies) <= REACH // SPACING + 1
    assert history.rebuild(3, lambda weights, update: None, torch.device("cpu")) is None
