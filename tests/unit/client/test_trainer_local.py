"""Trainers with local steps over the nano model: they learn, stay equal, can be stopped without a trace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from programs_harness import make_config

from psyche_py.client.trainer import Trainer, TrainResult
from psyche_py.client.verification_jobs import VerificationJobs
from psyche_py.distro import Constant, DistroConfig, LocalOptimizer, PayloadError
from psyche_py.errors import ConfigError, ReplicaError
from psyche_py.model.loader import load_from_config

NANO = Path(__file__).parents[3] / "configs" / "models" / "nano"
SEQ_LEN, STEPS, LR = 32, 3, 4e-3


class Walk:
    """Samples of a made-up language: from each token the same two others can follow."""

    seq_len, vocab_size, num_samples = SEQ_LEN, 512, 1 << 40

    def get_batch(self, start: int, end: int) -> np.ndarray:
        rows = []
        for sample_id in range(start, end + 1):
            rng = np.random.default_rng(sample_id)
            tokens = [int(rng.integers(64))]
            for choice in rng.integers(2, size=self.seq_len):
                tokens.append((tokens[-1] * 7 + int(choice) * 13 + 5) % 64)
            rows.append(tokens)
        return np.array(rows, dtype=np.int64)


def make_trainer(local_steps: int = STEPS, micro_batch_size: int = 2) -> Trainer:
    config = DistroConfig(local_steps=local_steps, compression_topk=32, compression_decay=0.95)
    loaded = load_from_config(NANO, 1)
    return Trainer(loaded, config, Constant(LR), Walk(), micro_batch_size=micro_batch_size, device="cpu")


def never() -> bool:
    return False


def stop_after(num: int) -> Callable[[], bool]:
    """Says stop at the ``num``-th question."""
    asked = iter(range(num))
    return lambda: next(asked, None) is None


def train(trainer: Trainer, first: int, step: int, num: int = 6) -> TrainResult:
    result = trainer.train(first, first + num - 1, step, never)
    assert result is not None
    return result


def get_state(trainer: Trainer) -> tuple[object, ...]:
    assert isinstance(trainer.optimizer, LocalOptimizer)
    state = trainer.optimizer.state_dict()
    tensors = (state["unsent"], state["moments"], state["pending"])
    return trainer.digest(), state["num_steps"], *(x.numpy().tobytes() for x in tensors)


def count_steps(trainer: Trainer) -> int:
    assert isinstance(trainer.optimizer, LocalOptimizer)
    return trainer.optimizer.state_dict()["num_steps"]


@pytest.mark.slow
def test_three_trainers_learn_and_stay_equal_over_delayed_rounds() -> None:
    trainers = [make_trainer() for _ in range(3)]
    rounds: list[list[bytes]] = []
    losses: list[float] = []
    for step in range(10):
        due = rounds[step - 2] if step >= 2 else []
        reports = [trainer.apply(due[i:] + due[:i], step) for i, trainer in enumerate(trainers)]
        assert len({report.digest for report in reports}) == 1
        results = [train(trainer, (3 * step + i) * 6, step) for i, trainer in enumerate(trainers)]
        for trainer in trainers:
            for result in results:
                trainer.check_payload(result.payload)
                assert len(result.payload) == trainer.payload_num_bytes
        rounds.append([result.payload for result in results])
        losses.append(sum(result.loss for result in results) / 3)
    assert losses[-1] < losses[0] - 0.5
    assert {count_steps(trainer) for trainer in trainers} == {10 * STEPS}


@pytest.mark.parametrize(("num", "steps"), [(1, 1), (2, 2), (3, 3), (7, 3)])
def test_a_batch_is_as_many_steps_as_it_has_samples_for(num: int, steps: int) -> None:
    trainer = make_trainer()
    result = train(trainer, 0, 0, num)
    assert count_steps(trainer) == steps
    assert result.num_tokens == num * SEQ_LEN
    again = make_trainer(micro_batch_size=4)
    assert train(again, 0, 0, num).loss == pytest.approx(result.loss, rel=1e-4), "the mean over all samples"


def test_later_parts_are_trained_where_earlier_ones_have_led() -> None:
    """The same two samples three times: the loss that is reported is lower than of one look at them."""

    class Same(Walk):
        def get_batch(self, start: int, end: int) -> np.ndarray:
            two = super().get_batch(0, 1)
            return np.concatenate([two] * ((end - start + 1) // 2))

    config = DistroConfig(local_steps=STEPS)
    trainer = Trainer(load_from_config(NANO, 1), config, Constant(LR), Same(), device="cpu")
    assert train(trainer, 0, 0).loss < train(make_trainer(), 0, 0, 2).loss - 0.05


@pytest.mark.parametrize("questions", range(6))
def test_a_stopped_round_leaves_no_trace(questions: int) -> None:
    trainer, fresh = make_trainer(), make_trainer()
    for each in (trainer, fresh):
        each.apply([train(each, 0, 0).payload], 1)
    before = get_state(trainer)
    assert trainer.train(8, 13, 1, stop_after(questions)) is None
    assert get_state(trainer) == before
    assert all(p.grad is None for p in trainer.parameters.values())
    again, expected = train(trainer, 8, 1), train(fresh, 8, 1)
    assert (again.payload, again.loss) == (expected.payload, expected.loss)
    assert get_state(trainer) == get_state(fresh)


def test_a_round_that_is_not_finite_counts_as_no_way() -> None:
    trainer, plain = make_trainer(), make_trainer()
    for each in (trainer, plain):
        train(each, 0, 0)
    parameter = trainer.parameters["model.norm.weight"]
    hook = parameter.register_hook(lambda grad: grad * float("inf"))
    result = train(trainer, 8, 1)
    assert result.was_skipped
    assert np.isfinite(result.loss)
    assert result.payload == plain.optimizer.step(LR), "what was left unsent"
    plain._pending_step = 1
    hook.remove()
    assert train(trainer, 16, 2).payload == train(plain, 16, 2).payload


def test_a_loss_that_is_not_finite_ends_the_round() -> None:
    trainer = make_trainer()
    forward, count = trainer._model.forward, iter(range(100))

    def broken(**kwargs: object) -> object:
        output = forward(**kwargs)
        if next(count) >= 1:
            output.logits = output.logits * float("nan")
        return output

    trainer._model.forward = broken  # type: ignore[method-assign]
    before = count_steps(trainer)
    result = train(trainer, 0, 0)
    assert result.was_skipped
    assert np.isfinite(result.loss), "of the part that had one"
    assert count_steps(trainer) == before
    with pytest.raises(ReplicaError, match="not finite"):
        train(trainer, 8, 1)


def test_payloads_of_the_other_kind_are_refused_and_change_nothing() -> None:
    trainer, plain = make_trainer(), make_trainer(local_steps=1)
    own, other = train(trainer, 0, 0).payload, train(plain, 0, 0).payload
    before = trainer.digest(), plain.digest()
    for each, payload in ((trainer, other), (plain, own)):
        with pytest.raises(PayloadError):
            each.check_payload(payload)
        with pytest.raises(PayloadError):
            each.apply([payload], 1)
    assert before == (trainer.digest(), plain.digest())


def test_it_is_not_verified() -> None:
    config = make_config(verification_percent=5)
    VerificationJobs(make_trainer(local_steps=1), config, 1, never)
    with pytest.raises(ConfigError) as caught:
        VerificationJobs(make_trainer(), config, 1, never)
    assert "verification_percent = 0" in caught.value.remedy
