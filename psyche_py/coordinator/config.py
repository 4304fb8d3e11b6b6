"""Run configuration files: TOML in Psyche's shape, read strictly, every rule named when broken.

``[config]`` and ``[model.LLM]`` with sub-tables ``checkpoint.<Variant>``, ``data_location.<Variant>``,
``lr_schedule.<Variant>``, ``optimizer.<Variant>``; docs/run-config.md lists every key.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import IntEnum
from typing import Any

import numpy as np

from psyche_py.coordinator.layout import (
    CONFIG,
    MODEL,
    Architecture,
    CheckpointKind,
    DataLocationKind,
    DataType,
    LrScheduleKind,
    OptimizerKind,
)
from psyche_py.coordinator.model import FLAGS, CoordinatorConfig, Metadata, Model, Progress
from psyche_py.errors import ConfigError

__all__ = ["CoordinatorConfig", "Metadata", "Model", "Progress", "RunConfig", "load_run_config"]


@dataclass(frozen=True, slots=True)
class RunConfig:
    """A whole run configuration file."""

    config: CoordinatorConfig
    model: Model

    def check(self) -> None:
        """Raises ConfigError naming the first broken rule."""
        self.config.check()
        self.model.check(self.config)


def load_run_config(text: str) -> RunConfig:
    """Read a run configuration. Raises ConfigError: bad TOML, an unknown or missing key, a broken rule."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError("file", f"is not valid TOML: {error}", "Mend the place it names.") from None
    _check_keys("", tables, {"config", "model"})
    config = _read_config(_get_table(tables, "config", ""))
    models = _get_table(tables, "model", "")
    _check_keys("model.", models, {"LLM"})
    model = _read_model(_get_table(models, "LLM", "model."))
    run_config = RunConfig(config, model)
    run_config.check()
    # through the bytes once, so that this object equals what every client will read from the account
    return RunConfig(config, Model.from_bytes(model.to_bytes()))


@dataclass(frozen=True, slots=True)
class _Key:
    """A TOML key of a variant: the Model field it fills, and whether it may be left out."""

    target: str
    is_required: bool = False


_TOKEN_SIZE = _Key("data_token_size")
_CHECKPOINTS = {
    "Hub": {"repo_id": _Key("checkpoint_repo", True), "revision": _Key("checkpoint_revision")},
    "Gcs": {"bucket": _Key("checkpoint_repo", True), "prefix": _Key("checkpoint_revision")},
    "Local": {"path": _Key("checkpoint_repo", True)},
    "Config": {"path": _Key("checkpoint_repo", True), "seed": _Key("init_seed")},
}
_DATA_LOCATIONS: dict[str, dict[str, _Key]] = {
    "Dummy": {},
    "Server": {"addr": _Key("data_path", True)},
    "Local": {"path": _Key("data_path", True), "token_size_in_bytes": _TOKEN_SIZE},
    "Http": {"url": _Key("data_path", True), "token_size_in_bytes": _TOKEN_SIZE},
    "WeightedHttp": {"url": _Key("data_path", True), "token_size_in_bytes": _TOKEN_SIZE},
    "Preprocessed": {"path": _Key("data_path", True)},
}
_WARMUP = {
    "base_lr": _Key("lr_base", True),
    "warmup_init_lr": _Key("lr_warmup_init"),
    "warmup_steps": _Key("lr_warmup_steps"),
}
_DECAY = {**_WARMUP, "final_lr": _Key("lr_final", True), "total_steps": _Key("lr_total_steps", True)}
_SCHEDULES = {
    "Constant": _WARMUP,
    "Linear": _DECAY,
    "Cosine": _DECAY,
    "WarmupStableDecay": {
        **_WARMUP,
        "stable_steps": _Key("lr_stable_steps", True),
        "cosine_decay_steps": _Key("lr_cosine_decay_steps", True),
        "cosine_decay_final_lr": _Key("lr_final", True),
        "linear_decay_steps": _Key("lr_linear_decay_steps", True),
        "linear_decay_final_lr": _Key("lr_linear_final", True),
    },
}
_OPTIMIZERS = {
    "Distro": {
        "clip_grad_norm": _Key("clip_grad_norm"),
        "weight_decay": _Key("weight_decay"),
        "compression_decay": _Key("compression_decay", True),
        "compression_topk": _Key("compression_topk", True),
        "compression_chunk": _Key("compression_chunk", True),
        "quantize_1bit": _Key("quantize_1bit", True),
        "step_levels": _Key("step_levels"),
        "lr_outside_momentum": _Key("lr_outside_momentum"),
        "vocab_lr_scale": _Key("vocab_lr_scale"),
        "local_steps": _Key("local_steps"),
        "adam_beta1": _Key("adam_beta1"),
        "adam_beta2": _Key("adam_beta2"),
        "adam_eps": _Key("adam_eps"),
    },
}
_SECTIONS: dict[str, tuple[str, type[IntEnum], Mapping[str, Mapping[str, _Key]]]] = {
    "checkpoint": ("checkpoint_kind", CheckpointKind, _CHECKPOINTS),
    "data_location": ("data_location_kind", DataLocationKind, _DATA_LOCATIONS),
    "lr_schedule": ("lr_schedule_kind", LrScheduleKind, _SCHEDULES),
    "optimizer": ("optimizer_kind", OptimizerKind, _OPTIMIZERS),
}
_REFUSED = {
    "checkpoint.Ephemeral": "must be Hub, Local, Config or Gcs",
    "checkpoint.Dummy": "must be Hub, Local, Config or Gcs",
    "checkpoint.P2P": "is set by the program only, after an epoch",
    "checkpoint.P2PGcs": "is set by the program only, after an epoch",
    "optimizer.Dummy": "must be Distro",
    "optimizer.AdamW": "must be Distro",
}
"""Variants of Psyche's files that a run over the mesh cannot have, with the rule that says so."""
_TOKEN_SIZES = {"TwoBytes": 2, "FourBytes": 4}


def _check_keys(path: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(sorted(known))}."
            raise ConfigError(f"{path}{key}", "is not a known key", hint)


def _get_table(tables: Mapping[str, Any], key: str, path: str) -> dict[str, Any]:
    table = tables.get(key)
    if not isinstance(table, dict):
        raise ConfigError(f"{path}{key}", "must be a table", f"Add [{path}{key}].")
    return table


def _read_config(table: Mapping[str, Any]) -> CoordinatorConfig:
    values: dict[str, Any] = {}
    _check_keys("config.", table, [field.name for field in fields(CoordinatorConfig)])
    for field in fields(CoordinatorConfig):
        if field.name in table:
            values[field.name] = _read_number("config.", field.name, table[field.name], CONFIG[field.name])
        elif field.default is MISSING:
            raise ConfigError(f"config.{field.name}", "is missing", "Add it to [config].")
    return CoordinatorConfig(**values)


def _read_model(table: Mapping[str, Any]) -> Model:
    path = "model.LLM."
    _check_keys(
        path, table, ["architecture", "data_type", "max_seq_len", "cold_start_warmup_steps", *_SECTIONS]
    )
    for key in ("architecture", "max_seq_len"):
        if key not in table:
            raise ConfigError(f"{path}{key}", "is missing", "Add it to [model.LLM].")
    values: dict[str, Any] = {
        "architecture": _read_name(path, "architecture", table["architecture"], Architecture),
        "data_type": _read_name(path, "data_type", table.get("data_type", "Pretraining"), DataType),
        "data_path": "",
    }
    for key, value in (("max_seq_len", 0), ("cold_start_warmup_steps", 0)):
        values[key] = _read_number(path, key, table.get(key, value), MODEL[key])
    for section, (kind_field, kinds, variants) in _SECTIONS.items():
        variant, settings = _get_variant(path, section, table, variants)
        values[kind_field] = kinds[variant]
        for key, value in settings.items():
            target = variants[variant][key].target
            values[target] = _read_setting(f"{path}{section}.{variant}.", key, target, value)
    values["checkpoint_origin"] = values["checkpoint_kind"]
    return Model(**values)


def _get_variant(
    path: str, section: str, table: Mapping[str, Any], variants: Mapping[str, Mapping[str, _Key]]
) -> tuple[str, dict[str, Any]]:
    """The one variant chosen for a section and its settings; ``section = "Name"`` is an empty variant."""
    choice = table.get(section)
    if isinstance(choice, str):
        choice = {choice: {}}
    if not isinstance(choice, dict) or len(choice) != 1:
        example = f"[{path}{section}.{next(iter(variants))}]"
        raise ConfigError(f"{path}{section}", "must name exactly one variant", f"For example {example}.")
    ((variant, settings),) = choice.items()
    if f"{section}.{variant}" in _REFUSED:
        remedy = f"Use one of {', '.join(variants)}."
        raise ConfigError(f"{path}{section}", _REFUSED[f"{section}.{variant}"], remedy)
    _check_keys(f"{path}{section}.", choice, variants)
    if not isinstance(settings, dict):
        raise ConfigError(f"{path}{section}.{variant}", "must be a table", "Write its keys below it.")
    _check_keys(f"{path}{section}.{variant}.", settings, variants[variant])
    for key, info in variants[variant].items():
        if info.is_required and key not in settings:
            table_name = f"[{path}{section}.{variant}]"
            raise ConfigError(f"{path}{section}.{variant}.{key}", "is missing", f"Add it to {table_name}.")
    return variant, settings


def _read_setting(path: str, key: str, target: str, value: Any) -> Any:
    dtype = MODEL[target]
    if key == "token_size_in_bytes":
        if value not in _TOKEN_SIZES:
            raise ConfigError(f"{path}{key}", "must be TwoBytes or FourBytes", f"It is {value!r}.")
        return _TOKEN_SIZES[value]
    if target in FLAGS:
        if not isinstance(value, bool):
            raise ConfigError(f"{path}{key}", "must be true or false", f"It is {value!r}.")
        return value
    if dtype.subdtype is None:
        return _read_number(path, key, value, dtype)
    if not isinstance(value, str) or len(value.encode()) > dtype.itemsize or "\0" in value:
        rule = f"must be a text of at most {dtype.itemsize} bytes of UTF-8"
        raise ConfigError(f"{path}{key}", rule, f"It is {value!r}.")
    return value


def _read_name(path: str, key: str, value: Any, kinds: type[IntEnum]) -> IntEnum:
    names = [kind.name for kind in kinds]
    if value not in names:
        raise ConfigError(f"{path}{key}", f"must be one of {', '.join(names)}", f"It is {value!r}.")
    return kinds[value]


def _read_number(path: str, key: str, value: Any, dtype: np.dtype[Any]) -> int | float:
    """A number that fits its place in the account."""
    if dtype.kind == "f":
        limit = float(np.finfo(dtype).max)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= limit:
            raise ConfigError(f"{path}{key}", "must be a number, at least 0", f"It is {value!r}.")
        return float(value)
    highest = int(np.iinfo(dtype).max)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= highest:
        rule = f"must be a whole number from 0 to {highest}"
        raise ConfigError(f"{path}{key}", rule, f"It is {value!r}.")
    return value
