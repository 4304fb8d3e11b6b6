"""Run configuration files: every one we ship loads, every broken rule is named."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from rulebook_driver import REPO, make_run_config

from psyche_py.coordinator import config as config_module
from psyche_py.coordinator.config import CoordinatorConfig, Metadata, Model, Progress, load_run_config
from psyche_py.coordinator.layout import (
    CONFIG,
    MODEL,
    Architecture,
    CheckpointKind,
    DataLocationKind,
    LrScheduleKind,
    OptimizerKind,
)
from psyche_py.errors import ConfigError

CONFIGS = sorted((REPO / "configs").glob("*.toml"))
TEXT = (REPO / "configs" / "tiny-cpu.toml").read_text()
DISTRO = "model.LLM.optimizer.Distro"
COSINE = "model.LLM.lr_schedule.Cosine"


def change(text: str, key: str, value: str | None) -> str:
    """The text with ``table.key`` set to a TOML value, or without it."""
    table, _, name = key.rpartition(".")
    lines, current, is_done = [], "", False
    for line in text.splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        if current == table and line.split("=")[0].strip() == name:
            is_done = True
            if value is not None:
                lines.append(f"{name} = {value}")
            continue
        lines.append(line)
        if (
            current == table
            and line == f"[{table}]"
            and f"\n{name} = " not in text.split(line)[1].split("[")[0]
        ):
            lines.append(f"{name} = {value}")
            is_done = True
    assert is_done, key
    return "\n".join(lines)


def replace_table(text: str, section: str, replacement: str) -> str:
    """The text with ``[model.LLM.<section>.<Variant>]`` and its keys replaced."""
    start = text.index(f"[model.LLM.{section}.")
    end = text.find("\n[", start + 1)
    return text[:start] + replacement + "\n" + (text[end:] if end != -1 else "")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_run_config_loads(path: Path) -> None:
    text = path.read_text()
    if "[model.LLM]" not in text:
        pytest.skip("a client's example, not a run configuration")
    run_config = load_run_config(text)
    assert Model.from_bytes(run_config.model.to_bytes()) == run_config.model
    assert CoordinatorConfig.from_bytes(run_config.config.to_bytes()) == run_config.config


def test_the_two_of_this_part_are_there() -> None:
    assert {"tiny-cpu", "llama-20m"} <= {path.stem for path in CONFIGS}


def test_values_arrive_where_they_belong() -> None:
    run_config = load_run_config(TEXT)
    config, model = run_config.config, run_config.model
    assert (config.warmup_time, config.global_batch_size_end, config.total_steps) == (60, 32, 1000)
    assert model.architecture is Architecture.HfLlama
    assert model.checkpoint_kind is model.checkpoint_origin is CheckpointKind.Config
    assert (model.checkpoint_repo, model.init_seed) == ("configs/models/nano/config.json", 1)
    assert model.data_location_kind is DataLocationKind.Local
    assert (model.data_path, model.data_token_size) == ("data/tiny", 2)
    assert model.lr_schedule_kind is LrScheduleKind.Cosine
    assert (model.lr_base, model.lr_final, model.lr_warmup_steps, model.lr_total_steps) == (
        8e-3,
        8e-4,
        20,
        1000,
    )
    assert model.optimizer_kind is OptimizerKind.Distro
    assert model.compression_decay == float(np.float32(0.999)), "what every client reads from the account"
    assert (model.compression_topk, model.compression_chunk, model.quantize_1bit) == (64, 64, True)
    assert (model.step_levels, model.lr_outside_momentum, model.vocab_lr_scale) == (16, True, 4.0)


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("config.epoch_time", "0", "must not be 0"),
        ("config.warmup_time", "600", "must be below epoch_time"),
        ("config.max_round_train_time", "0", "must not be 0"),
        ("config.max_round_train_time", "600", "must be below epoch_time"),
        ("config.round_witness_time", "0", "must not be 0"),
        ("config.cooldown_time", "0", "must not be 0"),
        ("config.waiting_for_members_extra_time", "0", "must not be 0"),
        ("config.min_clients", "0", "must not be 0"),
        ("config.init_min_clients", "1", "must be at least min_clients"),
        ("config.init_min_clients", "257", "must be at most 256"),
        ("config.witness_nodes", "3", "must be at most min_clients"),
        ("config.global_batch_size_start", "0", "must not be 0"),
        ("config.global_batch_size_end", "7", "must be at least global_batch_size_start"),
        ("config.total_steps", "3", "must be at least 4"),
        ("config.verification_percent", "51", "must be at most 50"),
        ("config.min_clients", "-1", "must be a whole number from 0 to 65535"),
        ("config.min_clients", "65536", "must be a whole number from 0 to 65535"),
        ("config.min_clients", "true", "must be a whole number from 0 to 65535"),
        ("config.min_clients", "2.0", "must be a whole number from 0 to 65535"),
        ("config.warmup_time", '"60"', "must be a whole number from 0 to 18446744073709551615"),
        ("config.verification_percent", "256", "must be a whole number from 0 to 255"),
        ("config.epoch_time", None, "is missing"),
        ("config.total_steps", None, "is missing"),
        ("model.LLM.architecture", '"Gpt2"', "must be one of HfLlama, HfDeepseek, HfAuto, Torchtitan"),
        ("model.LLM.architecture", None, "is missing"),
        ("model.LLM.data_type", "1", "must be one of Pretraining, Finetuning"),
        ("model.LLM.max_seq_len", "0", "must not be 0"),
        ("model.LLM.max_seq_len", None, "is missing"),
        (
            "model.LLM.cold_start_warmup_steps",
            "19",
            "must be at most floor((epoch_time - warmup_time) / max_round_train_time)",
        ),
        ("model.LLM.checkpoint.Config.path", '""', "must name a place"),
        ("model.LLM.checkpoint.Config.path", None, "is missing"),
        (
            "model.LLM.checkpoint.Config.path",
            f'"{"x" * 129}"',
            "must be a text of at most 128 bytes of UTF-8",
        ),
        ("model.LLM.checkpoint.Config.path", "7", "must be a text of at most 128 bytes of UTF-8"),
        ("model.LLM.data_location.Local.path", '""', "must name a place"),
        ("model.LLM.data_location.Local.path", '"a\\u0000b"', "must be a text of at most 128 bytes of UTF-8"),
        ("model.LLM.data_location.Local.token_size_in_bytes", "2", "must be TwoBytes or FourBytes"),
        (f"{COSINE}.base_lr", "-1.0", "must be a number, at least 0"),
        (f"{COSINE}.base_lr", "nan", "must be a number, at least 0"),
        (f"{COSINE}.base_lr", "inf", "must be a number, at least 0"),
        (f"{COSINE}.base_lr", "0", "must not be 0"),
        (f"{COSINE}.total_steps", "20", "must be above warmup_steps"),
        (f"{COSINE}.final_lr", "1.0", "must be at most base_lr"),
        (f"{COSINE}.final_lr", None, "is missing"),
        (f"{DISTRO}.compression_topk", "0", "must not be 0"),
        (f"{DISTRO}.compression_topk", "4097", "must be at most compression_chunk squared"),
        (f"{DISTRO}.compression_topk", "65", "must be at most 64"),
        (f"{DISTRO}.compression_chunk", "257", "must be at most 256"),
        (f"{DISTRO}.compression_chunk", "0", "must not be 0"),
        (f"{DISTRO}.compression_decay", "1.0", "must be below 1"),
        (f"{DISTRO}.compression_decay", "0.99999999", "must be below 1"),
        (f"{DISTRO}.compression_decay", "1.5", "must be below 1"),
        (f"{DISTRO}.compression_decay", "1e300", "must be a number, at least 0"),
        (f"{DISTRO}.quantize_1bit", "false", "must be true"),
        (f"{DISTRO}.quantize_1bit", "1", "must be true or false"),
        (f"{DISTRO}.quantize_1bit", None, "is missing"),
        (f"{DISTRO}.step_levels", "65", "must be at most 64"),
        (f"{DISTRO}.step_levels", "256", "must be a whole number from 0 to 255"),
        (f"{DISTRO}.lr_outside_momentum", "1", "must be true or false"),
        (f"{DISTRO}.vocab_lr_scale", "-1.0", "must be a number, at least 0"),
        (f"{DISTRO}.local_steps", "65", "must be at most 64"),
        (f"{DISTRO}.local_steps", "1.5", "must be a whole number from 0 to 255"),
        (f"{DISTRO}.adam_beta1", "1.0", "must be below 1"),
        (f"{DISTRO}.adam_beta2", "0.99999999", "must be below 1"),
        (f"{DISTRO}.adam_eps", "-1.0", "must be a number, at least 0"),
    ],
)
def test_each_broken_rule_is_named(key: str, value: str | None, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(change(TEXT, key, value))
    assert caught.value.rule == rule
    assert caught.value.remedy
    table, name = caught.value.key.split(".")[0], caught.value.key
    assert table == key.split(".")[0]
    is_about_a_place = rule == "must name a place"
    assert name == key or (is_about_a_place and key.startswith(name)) or name.endswith(key.rpartition(".")[2])


@pytest.mark.parametrize("steps", ["0", "1", None])
def test_a_run_without_local_steps_may_verify(steps: str | None) -> None:
    verified = change(TEXT, "config.verification_percent", "5")
    text = verified if steps is None else change(verified, f"{DISTRO}.local_steps", steps)
    assert load_run_config(text).model.local_steps == int(steps or 0)


def test_a_run_with_local_steps_may_not_verify() -> None:
    text = change(TEXT, f"{DISTRO}.local_steps", "4")
    assert load_run_config(text).model.local_steps == 4
    with pytest.raises(ConfigError) as caught:
        load_run_config(change(text, "config.verification_percent", "1"))
    assert caught.value.key == f"{DISTRO}.local_steps"
    assert "verification_percent = 0" in caught.value.remedy


def test_witness_nodes_are_bounded_by_what_a_round_stores() -> None:
    text = change(
        change(change(TEXT, "config.witness_nodes", "33"), "config.min_clients", "40"),
        "config.init_min_clients",
        "40",
    )
    with pytest.raises(ConfigError, match="at most 32"):
        load_run_config(text)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("config.warmup_tim", "warmup_time"),
        ("config.min_client", "min_clients"),
        ("model.LLM.max_seq_length", "max_seq_len"),
        (f"{DISTRO}.compression_topK", "compression_topk"),
        (f"{COSINE}.warmup_step", "warmup_steps"),
        ("model.LLM.checkpoint.Config.paths", "path"),
    ],
)
def test_unknown_keys_get_the_closest_known_one(key: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(change(TEXT, key, "1"))
    assert (caught.value.key, caught.value.rule) == (key, "is not a known key")
    assert repr(suggestion) in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "config"),
        ("[config]\n", "config.warmup_time"),
        ("config = 1\n", "config"),
        ("run_id = 'x'\n", "run_id"),
        (TEXT + "\n[model.GAN]\n", "model.GAN"),
        (TEXT.replace("[model.LLM]", "[[model.LLM]]").split("[model.LLM.checkpoint")[0], "model.LLM"),
        ("= nonsense", "file"),
        (replace_table(TEXT, "checkpoint", ""), "model.LLM.checkpoint"),
        (TEXT + "\n[model.LLM.optimizer.AdamW]\n", "model.LLM.optimizer"),
        (replace_table(TEXT, "checkpoint", "[model.LLM.checkpoint.Ephemeral]"), "model.LLM.checkpoint"),
        (replace_table(TEXT, "checkpoint", "[model.LLM.checkpoint.Dummy]"), "model.LLM.checkpoint"),
        (
            replace_table(TEXT, "checkpoint", "[model.LLM.checkpoint.P2P]\nrepo_id = 'x'"),
            "model.LLM.checkpoint",
        ),
        (
            replace_table(TEXT, "checkpoint", "[model.LLM.checkpoint.Hab]\nrepo_id = 'x'"),
            "model.LLM.checkpoint.Hab",
        ),
        (replace_table(TEXT, "optimizer", "[model.LLM.optimizer.AdamW]\neps = 1e-8"), "model.LLM.optimizer"),
        (
            replace_table(TEXT, "lr_schedule", "[model.LLM.lr_schedule]\nCosine = 3"),
            "model.LLM.lr_schedule.Cosine",
        ),
    ],
)
def test_files_of_the_wrong_shape_are_named(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run_config(text)
    assert caught.value.key == key
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("section", "table", "expected"),
    [
        (
            "checkpoint",
            "[model.LLM.checkpoint.Hub]\nrepo_id = 'a/b'\nrevision = 'r'",
            {"checkpoint_kind": CheckpointKind.Hub, "checkpoint_repo": "a/b", "checkpoint_revision": "r"},
        ),
        (
            "checkpoint",
            "[model.LLM.checkpoint.Gcs]\nbucket = 'b'\nprefix = 'p'",
            {"checkpoint_kind": CheckpointKind.Gcs, "checkpoint_repo": "b", "checkpoint_revision": "p"},
        ),
        (
            "checkpoint",
            "[model.LLM.checkpoint.Local]\npath = 'm'",
            {"checkpoint_origin": CheckpointKind.Local, "checkpoint_repo": "m"},
        ),
        ("data_location", "[model.LLM.data_location.Dummy]", {"data_path": ""}),
        ("data_location", "[model.LLM.data_location.Server]\naddr = 'h:1'", {"data_path": "h:1"}),
        (
            "data_location",
            "[model.LLM.data_location.Http]\nurl = 'http://h/x'\ntoken_size_in_bytes = 'FourBytes'",
            {"data_path": "http://h/x", "data_token_size": 4},
        ),
        ("data_location", "[model.LLM.data_location.WeightedHttp]\nurl = 'u'", {"data_path": "u"}),
        ("data_location", "[model.LLM.data_location.Preprocessed]\npath = 'p'", {"data_path": "p"}),
        (
            "lr_schedule",
            "[model.LLM.lr_schedule.Constant]\nbase_lr = 1",
            {"lr_schedule_kind": LrScheduleKind.Constant, "lr_base": 1.0},
        ),
        (
            "lr_schedule",
            "[model.LLM.lr_schedule.Linear]\nbase_lr = 0.5\nfinal_lr = 0.25\ntotal_steps = 9",
            {"lr_schedule_kind": LrScheduleKind.Linear, "lr_final": 0.25, "lr_total_steps": 9},
        ),
        (
            "lr_schedule",
            "[model.LLM.lr_schedule.WarmupStableDecay]\nbase_lr = 0.5\nwarmup_steps = 1\nstable_steps = 2\n"
            "cosine_decay_steps = 3\ncosine_decay_final_lr = 0.25\nlinear_decay_steps = 4\n"
            "linear_decay_final_lr = 0.125",
            {
                "lr_stable_steps": 2,
                "lr_cosine_decay_steps": 3,
                "lr_final": 0.25,
                "lr_linear_decay_steps": 4,
                "lr_linear_final": 0.125,
            },
        ),
    ],
)
def test_every_variant_can_be_written(section: str, table: str, expected: dict[str, object]) -> None:
    model = load_run_config(replace_table(TEXT, section, table)).model
    assert {name: getattr(model, name) for name in expected} == expected


def test_a_schedule_that_rises_again_is_refused() -> None:
    table = (
        "[model.LLM.lr_schedule.WarmupStableDecay]\nbase_lr = 0.5\nstable_steps = 2\ncosine_decay_steps = 3\n"
        "cosine_decay_final_lr = 0.1\nlinear_decay_steps = 4\nlinear_decay_final_lr = 0.2"
    )
    with pytest.raises(ConfigError, match="cosine_decay_final_lr"):
        load_run_config(replace_table(TEXT, "lr_schedule", table))


def test_structures_round_trip_through_bytes() -> None:
    for value in (Metadata("näme", "text", 7, 8), Progress(3, 4, 5), make_run_config().model):
        assert type(value).from_bytes(value.to_bytes()) == value
        with pytest.raises(ValueError, match="bytes, not"):
            type(value).from_bytes(value.to_bytes() + b"\0")
    with pytest.raises(ConfigError, match="64 is the limit"):
        Metadata("x" * 65).to_bytes()
    args = make_run_config().model.to_instruction_args()
    assert args["checkpoint_repo"][:6] == list(b"config")
    assert args["compression_topk"] == 8
    assert args["reserved"] == [0] * 88


def test_every_packed_field_has_a_place_in_its_dataclass() -> None:
    for dtype, view in ((CONFIG, CoordinatorConfig), (MODEL, Model)):
        names = {name for name in dtype.names or () if not name.startswith(("_pad", "reserved"))}
        assert names == {field.name for field in fields(view)}


def test_the_reference_page_names_every_key() -> None:
    page = (REPO / "docs" / "run-config.md").read_text()
    keys = {field.name for field in fields(CoordinatorConfig)}
    keys |= {"architecture", "data_type", "max_seq_len", "cold_start_warmup_steps"}
    for section, (_, _, variants) in config_module._SECTIONS.items():
        for variant, settings in variants.items():
            assert f"{section}.{variant}" in page
            keys |= set(settings)
    missing = {key for key in keys if f"`{key}`" not in page}
    assert not missing
