"""Trainers over the nano model: replicas stay equal, learn, and can be stopped anywhere without a trace."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from psyche_py.client.incoming_model import IncomingModel
from psyche_py.client.jobs import TrainerJobs
from psyche_py.client.options import ClientOptions
from psyche_py.client.trainer import Trainer, choose_device
from psyche_py.distro import Constant, DistroConfig, PayloadError
from psyche_py.distro.digest import get_bytes
from psyche_py.errors import DataError, ReplicaError, UsageError
from psyche_py.model.loader import LoadedModel, load_from_config
from psyche_py.model.sharing import ModelSnapshot, parse_manifest, read_piece

NANO = Path(__file__).parents[3] / "configs" / "models" / "nano"
SEQ_LEN = 32
LR = 4e-3


class Walk:
    """Samples of a made-up language: from each token the same four others can follow."""

    def __init__(self, seq_len: int = SEQ_LEN, vocab_size: int = 512) -> None:
        self.seq_len = seq_len
        self.vocab_size = vocab_size
        self.num_samples = 1 << 40

    def get_batch(self, start: int, end: int) -> np.ndarray:
        rows = []
        for sample_id in range(start, end + 1):
            rng = np.random.default_rng(sample_id)
            tokens = [int(rng.integers(64))]
            for choice in rng.integers(4, size=self.seq_len):
                tokens.append((tokens[-1] * 7 + int(choice) * 13 + 5) % 64)
            rows.append(tokens)
        return np.array(rows, dtype=np.int64)


def make_trainer(**options: object) -> Trainer:
    config = DistroConfig(compression_decay=0.99)
    settings = {"micro_batch_size": 4, "device": "cpu", **options}
    return Trainer(load_from_config(NANO, 1), config, Constant(LR), Walk(), **settings)  # type: ignore[arg-type]


def never() -> bool:
    return False


def stop_after(num: int) -> Callable[[], bool]:
    """Says stop at the ``num``-th question."""
    asked = iter(range(num))
    return lambda: next(asked, None) is None


def get_state(trainer: Trainer) -> tuple[bytes, bytes, bytes]:
    state = trainer.optimizer.state_dict()
    return trainer.digest(), state["momentum"].numpy().tobytes(), bytes(state["pending"].numpy())


def test_three_trainers_learn_and_stay_equal_over_delayed_rounds() -> None:
    trainers = [make_trainer(micro_batch_size=size) for size in (1, 4, 8)]
    for trainer in trainers:
        trainer.start_epoch(0, is_cold=False)
    rounds: list[list[bytes]] = []
    losses: list[float] = []
    next_sample = 0
    for step in range(24):
        due = rounds[step - 2] if step >= 2 else []
        reports = [trainer.apply(due[i:] + due[:i], step) for i, trainer in enumerate(trainers)]
        assert len({report.digest for report in reports}) == 1
        assert all(report.num_payloads == len(due) for report in reports)
        results = []
        for trainer in trainers:
            result = trainer.train(next_sample, next_sample + 7, step, never)
            assert result is not None
            assert not result.was_skipped
            assert result.num_tokens == 8 * SEQ_LEN
            assert result.seconds > 0
            assert len(result.payload) == trainer.payload_num_bytes
            next_sample += 8
            results.append(result)
        for trainer in trainers:
            for result in results:
                trainer.check_payload(result.payload)
        rounds.append([result.payload for result in results])
        losses.append(sum(result.loss for result in results) / 3)
    assert losses[0] == pytest.approx(np.log(512), abs=0.1)  # nats
    assert losses[-1] < losses[0] - 1.5


def test_the_order_of_payloads_does_not_matter_and_none_is_no_change() -> None:
    one, two = make_trainer(), make_trainer()
    payloads = [make_trainer().train(i * 8, i * 8 + 7, 0, never).payload for i in range(3)]  # type: ignore[union-attr]
    before = one.digest()
    assert one.apply([], 5).digest == before
    assert one.apply(payloads, 5).digest == two.apply(payloads[::-1], 5).digest != before


def test_training_alone_never_changes_the_replica() -> None:
    trainer = make_trainer()
    before = trainer.digest()
    for step in range(3):
        assert trainer.train(step, step, step, never) is not None
        assert trainer.digest() == before


def test_the_same_batch_gives_the_same_result_again() -> None:
    results = [make_trainer(num_threads=threads).train(3, 10, 0, never) for threads in (1, 2, 1)]
    torch.set_num_threads(1)
    assert results[0] is not None
    assert results[2] is not None
    assert results[0].payload == results[2].payload
    assert results[0].loss == results[2].loss


def test_repeated_samples_are_part_of_the_batch() -> None:
    """In front or behind, in one range or in several: the same gradient, but for rounding of its sum."""
    whole = make_trainer(micro_batch_size=16).train(0, 9, 0, never)
    parts = make_trainer(micro_batch_size=16).train(0, 4, 0, never, repeats=((5, 5), (6, 9)))
    alone = make_trainer(micro_batch_size=16).train(0, 4, 0, never)
    assert whole is not None
    assert parts is not None
    assert alone is not None
    assert (parts.loss, parts.payload) == (whole.loss, whole.payload)
    assert parts.num_tokens == 10 * SEQ_LEN
    assert parts.payload != alone.payload


@pytest.mark.parametrize("questions", [0, 1, 2, 3])
def test_a_stopped_batch_leaves_no_trace(questions: int) -> None:
    trainer = make_trainer(micro_batch_size=2)
    trainer.apply([trainer.train(0, 7, 0, never).payload], 1)  # type: ignore[union-attr]
    before = get_state(trainer)

    assert trainer.train(8, 13, 1, stop_after(questions)) is None

    assert get_state(trainer) == before
    assert all(p.grad is None for p in trainer._parameters.values())
    again, fresh = trainer.train(8, 13, 1, never), make_trainer(micro_batch_size=2)
    fresh.apply([fresh.train(0, 7, 0, never).payload], 1)  # type: ignore[union-attr]
    expected = fresh.train(8, 13, 1, never)
    assert again is not None
    assert expected is not None
    assert (again.payload, again.loss) == (expected.payload, expected.loss)


def test_an_error_in_the_middle_leaves_no_trace() -> None:
    trainer = make_trainer(micro_batch_size=2)
    trainer.train(0, 7, 0, never)
    before = get_state(trainer)
    asked = 0

    def fail() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        trainer.train(8, 15, 1, fail)
    assert get_state(trainer) == before


def test_micro_batches_give_the_gradient_of_the_whole_batch() -> None:
    def compute_gradients(size: int) -> dict[str, torch.Tensor]:
        trainer = make_trainer(micro_batch_size=size)
        trainer.accumulate(Walk().get_batch(0, 6), 0, 0, never)
        return {name: p.grad.clone() for name, p in trainer._parameters.items() if p.grad is not None}

    whole = compute_gradients(7)
    for size in (1, 2, 3):  # 7 samples: the last micro batch is smaller and weighs less
        for name, gradient in compute_gradients(size).items():
            torch.testing.assert_close(gradient, whole[name], rtol=1e-3, atol=1e-7)


def test_gradients_are_taken_where_the_pending_message_leads() -> None:
    trainer, still = make_trainer(), make_trainer()
    first = trainer.train(0, 7, 0, never)
    still.train(0, 7, 0, never)
    still.drop_pending()
    ahead, behind = trainer.train(0, 7, 1, never), still.train(0, 7, 1, never)
    assert first is not None
    assert ahead is not None
    assert behind is not None
    # the same samples: at the point ahead they are already partly learned
    assert behind.loss == first.loss
    assert ahead.loss < first.loss


def test_with_every_pending_message_gradients_are_taken_where_all_will_be() -> None:
    one, other, synchronous = make_trainer(), make_trainer(), make_trainer()
    mine, theirs = one.train(0, 7, 0, never), other.train(8, 15, 0, never)
    assert mine is not None
    assert theirs is not None
    synchronous.apply([mine.payload, theirs.payload], 1)
    expected = synchronous.train(16, 23, 1, never)
    found = one.train(16, 23, 1, never, [theirs.payload])
    assert expected is not None
    assert found is not None
    assert found.loss == expected.loss
    alone = other.train(16, 23, 1, never)
    assert alone is not None
    assert alone.loss != expected.loss


def _break_loss(trainer: Trainer, calls: set[int]) -> None:
    """Make the logits of the given forward passes NaN."""
    forward, count = trainer._model.forward, iter(range(10**6))

    def broken(**kwargs: object) -> object:
        output = forward(**kwargs)
        if next(count) in calls:
            output.logits = output.logits * float("nan")
        return output

    trainer._model.forward = broken  # type: ignore[method-assign]


def test_a_batch_that_is_not_finite_counts_as_gradient_zero() -> None:
    trainer, plain = make_trainer(), make_trainer()
    for one in (trainer, plain):
        one.train(0, 7, 0, never)
    _break_loss(trainer, {1})
    result = trainer.train(8, 15, 1, never)
    plain.optimizer.zero_grad()
    expected = plain.optimizer.step(LR)

    assert result is not None
    assert result.was_skipped
    assert np.isfinite(result.loss)
    assert result.payload == expected
    after = trainer.train(16, 23, 2, never)
    assert after is not None
    assert not after.was_skipped


def test_a_gradient_that_is_not_finite_counts_as_zero() -> None:
    trainer = make_trainer()
    trainer._parameters["model.norm.weight"].register_hook(lambda grad: grad * float("inf"))
    for step in range(2):
        result = trainer.train(0, 7, step, never)
        assert result is not None
        assert result.was_skipped
        assert torch.isfinite(trainer.optimizer.state_dict()["momentum"]).all()
    with pytest.raises(ReplicaError, match="3 times in a row"):
        trainer.train(0, 7, 2, never)


def test_a_batch_without_any_finite_loss_is_an_error_and_leaves_no_trace() -> None:
    trainer = make_trainer()
    trainer.train(0, 7, 0, never)
    before = get_state(trainer)
    _break_loss(trainer, set(range(10)))
    with pytest.raises(ReplicaError, match="loss at step 1 is not finite"):
        trainer.train(8, 15, 1, never)
    assert get_state(trainer) == before


def test_running_out_of_gpu_memory_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer()

    def fail(**kwargs: object) -> object:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer._model, "forward", fail)
    with pytest.raises(ReplicaError) as caught:
        trainer.train(0, 7, 0, never)
    assert "--micro-batch-size" in caught.value.remedy


def test_a_cold_start_ramps_the_learning_rate_and_forgets() -> None:
    trainer = make_trainer(cold_start_warmup_steps=4)
    trainer.train(0, 7, 0, never)
    trainer.start_epoch(10, is_cold=True)
    assert [trainer.get_lr(step) for step in (10, 11, 12, 14, 15)] == [0, LR / 4, LR / 2, LR, LR]
    assert get_state(trainer) == get_state(make_trainer())
    # the first steps of the ramp work with a learning rate of zero
    result = trainer.train(0, 7, 10, never)
    assert result is not None
    before = trainer.digest()
    assert trainer.apply([result.payload], 10).digest == before

    trainer.start_epoch(20, is_cold=False)
    assert trainer.get_lr(20) == LR


def test_a_new_epoch_keeps_momentum_and_forgets_the_pending_message() -> None:
    trainer = make_trainer(cold_start_warmup_steps=4)
    trainer.train(0, 7, 0, never)
    _, momentum, pending = get_state(trainer)
    assert pending
    trainer.start_epoch(10, is_cold=False)
    assert get_state(trainer)[1:] == (momentum, b"")


def test_garbage_is_no_payload_and_changes_nothing() -> None:
    trainer = make_trainer()
    good = trainer.train(0, 7, 0, never)
    assert good is not None
    before = get_state(trainer)
    for bad in (b"", good.payload[:-1], bytes(len(good.payload)), good.payload + b"\0"):
        with pytest.raises(PayloadError):
            trainer.check_payload(bad)
        with pytest.raises(PayloadError):
            trainer.apply([good.payload, bad], 1)
    assert get_state(trainer) == before


def test_garbage_that_is_decoded_ahead_is_told_when_it_is_applied() -> None:
    """Our own result is decoded unchecked: it must not end the client before the witnesses have spoken."""
    jobs = TrainerJobs(ClientOptions("run"))
    jobs._trainer = trainer = make_trainer()
    good, before = trainer.train(0, 1, 0, never), trainer.digest()
    assert good is not None
    jobs.prepare_apply([good.payload, b"garbage"])
    assert trainer.digest() == before
    with pytest.raises(PayloadError):
        trainer.apply([good.payload, b"garbage"], 0)
    other = make_trainer()
    for one in (trainer, other):
        one.apply([good.payload], 0)
    assert trainer.digest() == other.digest()


def send(snapshot: ModelSnapshot) -> LoadedModel:
    """Piece by piece, as peers do."""
    incoming = IncomingModel(snapshot.digest, None)
    incoming.begin(snapshot.manifest)
    memory = {name: get_bytes(tensor) for name, tensor in snapshot.tensors.items()}
    for number, piece in enumerate(parse_manifest(snapshot.manifest).pieces):
        incoming.take(number, bytes(read_piece(piece, memory)))
    assert incoming.is_complete
    assert incoming.loaded is not None
    return incoming.loaded


def test_a_joiner_takes_the_model_from_a_donor_and_follows() -> None:
    donor = make_trainer()
    payload = donor.train(0, 7, 0, never).payload  # type: ignore[union-attr]
    donor.apply([payload], 0)
    snapshot = donor.export_model()
    assert snapshot.digest == donor.digest(), "what witnesses attest is what joiners hold the manifest to"

    joiner = Trainer(send(snapshot), DistroConfig(compression_decay=0.99), Constant(LR), Walk(), device="cpu")
    assert joiner.digest() == snapshot.digest
    assert joiner.apply([payload], 1).digest == donor.apply([payload], 1).digest
    # what was exported is a copy: it does not move with the replica
    assert send(snapshot) is not None
    assert joiner.digest() != snapshot.digest


def test_another_configuration_is_another_digest() -> None:
    """With the same weights it would compute something else, and nobody would see why."""
    one, two = load_from_config(NANO, 1), load_from_config(NANO, 1)
    two.config_json = two.config_json.replace(b'"rms_norm_eps": 1e-05', b'"rms_norm_eps": 1e-06')
    assert one.config_json != two.config_json
    digests = [
        Trainer(loaded, DistroConfig(), Constant(LR), Walk(), device="cpu").digest() for loaded in (one, two)
    ]
    assert digests[0] != digests[1]


def test_dropout_follows_from_the_batch() -> None:
    def train() -> bytes:
        trainer = make_trainer()
        trainer._model.lm_head = torch.nn.Sequential(torch.nn.Dropout(0.5), trainer._model.lm_head)
        result = trainer.train(0, 7, 0, never)
        assert result is not None
        return result.payload

    torch.manual_seed(1)
    first = train()
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    assert train() == first
    torch.manual_seed(1)
    train()
    assert (torch.random.get_rng_state() == state).all()


def test_data_that_does_not_fit_the_model_is_refused() -> None:
    loaded = load_from_config(NANO, 1)
    for data, text in (
        (Walk(vocab_size=513), "513 different tokens"),
        (Walk(seq_len=513), "have 513 tokens"),
    ):
        with pytest.raises(DataError, match=text):
            Trainer(loaded, DistroConfig(), Constant(LR), data, device="cpu")
    with pytest.raises(UsageError):
        Trainer(loaded, DistroConfig(), Constant(LR), Walk(), micro_batch_size=0)


def test_devices_by_name() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type in ("cpu", "cuda")
    with pytest.raises(UsageError, match="There is no device cuda:77"):
        choose_device("cuda:77")
    with pytest.raises(UsageError, match="There is no device toaster"):
        choose_device("toaster")
