"""What a simulated run is made of."""

from __future__ import annotations

from collections.abc import Mapping
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
class Role:
    """What is particular about a client; None: as everybody. ``mode`` is one of ``trainer.MODES``.

    ``end``: what has to become of it, one of ``cheats.Fate``'s values; empty: what its mode says.
    """

    link: Link | None = None
    train_seconds: float | None = None
    mode: str = "honest"
    end: str = ""


@dataclass(frozen=True, slots=True)
class Path:
    """Seconds one way between any of ``ones`` and any of ``others``, whatever their links say."""

    ones: tuple[int, ...]
    others: tuple[int, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Settings:
    """``train_seconds`` a batch takes on the average client; clients differ by ``spread`` of it.

    ``roles`` by client number; who is not in it, or joins later, is like everybody. ``is_on_programs``: the
    chain is the real programs in LiteSVM, and not the rule book that equals them byte for byte.
    ``slashing_rate``: points that who loses a dispute is slashed by. ``conviction``: the share of checks that
    find a false result out. ``model_path`` and ``data_path`` are for clients that train (mode "real").
    """

    num_clients: int = 5
    seed: int = 0
    config: Mapping[str, int] = field(default_factory=dict)
    link: Link = field(default_factory=Link)
    train_seconds: float = 2.0
    spread: float = 0.3
    apply_seconds: float = 0.05
    save_seconds: float = 0.5
    payload_bytes: int = 200_000
    model_bytes: int = 5_000_000
    points_per_epoch: int = 1000
    slashing_rate: int = 0
    conviction: float = 1.0
    roles: Mapping[int, Role] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    is_on_programs: bool = False
    model_path: str = "simulated"
    data_path: str = "simulated"

    def get_role(self, number: int) -> Role:
        """What is particular about a client."""
        return self.roles.get(number, _EVERYBODY)


_EVERYBODY = Role()


def make_run_config(settings: Settings) -> RunConfig:
    """The run's configuration. Raises ConfigError."""
    values = {**TIMES, **settings.config}
    return load_run_config(make_config_text(values, settings.model_path, settings.data_path))


def make_rates(settings: Settings) -> dict[str, int]:
    """Points that an epoch pays, and that who loses a dispute loses."""
    return {
        "earning_rate_total_shared": settings.points_per_epoch,
        "slashing_rate_per_client": settings.slashing_rate,
    }


CONSTANT_LR = """
[model.LLM.lr_schedule.Constant]
base_lr = 0.003
warmup_steps = 5
"""


def make_config_text(
    values: Mapping[str, int], model: str, data: str, *, lr_schedule: str = CONSTANT_LR, optimizer: str = ""
) -> str:
    """A run configuration file: ``values`` of [config], a tiny model's configuration, token shards, the
    table of the learning rate's schedule, and further lines of the optimizer's."""
    lines = "\n".join(f"{key} = {value}" for key, value in values.items())
    return _TEMPLATE.format(lines=lines, model=model, data=data, lr_schedule=lr_schedule, optimizer=optimizer)


_TEMPLATE = """
[config]
{lines}

[model.LLM]
architecture = "HfLlama"
data_type = "Pretraining"
max_seq_len = 32

[model.LLM.checkpoint.Config]
path = "{model}"
seed = 1

[model.LLM.data_location.Local]
path = "{data}"
token_size_in_bytes = "TwoBytes"

{lr_schedule}
[model.LLM.optimizer.Distro]
clip_grad_norm = 1.0
compression_decay = 0.999
compression_topk = 8
compression_chunk = 64
quantize_1bit = true
{optimizer}
"""
