"""What a simulated run is made of."""

from __future__ import annotations

from dataclasses import dataclass, field

from psyche_py.coordinator.config import RunConfig, load_run_config

TIMES = {
    "warmup_time": 30,
    "cooldown_time": 4,
    "max_round_train_time": 12,
    "round_witness_time": 4,
    "epoch_time": 60,
    "total_steps": 30,
    "init_min_clients": 3,
    "min_clients": 2,
    "witness_nodes": 0,
    "global_batch_size_start": 16,
    "global_batch_size_end": 24,
    "global_batch_size_warmup_tokens": 8000,
    "waiting_for_members_extra_time": 2,
}
"""A run that passes through a few epochs in a few virtual minutes (seconds; samples; clients)."""


@dataclass(frozen=True, slots=True)
class Link:
    """A client's way to the others: one-way latency, bandwidth in bytes a second, share of packets lost."""

    latency_seconds: float = 0.04
    up_bytes_per_second: float = 25e6
    down_bytes_per_second: float = 25e6
    loss: float = 0.0


@dataclass(frozen=True, slots=True)
class Settings:
    """``train_seconds`` a batch takes on the average client; clients differ by ``spread`` of it."""

    num_clients: int = 5
    seed: int = 0
    config: dict[str, int] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    train_seconds: float = 2.0
    spread: float = 0.3
    apply_seconds: float = 0.05
    save_seconds: float = 0.5
    payload_bytes: int = 200_000
    model_bytes: int = 5_000_000
    points_per_epoch: int = 1000


def make_run_config(settings: Settings) -> RunConfig:
    """The run's configuration. Raises ConfigError."""
    values = {**TIMES, **settings.config}
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    return load_run_config(_TEMPLATE.format(lines=lines))


_TEMPLATE = """
[config]
{lines}

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 32

[model.LLM.checkpoint.Config]
path = "simulated"
seed = 1

[model.LLM.data_location.Local]
path = "simulated"
token_size_in_bytes = "TwoBytes"

[model.LLM.lr_schedule.Constant]
base_lr = 0.003
warmup_steps = 5

[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_topk = 8
compression_chunk = 64
quantize_1bit = true
"""
