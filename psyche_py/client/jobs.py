"""The trainer as the runtime sees it: built from the run's account, one job at a time in a worker thread."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from psyche_py.client.preparation import get_preparations
from psyche_py.coordinator.commitment import Commitment, make_bitmap
from psyche_py.coordinator.layout import CheckpointKind, DataLocationKind, LrScheduleKind
from psyche_py.errors import DataError

if TYPE_CHECKING:
    from psyche_py.client.model_fetch import FetchedModel
    from psyche_py.client.options import ClientOptions
    from psyche_py.client.trainer import ApplyReport, Trainer, TrainResult
    from psyche_py.client.verification_jobs import VerificationJobs
    from psyche_py.coordinator.config import CoordinatorConfig, Model
    from psyche_py.coordinator.state import CoordinatorAccount
    from psyche_py.data.shards import TokenShards
    from psyche_py.distro import DistroConfig
    from psyche_py.distro.schedule import Schedule
    from psyche_py.model.loader import LoadedModel
    from psyche_py.model.sharing import ModelSnapshot


class TrainerJobs:
    """Owns the trainer. All methods but ``cancel_training`` are called from one thread at a time."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._trainer: Trainer | None = None
        self._data: TokenShards | None = None
        self._stop = threading.Event()
        self.verification: VerificationJobs | None = None

    @property
    def trainer(self) -> Trainer:
        """The trainer; only there once a model is loaded."""
        assert self._trainer is not None, "the machine asks for work only with a model in place"
        return self._trainer

    @property
    def payload_num_bytes(self) -> int:
        """Length of every payload."""
        return self.trainer.payload_num_bytes

    def open_data(self, account: CoordinatorAccount) -> None:
        """Open the token shards before joining, so that a user learns at once what is wrong with them."""
        from psyche_py.data.shards import TokenShards

        directory = self._options.data_dir
        if directory is None:
            if account.model.data_location_kind is not DataLocationKind.Local:
                raise DataError(
                    f"The run reads its data from {account.model.data_location_kind.name}, which this "
                    "client cannot.",
                    "Give a directory of token shards: --data DIRECTORY",
                )
            directory = Path(account.model.data_path)
        self._data = TokenShards(directory, account.model.max_seq_len)

    def prepare_checkpoint_dir(self) -> None:
        """Make the directory for checkpoints now: an epoch's end is late to learn that it cannot be.

        Raises StorageError.
        """
        from psyche_py.client.checkpoint import prepare_directory

        if self._options.checkpoint_dir is not None:
            prepare_directory(self._options.checkpoint_dir)

    def get_preparations(self, account: CoordinatorAccount) -> Sequence[Callable[[], None]]:
        """What can be done before there is a model; see preparation.get_preparations."""
        return get_preparations(self._options.device, partial(make_distro_config, account.model))

    def load_from_config(self, account: CoordinatorAccount) -> bytes:
        """Load the model that the run names. Returns its digest (32 B). Raises DataError."""
        from psyche_py.model.loader import load_from_config, load_from_directory

        model = account.model
        repo = Path(model.checkpoint_repo)
        if model.checkpoint_kind is CheckpointKind.Config:
            assert self._data is not None
            return self._build(load_from_config(repo, model.init_seed, self._data.directory), model)
        return self._build(load_from_directory(_find_checkpoint(model, model.checkpoint_kind)), model)

    def load_fetched(self, account: CoordinatorAccount, fetched: FetchedModel) -> bytes:
        """Take the model that peers sent; it must be the one it was fetched for. Raises PeerModelError."""
        from psyche_py.model.errors import PeerModelError

        digest = self._build(fetched.loaded, account.model)
        if digest != fetched.digest:
            self._trainer = None
            raise PeerModelError("it has another digest than it was fetched for")
        return digest

    def holds(self, wanted: bytes) -> bool:
        """Whether the digest of the replica at rest begins with ``wanted``."""
        return self._trainer is not None and self._trainer.digest().startswith(wanted)

    def load_own_checkpoint(self, account: CoordinatorAccount, wanted: bytes) -> bool:
        """Take the model whose digest begins with ``wanted`` from our checkpoints, if one is of it."""
        from psyche_py.client.checkpoint import find_checkpoints, read_facts
        from psyche_py.model.loader import load_from_directory

        parent = self._options.checkpoint_dir
        for _, path in reversed(find_checkpoints(parent, self._options.run_id) if parent is not None else []):
            try:
                if not read_facts(path).model_digest.startswith(wanted.hex()):
                    continue
                if self._build(load_from_directory(path), account.model).startswith(wanted):
                    return True
            except DataError:
                continue  # damaged: peers have it whole
            self._trainer = None
        return False

    def load_checkpoint(self, account: CoordinatorAccount, wanted: bytes | None) -> bytes:
        """Take the checkpoint that the run names, if its digest begins with ``wanted``.

        Without ``wanted`` it must be of the step that the epoch starts with. Raises DataError.
        """
        from psyche_py.client.checkpoint import read_facts
        from psyche_py.model.loader import load_from_directory

        directory = _find_checkpoint(account.model, account.model.checkpoint_origin)
        facts = read_facts(directory)
        is_right = (
            facts.step == account.start_step
            if wanted is None
            else facts.model_digest.startswith(wanted.hex())
        )
        digest = bytes(32)
        if is_right:
            digest = self._build(load_from_directory(directory), account.model)
        if not is_right or digest.hex() != facts.model_digest:
            self._trainer = None
            raise DataError(
                f"The checkpoint at {directory} is not the model that epoch {account.epoch} starts from.",
                "A client that has the model must be there, or the run goes on without us until the next.",
            )
        return digest

    def read_tokenizer_files(self) -> dict[str, bytes]:
        """Those beside our token shards; none when there are none."""
        from psyche_py.model.loader import read_tokenizer_files

        assert self._data is not None
        return read_tokenizer_files(self._data.directory)

    def _build(self, loaded: LoadedModel, model: Model) -> bytes:
        from psyche_py.client.trainer import Trainer

        assert self._data is not None
        self._trainer = Trainer(
            loaded,
            make_distro_config(model),
            make_schedule(model),
            self._data,
            micro_batch_size=self._options.micro_batch_size,
            device=self._options.device,
            num_threads=self._options.num_threads,
            cold_start_warmup_steps=model.cold_start_warmup_steps,
        )
        return self._trainer.digest()

    def start_epoch(self, start_step: int, is_cold: bool) -> None:
        """See Trainer.start_epoch."""
        self.trainer.start_epoch(start_step, is_cold)
        if self.verification is not None:
            self.verification.start_epoch()

    def set_verification(self, config: CoordinatorConfig) -> None:
        """Make what verification needs, or drop it in a run that verifies nothing; before ``start_epoch``.

        Raises ConfigError for a run whose optimizer nobody can recompute.
        """
        if config.verification_percent == 0:
            self.verification = None
            return
        from psyche_py.client.verification_jobs import VerificationJobs

        threads = self._options.num_threads
        self.verification = VerificationJobs(self.trainer, config, threads, self._stop.is_set)

    def prepare_apply(self, payloads: Sequence[bytes]) -> None:
        """See Replica.prepare. Nothing is done when one is no payload."""
        from psyche_py.distro import PayloadError

        # our own result is among them unchecked: the witnesses judge it, and apply tells what is wrong
        with contextlib.suppress(PayloadError):
            self.trainer.optimizer.prepare(payloads)

    def apply(self, payloads: Sequence[bytes], step: int, height: int) -> ApplyReport:
        """See Trainer.apply. ``height`` is the round at whose start it happens."""
        report = self.trainer.apply(payloads, step)
        if self.verification is not None:
            self.verification.take_applied(height, payloads, step)
        return report

    def train(
        self,
        height: int,
        ranges: Sequence[tuple[int, int]],
        step: int,
        received: Mapping[int, bytes],
        own_index: int,
    ) -> tuple[TrainResult, Commitment] | None:
        """See Trainer.train; None when cancelled since ``allow_training``.

        ranges:     the batch, then what is trained again
        received:   checked payloads of the others for the round before, by epoch client index
        own_index:  our place in the epoch
        """
        verification = self.verification
        if verification is not None:
            verification.momentum.prepare_training()
        batch, *repeats = ranges
        payloads = list(received.values())
        result = self.trainer.train(*batch, step, self._stop.is_set, payloads, repeats)
        if result is None:
            return None
        payload_hash = hashlib.sha256(result.payload).digest()
        if verification is None:
            return result, Commitment(payload_hash)
        foreseen = set(received) | ({own_index} if result.used_pending else set())
        root = verification.momentum.take_result(height)
        return result, Commitment(payload_hash, root, make_bitmap(foreseen))

    def allow_training(self) -> None:
        """A batch is about to be handed over; a cancel from now on counts, even before its thread runs."""
        self._stop.clear()

    def cancel_training(self) -> None:
        """Stop the batch in work at its next micro batch. Safe from any thread."""
        self._stop.set()

    def is_valid_payload(self, payload: bytes) -> bool:
        """Whether the bytes are a payload of this model."""
        from psyche_py.distro import PayloadError

        try:
            self.trainer.check_payload(payload)
        except PayloadError:
            return False
        return True

    def export(self) -> ModelSnapshot:
        """The replica at rest."""
        return self.trainer.export_model()

    def save_checkpoint(self, snapshot: ModelSnapshot, step: int, epoch: int) -> Path:
        """Write a checkpoint into the directory the user gave. Raises StorageError."""
        from psyche_py.client.checkpoint import save_checkpoint

        options = self._options
        assert options.checkpoint_dir is not None
        return save_checkpoint(
            snapshot,
            options.checkpoint_dir,
            run_id=options.run_id,
            step=step,
            epoch=epoch,
            keep=options.keep_checkpoints,
        )


def make_distro_config(model: Model) -> DistroConfig:
    """The run's optimizer; zeros in what runs did not have once are what was done then (see Model)."""
    from psyche_py.distro import DistroConfig

    return DistroConfig(
        compression_decay=float(model.compression_decay),
        compression_topk=model.compression_topk,
        compression_chunk=model.compression_chunk,
        quantize_1bit=model.quantize_1bit,
        clip_grad_norm=float(model.clip_grad_norm) or None,
        weight_decay=float(model.weight_decay),
        step_levels=model.step_levels or 1,
        lr_outside_momentum=model.lr_outside_momentum,
        vocab_lr_scale=float(model.vocab_lr_scale) or 1.0,
        local_steps=model.local_steps or 1,
        **_get_adam_settings(model),
    )


def _get_adam_settings(model: Model) -> dict[str, float]:
    """What the run says of the AdamW of local steps; zeros are the optimizer's defaults."""
    names = ("adam_beta1", "adam_beta2", "adam_eps")
    return {name: value for name in names if (value := float(getattr(model, name)))}


def make_schedule(model: Model) -> Schedule:
    """The run's learning rate schedule."""
    from psyche_py.distro import schedule as schedules

    steps, init = model.lr_warmup_steps, model.lr_warmup_init
    kind = model.lr_schedule_kind
    if kind is LrScheduleKind.Constant:
        return schedules.Constant(model.lr_base, steps, init)
    if kind is LrScheduleKind.Linear:
        return schedules.Linear(model.lr_base, model.lr_total_steps, model.lr_final, steps, init)
    if kind is LrScheduleKind.Cosine:
        return schedules.Cosine(model.lr_base, model.lr_total_steps, model.lr_final, steps, init)
    return schedules.WarmupStableDecay(
        base_lr=model.lr_base,
        stable_steps=model.lr_stable_steps,
        cosine_decay_steps=model.lr_cosine_decay_steps,
        cosine_decay_final_lr=model.lr_final,
        linear_decay_steps=model.lr_linear_decay_steps,
        linear_decay_final_lr=model.lr_linear_final,
        warmup_steps=steps,
        warmup_init_lr=init,
    )


def _find_checkpoint(model: Model, kind: CheckpointKind) -> Path:
    """Directory of the checkpoint that the run names, if it is of ``kind``. Raises DataError."""
    if kind is CheckpointKind.Local:
        return Path(model.checkpoint_repo)
    if kind is CheckpointKind.Hub:
        from psyche_py.model.hub import fetch_snapshot

        return fetch_snapshot(model.checkpoint_repo, model.checkpoint_revision)
    raise DataError(
        f"The run's model is at {kind.name}, where this client cannot read it.",
        "Ask its owner for a Hub or Local checkpoint.",
    )
