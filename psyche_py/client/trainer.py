"""The replica and what is done to it: apply accepted results, train a batch, digest, export.

Synchronous: the runtime calls it from one worker thread at a time (``check_payload`` from any). Weights are
float32 everywhere; on a GPU the forward and backward passes compute in bfloat16 (autocast). The update is
exact, so replicas on CPUs and GPUs have one digest.
"""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from psyche_py.client.local_steps import take_local_steps
from psyche_py.distro import (
    DistroConfig,
    DistroOptimizer,
    LocalOptimizer,
    NonFiniteGradientError,
    group_parameters,
    make_optimizer,
)
from psyche_py.distro.digest import describe_model
from psyche_py.errors import DataError, ReplicaError, UsageError
from psyche_py.model.loader import canonicalize_config
from psyche_py.model.sharing import ModelSnapshot

if TYPE_CHECKING:
    from psyche_py.data.provider import DataProvider, TokenArray
    from psyche_py.distro import Schedule
    from psyche_py.model.loader import LoadedModel

MAX_SKIPS_IN_A_ROW = 3
_NONE_PENDING = -2
_SEED_DOMAIN = b"psyche-py/batch-seed/1"


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A round's result.

    payload:      what goes to everybody
    loss:         nats per token, mean over the batch
    num_tokens:   tokens predicted
    seconds:      wall time
    was_skipped:  the gradient was not finite and counted as zero
    used_pending: the lookahead took in our own message of the step before
    """

    payload: bytes
    loss: float
    num_tokens: int
    seconds: float
    was_skipped: bool = False
    used_pending: bool = False


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """Model digest (32 bytes) after an update by ``num_payloads`` results, and the wall time of both."""

    digest: bytes
    num_payloads: int
    seconds: float


class Trainer:
    """One model, its optimizer and its data.

    loaded:                   the model; it is moved to ``device`` and belongs to the trainer from now on
    schedule:                 learning rate by step
    micro_batch_size:         samples per forward pass; the gradient is the same but for rounding
    device:                   "auto" (a GPU when there is one), or a torch device
    num_threads:              of this process on the CPU
    cold_start_warmup_steps:  length of the learning rate ramp after a cold start

    Raises DataError when data and model do not fit, UsageError for a device that is not there.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        config: DistroConfig,
        schedule: Schedule,
        data: DataProvider,
        *,
        micro_batch_size: int = 4,
        device: str = "auto",
        num_threads: int = 1,
        cold_start_warmup_steps: int = 0,
    ) -> None:
        if micro_batch_size < 1 or num_threads < 1:
            raise UsageError("Micro batch size and number of threads are at least 1.")
        torch.set_num_threads(num_threads)
        self._device = choose_device(device)
        self._loaded = loaded
        self._data = data
        self._schedule = schedule
        self._micro_batch_size = micro_batch_size
        self._cold_steps = cold_start_warmup_steps
        self._cold_start: tuple[int, int] | None = None
        self._skips_in_a_row = 0
        self._pending_step = _NONE_PENDING  # step that our pending message is of
        self._model = loaded.model.to(device=self._device, dtype=torch.float32)
        self._model.train()
        self._check_fit()
        self._parameters = dict(self._model.named_parameters())
        # replicas that compute with other configurations are no replicas: their digests differ too
        self._about = canonicalize_config(loaded.config_json)
        self._config = config
        self.optimizer = self.make_optimizer()

    def make_optimizer(self) -> DistroOptimizer | LocalOptimizer:
        """An optimizer over the trainer's weights: the rates of every replica, a state of its own."""
        return make_optimizer(group_parameters(self._model, self._config), self._config)

    def _check_fit(self) -> None:
        config: Any = self._model.config
        known, used = getattr(config, "vocab_size", None), self._data.vocab_size
        if known is not None and used > known:
            raise DataError(
                f"The data has {used} different tokens, the model knows {known}.",
                "Prepare the data with the model's tokenizer.",
            )
        longest, seq_len = getattr(config, "max_position_embeddings", None), self._data.seq_len
        if longest is not None and seq_len > longest:
            raise DataError(
                f"The run's sequences have {seq_len} tokens, the model takes {longest}.",
                "Lower max_seq_len or raise the model's max_position_embeddings.",
            )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._device

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """The weights by name; their values may be exchanged for a while, but never changed."""
        return self._parameters

    @property
    def payload_num_bytes(self) -> int:
        """Length of every payload of this model."""
        return self.optimizer.payload_layout.num_bytes

    def check_payload(self, payload: bytes) -> None:
        """Raises PayloadError when the bytes are no payload of this model. Safe from any thread."""
        self.optimizer.check_payload(payload)

    def drop_pending(self) -> None:
        """Our last result will not be applied: the next lookahead does not foresee it."""
        self.optimizer.drop_pending()
        self._pending_step = _NONE_PENDING

    def start_epoch(self, start_step: int, is_cold: bool) -> None:
        """A new epoch begins. Unapplied messages of the last one are void; a cold start forgets momentum."""
        self.drop_pending()
        self._cold_start = None
        if is_cold and self._cold_steps:
            self.optimizer.reset()
            self._cold_start = (start_step, start_step + self._cold_steps)

    def get_lr(self, step: int) -> float:
        """Learning rate of a step, with the ramp of a cold start from 0 to 1 (psyche.md 1.14)."""
        lr = self._schedule.get_lr(step)
        if self._cold_start is not None:
            start, end = self._cold_start
            if start <= step <= end:
                lr *= (step - start) / (end - start)
        return lr

    def apply(self, payloads: Sequence[bytes], step: int) -> ApplyReport:
        """Apply a round's accepted results with the learning rate of ``step``; any order gives the same bits.

        Raises PayloadError, with nothing changed, when one is no payload. No payloads: nothing changes.
        """
        started = time.perf_counter()
        self.optimizer.apply(payloads, self.get_lr(step))
        digest = self.digest()
        return ApplyReport(digest, len(payloads), time.perf_counter() - started)

    def train(
        self,
        batch_start: int,
        batch_end: int,
        step: int,
        should_stop: Callable[[], bool],
        received: Sequence[bytes] = (),
        repeats: Sequence[tuple[int, int]] = (),
    ) -> TrainResult | None:
        """Train the samples ``batch_start .. batch_end`` (inclusive), and those of the ranges ``repeats`` as
        part of the same batch; None when stopped in between.

        Gradients are taken at the point that our own pending message and those in ``received`` (checked
        payloads of the others for the step before) lead to, which is the public lookahead, and averaged over
        the batch. With all of them it is where synchronous training would be. A stopped or failed batch
        leaves weights, momentum and pending message as they were. With local steps the batch is cut into so
        many parts, a step each, that begin at that point; what is said of momentum is then of their state.

        A loss or gradient that is not finite makes the whole batch count as one of gradient zero: the
        result says what is left in momentum, and the round goes on. ReplicaError after three such batches in
        a row, or when no micro batch has a finite loss to report.
        """
        started = time.perf_counter()
        tokens = self.get_tokens(((batch_start, batch_end), *repeats))
        lr = self.get_lr(step)
        used_pending = self._pending_step == step - 1
        if not used_pending:
            # we sat out a round: our last message is in the weights by now, or will never be
            self.drop_pending()
        self.optimizer.zero_grad()
        try:
            with self.optimizer.lookahead(lr, received):
                losses = self._compute(tokens, step, batch_start, lr, should_stop)
            if losses is None:
                return None
            loss, is_finite = summarize(losses, step)
            payload, is_finite = self._finish_step(lr, is_finite)
            self._pending_step = step
        except torch.OutOfMemoryError as error:
            raise ReplicaError(
                f"The GPU is out of memory with micro batches of {self._micro_batch_size} samples.",
                "Join with a smaller --micro-batch-size.",
            ) from error
        finally:
            self.optimizer.zero_grad()
        self._count_skip(is_finite, step)
        num_tokens = tokens.shape[0] * (tokens.shape[1] - 1)
        seconds = time.perf_counter() - started
        return TrainResult(payload, loss, num_tokens, seconds, not is_finite, used_pending)

    def _compute(
        self, tokens: TokenArray, step: int, first_sample: int, lr: float, should_stop: Callable[[], bool]
    ) -> list[tuple[float, float]] | None:
        """What ``optimizer.step`` sends: the gradient of all tokens, or local steps over parts of them.

        Returns what ``accumulate`` does.
        """
        if isinstance(self.optimizer, DistroOptimizer):
            return self.accumulate(tokens, step, first_sample, should_stop)

        def compute_part(part: TokenArray, first: int) -> list[tuple[float, float]] | None:
            return self.accumulate(part, step, first, should_stop)

        return take_local_steps(self.optimizer, tokens, first_sample, lr, compute_part)

    def _finish_step(self, lr: float, is_finite: bool) -> tuple[bytes, bool]:
        """The payload, and whether the gradient counted."""
        if is_finite:
            try:
                return self.optimizer.step(lr), True
            except NonFiniteGradientError:
                is_finite = False
        self.optimizer.forget_batch()
        return self.optimizer.step(lr), is_finite

    def _count_skip(self, is_finite: bool, step: int) -> None:
        self._skips_in_a_row = 0 if is_finite else self._skips_in_a_row + 1
        if self._skips_in_a_row >= MAX_SKIPS_IN_A_ROW:
            raise ReplicaError(
                f"The gradient was not finite {MAX_SKIPS_IN_A_ROW} times in a row, last at step {step}.",
                "The run's learning rate may be too high.",
            )

    def get_tokens(self, ranges: Sequence[tuple[int, int]]) -> TokenArray:
        """Samples of all ranges (first and last, both included) in their order, int64 [B, T + 1]."""
        parts = [self._data.get_batch(first, last) for first, last in ranges]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def accumulate(
        self,
        tokens: TokenArray,
        step: int,
        batch_start: int,
        should_stop: Callable[[], bool],
        *,
        in_other_precision: bool = False,
    ) -> list[tuple[float, float]] | None:
        """Forward and backward by micro batches over ``tokens`` int64 [B, T + 1], at the weights as they are.

        Returns (share of the batch, mean loss) per micro batch, or None when stopped. ``.grad`` then holds
        the gradient of the mean loss, unless a loss is not finite (nothing is added for that one).
        in_other_precision: bfloat16 where we compute in float32, and the other way round.
        """
        with self._get_seeded_state(step, batch_start):
            return self._accumulate(tokens, should_stop, self._is_bfloat16 != in_other_precision)

    def _accumulate(
        self, tokens: TokenArray, should_stop: Callable[[], bool], is_bfloat16: bool
    ) -> list[tuple[float, float]] | None:
        batch = torch.from_numpy(tokens).to(self._device)
        num = batch.shape[0]
        losses: list[tuple[float, float]] = []
        for start in range(0, num, self._micro_batch_size):
            if should_stop():
                return None
            micro = batch[start : start + self._micro_batch_size]
            share = micro.shape[0] / num
            with self._get_compute_type(is_bfloat16):
                logits = self._model(input_ids=micro[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.float().reshape(-1, logits.shape[-1]), micro[:, 1:].reshape(-1)
            )
            value = float(loss.detach())
            if math.isfinite(value):
                (loss * share).backward()  # type: ignore[no-untyped-call]
            losses.append((share, value))
        return None if should_stop() else losses

    @property
    def _is_bfloat16(self) -> bool:
        return self._device.type == "cuda" and torch.cuda.is_bf16_supported()

    def _get_compute_type(self, is_bfloat16: bool) -> AbstractContextManager[object]:
        return torch.autocast(self._device.type, dtype=torch.bfloat16) if is_bfloat16 else nullcontext()

    def _get_seeded_state(self, step: int, batch_start: int) -> AbstractContextManager[object]:
        """Dropout, where a model has it, follows from the batch alone; torch's generators are put back."""
        devices = [self._device] if self._device.type == "cuda" else []
        return _Seeded(torch.random.fork_rng(devices=devices), _compute_seed(step, batch_start))

    def digest(self) -> bytes:
        """Model digest, 32 bytes."""
        return self.optimizer.model_digest(self._about)

    def export_model(self) -> ModelSnapshot:
        """A copy of the replica at rest, on the CPU."""
        tensors = {name: p.detach().to("cpu", copy=True) for name, p in self._parameters.items()}
        manifest = describe_model(tensors, self._about)
        return ModelSnapshot(manifest, self._loaded.config_json, self._loaded.files, tensors)


class _Seeded:
    """A forked random state with a seed."""

    def __init__(self, fork: AbstractContextManager[object], seed: int) -> None:
        self._fork, self._seed = fork, seed

    def __enter__(self) -> None:
        self._fork.__enter__()
        torch.manual_seed(self._seed)

    def __exit__(self, *exc_info: Any) -> None:
        self._fork.__exit__(*exc_info)


def _compute_seed(step: int, batch_start: int) -> int:
    digest = hashlib.sha256(_SEED_DOMAIN + struct.pack("<QQ", step, batch_start)).digest()
    return int.from_bytes(digest[:8], "little")


def summarize(losses: list[tuple[float, float]], step: int) -> tuple[float, bool]:
    """Mean of the finite losses, and whether all were finite. Raises ReplicaError when none is."""
    finite = [(share, loss) for share, loss in losses if math.isfinite(loss)]
    if not finite:
        raise ReplicaError(
            f"The loss at step {step} is not finite.", "The run's learning rate may be too high."
        )
    total = sum(share for share, _ in finite)
    return sum(share * loss for share, loss in finite) / total, len(finite) == len(losses)


def choose_device(device: str) -> torch.device:
    """The torch device of a name; "auto" is a GPU when there is one. Raises UsageError."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.zeros(1, device=chosen)
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        first = str(error).splitlines()[0]
        raise UsageError(f"There is no device {device}: {first}", "Use --device cpu, or auto.") from None
    return chosen
