"""The replica and what is done to it: apply accepted results, train a batch, digest, export.

Synchronous and single-threaded by contract: the runtime calls it from one worker thread at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psyche_py.distro import DistroConfig, DistroOptimizer
from psyche_py.errors import DataError, ReplicaError
from psyche_py.model.sharing import ModelSnapshot

if TYPE_CHECKING:
    import torch

    from psyche_py.data.provider import DataProvider
    from psyche_py.distro.schedule import Schedule
    from psyche_py.model.loader import LoadedModel


@dataclass(frozen=True, slots=True)
class TrainResult:
    """A round's result: payload bytes, mean loss (nats per token), tokens trained, seconds it took."""

    payload: bytes
    loss: float
    num_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """Model digest (32 bytes) after an update of ``num_payloads`` results."""

    digest: bytes
    num_payloads: int
    seconds: float


class Trainer:
    """One model, its optimizer and its data."""

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
        import torch

        torch.set_num_threads(num_threads)
        self._device = torch.device(_choose_device(device))
        # on a GPU bf16 is what everybody trains in; a CPU has no use for it
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._model = loaded.model.to(device=self._device, dtype=dtype)
        self._model.train()
        self._loaded = loaded
        self._data = data
        self._schedule = schedule
        self._micro_batch_size = micro_batch_size
        self._cold_steps = cold_start_warmup_steps
        self._cold_start: tuple[int, int] | None = None
        self._check_vocabulary()
        self._parameters = dict(self._model.named_parameters())
        self.optimizer = DistroOptimizer(self._parameters.items(), config)

    def _check_vocabulary(self) -> None:
        size = getattr(self._model.config, "vocab_size", None)
        if size is not None and self._data.vocab_size > size:
            raise DataError(
                f"The data has {self._data.vocab_size} different tokens, the model knows {size}.",
                "Prepare the data with the model's tokenizer.",
            )

    @property
    def payload_num_bytes(self) -> int:
        """Length of every payload of this model."""
        return self.optimizer.payload_layout.num_bytes

    def check_payload(self, payload: bytes) -> None:
        """Raises PayloadError when the bytes are no payload of this model."""
        self.optimizer.check_payload(payload)

    def start_epoch(self, start_step: int, is_cold: bool) -> None:
        """A new epoch begins. Unapplied messages of the last one are void; a cold start forgets momentum."""
        self.optimizer.drop_pending()
        self._cold_start = None
        if is_cold and self._cold_steps:
            self.optimizer.reset()
            self._cold_start = (start_step, start_step + self._cold_steps)

    def get_lr(self, step: int) -> float:
        """Learning rate of a step, with the ramp of a cold start (psyche.md 1.14)."""
        lr = self._schedule.get_lr(step)
        if self._cold_start is not None:
            start, end = self._cold_start
            if start <= step <= end:
                lr *= (step - start) / (end - start)
        return lr

    def apply(self, payloads: Sequence[bytes], step: int) -> ApplyReport:
        """Apply a round's accepted results; any order gives the same bits."""
        started = time.perf_counter()
        self.optimizer.apply(payloads, self.get_lr(step))
        digest = self.optimizer.model_digest()
        return ApplyReport(digest, len(payloads), time.perf_counter() - started)

    def train(
        self, batch_start: int, batch_end: int, step: int, should_stop: Callable[[], bool]
    ) -> TrainResult | None:
        """Train the samples ``batch_start .. batch_end`` (inclusive); None when stopped in between.

        Gradients are taken at the point that our own pending message leads to (the public lookahead), and
        averaged over all tokens of the batch. A cancelled or failed batch leaves weights and momentum as
        they were. Raises ReplicaError when the loss is not finite: such a gradient must not be sent.
        """
        started = time.perf_counter()
        tokens = self._data.get_batch(batch_start, batch_end)
        lr = self.get_lr(step)
        self._clear_gradients()
        try:
            with self.optimizer.lookahead(lr):
                loss = self._accumulate(tokens, should_stop)
            if loss is None:
                return None
            if not math.isfinite(loss):
                raise ReplicaError(
                    f"The loss at step {step} is not finite.", "The learning rate may be too high."
                )
            payload = self.optimizer.step(lr)
        finally:
            self._clear_gradients()
        num_tokens = tokens.shape[0] * (tokens.shape[1] - 1)
        return TrainResult(payload, loss, num_tokens, time.perf_counter() - started)

    def _accumulate(self, tokens: object, should_stop: Callable[[], bool]) -> float | None:
        """Forward and backward by micro batches; mean loss over ``tokens`` int64 [B, T + 1]."""
        import torch

        batch = torch.as_tensor(tokens, device=self._device)
        total, num = 0.0, batch.shape[0]
        for start in range(0, num, self._micro_batch_size):
            if should_stop():
                return None
            micro = batch[start : start + self._micro_batch_size]
            logits = self._model(input_ids=micro[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(
                logits.float().reshape(-1, logits.shape[-1]), micro[:, 1:].reshape(-1)
            )
            share = micro.shape[0] / num
            (loss * share).backward()
            total += float(loss.detach()) * share
        return total

    def _clear_gradients(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None

    def digest(self) -> bytes:
        """Model digest, 32 bytes."""
        return self.optimizer.model_digest()

    def export_model(self) -> ModelSnapshot:
        """A copy of the replica at rest, on the CPU."""
        tensors: dict[str, torch.Tensor] = {
            name: parameter.detach().to("cpu", copy=True) for name, parameter in self._parameters.items()
        }
        return ModelSnapshot(self.digest(), self._loaded.config_json, self._loaded.files, tensors)


def _choose_device(device: str) -> str:
    import torch

    if device != "auto":
        return device
    return "cuda" if torch.cuda.is_available() else "cpu"
