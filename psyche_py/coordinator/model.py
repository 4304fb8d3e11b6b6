"""Typed views of the packed structures MODEL and CONFIG: frozen dataclasses to and from their bytes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from psyche_py.coordinator import rules
from psyche_py.coordinator.layout import (
    CONFIG,
    DEFAULT_MAX_RESIDUAL,
    DEFAULT_MAX_VIOLATION,
    DEFAULT_MAX_WITNESS_CONTRADICTIONS,
    DEFAULT_MIN_ALIGNMENT,
    DEFAULT_MIN_JACCARD,
    DEFAULT_VERIFIED_TILES,
    METADATA,
    MODEL,
    MODEL_ENUMS,
    PROGRESS,
    Architecture,
    CheckpointKind,
    DataLocationKind,
    DataType,
    LrScheduleKind,
    OptimizerKind,
    Record,
    get_text,
    pad_text,
    set_bytes,
)
from psyche_py.errors import ConfigError

FLAGS = frozenset({"quantize_1bit", "lr_outside_momentum"})
"""Fields that are stored as a byte and mean true or false."""
_TEXT_FIELDS = frozenset({"checkpoint_repo", "checkpoint_revision", "data_path", "name", "description"})


class PackedView:
    """Shared codec: every dataclass field is a field of the structure ``DTYPE`` of the same name."""

    DTYPE: np.dtype[Any]

    @classmethod
    def from_record(cls, record: Record) -> Self:
        """Read a view's fields out of a numpy record; enumerations must be in range."""
        values: dict[str, Any] = {}
        for item in fields(cls):  # type: ignore[arg-type]  # every subclass is a dataclass
            raw = record[item.name]
            if item.name in _TEXT_FIELDS:
                values[item.name] = get_text(raw)
            elif item.name in MODEL_ENUMS:
                values[item.name] = MODEL_ENUMS[item.name](int(raw))
            elif item.name in FLAGS:
                values[item.name] = bool(raw)
            else:
                values[item.name] = raw.item()
        return cls(**values)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Inverse of :meth:`to_bytes`; raises ValueError on another length."""
        if len(data) != cls.DTYPE.itemsize:
            raise ValueError(f"{cls.__name__} has {cls.DTYPE.itemsize} bytes, not {len(data)}")
        return cls.from_record(np.frombuffer(data, dtype=cls.DTYPE)[0])

    def to_record(self) -> Record:
        """A fresh record with these fields, padding and reserved bytes zero.

        Raises ConfigError when a text does not fit its field.
        """
        record = np.zeros(1, dtype=self.DTYPE)[0]
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if item.name in _TEXT_FIELDS:
                try:
                    set_bytes(record, item.name, pad_text(value, record[item.name].nbytes))
                except ValueError as error:
                    raise ConfigError(item.name, str(error), "Shorten it.") from None
            else:
                record[item.name] = value
        return record

    def to_bytes(self) -> bytes:
        """The packed bytes: what Borsh, the program and numpy all see."""
        return bytes(self.to_record().tobytes())

    def to_instruction_args(self) -> dict[str, Any]:
        """Every field, padding and reserved too, as plain ints, floats and lists, for a Borsh encoder.

        Keys are the IDL's names: padding is ``pad`` there, since anchorpy drops leading underscores.
        """
        record = self.to_record()
        names = self.DTYPE.names or ()
        return {name.lstrip("_"): record[name].tolist() for name in names}


@dataclass(frozen=True, slots=True)
class CoordinatorConfig(PackedView):
    """The ``[config]`` table. Times are in seconds, batch sizes in samples, the bond in units of collateral.

    ``min_alignment``, ``max_residual``, ``max_violation`` and ``min_jaccard`` are the limits of a verifier's
    check in millionths (docs/verification.md).
    """

    DTYPE = CONFIG

    warmup_time: int
    cooldown_time: int
    max_round_train_time: int
    round_witness_time: int
    epoch_time: int
    total_steps: int
    init_min_clients: int
    min_clients: int
    global_batch_size_start: int
    global_batch_size_end: int
    global_batch_size_warmup_tokens: int = 0
    witness_nodes: int = 0
    verification_percent: int = 0
    waiting_for_members_extra_time: int = 10
    max_witness_contradictions: int = DEFAULT_MAX_WITNESS_CONTRADICTIONS
    verified_tiles: int = DEFAULT_VERIFIED_TILES
    min_alignment: int = DEFAULT_MIN_ALIGNMENT
    max_residual: int = DEFAULT_MAX_RESIDUAL
    max_violation: int = DEFAULT_MAX_VIOLATION
    min_jaccard: int = DEFAULT_MIN_JACCARD
    num_tie_breakers: int = 9
    max_refusals: int = 3
    required_bond: int = 0

    def check(self) -> None:
        """Raises ConfigError naming the first broken rule."""
        rules.check_rules("config", rules.get_config_rules(self))


@dataclass(frozen=True, slots=True)
class Model(PackedView):
    """The ``[model.LLM]`` table. Fields that a variant does not have are zero or empty.

    ``lr_final`` is the final rate of Linear and Cosine and the cosine final rate of WarmupStableDecay;
    ``lr_linear_final`` is its linear final rate. ``checkpoint_origin`` is where the model comes from when
    nobody is left to share it. Read from bytes, the f4 fields hold exact float32 values. Runs made before
    there was a choice have zeros in ``step_levels``, ``lr_outside_momentum``, ``vocab_lr_scale`` and
    ``local_steps``, which mean what was done then: signs, inside, 1 and 1. ``adam_beta1``, ``adam_beta2`` and
    ``adam_eps`` are of local steps, and zeros the optimizer's defaults.
    """

    DTYPE = MODEL

    architecture: Architecture
    data_type: DataType
    checkpoint_kind: CheckpointKind
    checkpoint_origin: CheckpointKind
    data_location_kind: DataLocationKind
    lr_schedule_kind: LrScheduleKind
    optimizer_kind: OptimizerKind
    max_seq_len: int
    checkpoint_repo: str
    data_path: str
    lr_base: float
    quantize_1bit: bool = True
    cold_start_warmup_steps: int = 0
    init_seed: int = 0
    checkpoint_revision: str = ""
    lr_warmup_init: float = 0.0
    lr_final: float = 0.0
    lr_linear_final: float = 0.0
    lr_warmup_steps: int = 0
    lr_total_steps: int = 0
    lr_stable_steps: int = 0
    lr_cosine_decay_steps: int = 0
    lr_linear_decay_steps: int = 0
    clip_grad_norm: float = 0.0
    weight_decay: float = 0.0
    compression_decay: float = 0.999
    adam_beta1: float = 0.0
    adam_beta2: float = 0.0
    adam_eps: float = 0.0
    compression_topk: int = 8
    compression_chunk: int = 64
    data_token_size: int = 2
    step_levels: int = 16
    lr_outside_momentum: bool = True
    vocab_lr_scale: float = 4.0
    local_steps: int = 0

    def check(self, config: CoordinatorConfig) -> None:
        """Raises ConfigError naming the first broken rule of a model an owner wants to set."""
        table = "model.LLM"
        rules.check_rules(table, rules.get_model_rules(self, may_be_shared=False))
        rules.check_rules(table, rules.get_client_rules(self))
        rules.check_rules(table, rules.get_joint_rules(config, self))


@dataclass(frozen=True, slots=True)
class Metadata(PackedView):
    """What people read about a run."""

    DTYPE = METADATA

    name: str = ""
    description: str = ""
    num_parameters: int = 0
    vocab_size: int = 0


@dataclass(frozen=True, slots=True)
class Progress(PackedView):
    """How far a run is. An owner sets it to start or restart a run at some step."""

    DTYPE = PROGRESS

    step: int = 1
    epoch: int = 0
    epoch_start_data_index: int = 0
