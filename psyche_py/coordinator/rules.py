"""The rules a run configuration must keep: psyche.md 1.4 and ours, each with its key and a remedy.

The program enforces the rules of ``get_config_rules`` and ``get_model_rules`` as one error code each; here
every breach is named. ``get_client_rules`` are ours alone: a run that breaks them could not be trained.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from psyche_py.coordinator.layout import (
    MAX_CLIENTS,
    MAX_TIE_BREAKERS,
    MAX_VERIFICATION_PERCENT,
    MAX_VERIFIED_TILES,
    MAX_WITNESSES,
    SHARED_KINDS,
    CheckpointKind,
    DataLocationKind,
    LrScheduleKind,
    OptimizerKind,
)
from psyche_py.errors import ConfigError

if TYPE_CHECKING:
    from psyche_py.coordinator.model import CoordinatorConfig, Model

MAX_TOPK, MAX_CHUNK, MAX_STEP_LEVELS, MAX_LOCAL_STEPS = 64, 256, 64, 64
"""What the clients' optimizer takes. It can be used without us, so a test holds them to its own limits."""
OWN_KINDS = (CheckpointKind.Hub, CheckpointKind.Gcs, CheckpointKind.Local, CheckpointKind.Config)
"""Checkpoint kinds that an owner may set."""
NOT_VERIFIABLE = (
    "must be 1, or left out, when verification_percent is above 0",
    "A verifier cannot recompute a trainer's private AdamW steps: set verification_percent = 0, or take the "
    "default's step.",
)
"""Rule and remedy."""


class Rule(NamedTuple):
    """One rule: TOML key, the rule in words, whether it holds, what to do when it does not."""

    key: str
    rule: str
    holds: bool
    remedy: str


def check_rules(table: str, rules: Iterable[Rule]) -> None:
    """Raises ConfigError naming the first broken rule; ``table`` is the TOML table of the keys."""
    for rule in rules:
        if not rule.holds:
            raise ConfigError(f"{table}.{rule.key}", rule.rule, rule.remedy)


def get_config_rules(c: CoordinatorConfig) -> list[Rule]:
    """Rules of ``[config]``."""
    more = "Raise it above zero."
    return [
        Rule("epoch_time", "must not be 0", c.epoch_time > 0, more),
        Rule("warmup_time", "must be below epoch_time", c.warmup_time < c.epoch_time, "Shorten the warm-up."),
        Rule("max_round_train_time", "must not be 0", c.max_round_train_time > 0, more),
        Rule(
            "max_round_train_time",
            "must be below epoch_time",
            c.max_round_train_time < c.epoch_time,
            "An epoch must hold more than one round: shorten the round or lengthen the epoch.",
        ),
        Rule("round_witness_time", "must not be 0", c.round_witness_time > 0, more),
        Rule("min_clients", "must not be 0", c.min_clients > 0, more),
        Rule(
            "init_min_clients",
            "must be at least min_clients",
            c.init_min_clients >= c.min_clients,
            "An epoch could otherwise start with too few clients to go on.",
        ),
        Rule(
            "init_min_clients",
            f"must be at most {MAX_CLIENTS}",
            c.init_min_clients <= MAX_CLIENTS,
            "The account holds no more clients.",
        ),
        Rule("global_batch_size_start", "must not be 0", c.global_batch_size_start > 0, more),
        Rule(
            "global_batch_size_end",
            "must be at least global_batch_size_start",
            c.global_batch_size_end >= c.global_batch_size_start,
            "The batch only grows over a run.",
        ),
        Rule(
            "total_steps",
            "must be at least 4",
            c.total_steps >= 4,
            "An epoch needs a round to train and two to apply its results.",
        ),
        Rule(
            "witness_nodes",
            "must be at most min_clients",
            c.witness_nodes <= c.min_clients,
            "0 elects every client, up to 32.",
        ),
        Rule("witness_nodes", f"must be at most {MAX_WITNESSES}", c.witness_nodes <= MAX_WITNESSES, "Use 0."),
        Rule("cooldown_time", "must not be 0", c.cooldown_time > 0, more),
        Rule(
            "waiting_for_members_extra_time",
            "must not be 0",
            c.waiting_for_members_extra_time > 0,
            "Clients need a moment to join; Psyche's default is 10.",
        ),
        *_get_verification_rules(c),
    ]


def _get_verification_rules(c: CoordinatorConfig) -> list[Rule]:
    """What verifiers and tie-breakers need, where there are any."""
    is_off = c.verification_percent == 0
    return [
        Rule(
            "verification_percent",
            f"must be at most {MAX_VERIFICATION_PERCENT}",
            c.verification_percent <= MAX_VERIFICATION_PERCENT,
            "Verifiers do not train in their round; 5 is usual.",
        ),
        Rule(
            "verified_tiles",
            f"must be from 1 to {MAX_VERIFIED_TILES} when verification_percent is above 0",
            is_off or 1 <= c.verified_tiles <= MAX_VERIFIED_TILES,
            "64 is usual.",
        ),
        Rule(
            "num_tie_breakers",
            f"must be from 1 to {MAX_TIE_BREAKERS} when verification_percent is above 0",
            is_off or 1 <= c.num_tie_breakers <= MAX_TIE_BREAKERS,
            "9 is usual.",
        ),
    ]


def compute_max_cold_start_steps(config: CoordinatorConfig) -> int:
    """Most steps that fit into one epoch's training time; 0 for a config that breaks other rules."""
    if config.max_round_train_time == 0 or config.warmup_time > config.epoch_time:
        return 0
    return (config.epoch_time - config.warmup_time) // config.max_round_train_time


def get_joint_rules(config: CoordinatorConfig, model: Model) -> list[Rule]:
    """Rules of both tables together.

    The learning-rate warm-up after a pause must end within one epoch, and what is verified must be such that
    it can be recomputed.
    """
    longest = compute_max_cold_start_steps(config)
    return [
        Rule(
            "cold_start_warmup_steps",
            "must be at most floor((epoch_time - warmup_time) / max_round_train_time)",
            model.cold_start_warmup_steps <= longest,
            f"With these times that is {longest}.",
        ),
        Rule(
            "optimizer.Distro.local_steps",
            NOT_VERIFIABLE[0],
            model.local_steps <= 1 or config.verification_percent == 0,
            NOT_VERIFIABLE[1],
        ),
    ]


def get_model_rules(m: Model, *, may_be_shared: bool) -> list[Rule]:
    """Rules of ``[model.LLM]`` that the program enforces.

    ``may_be_shared``: P2P kinds are fine in an account, where the program put them, but not in a new model.
    """
    kinds = OWN_KINDS + SHARED_KINDS if may_be_shared else OWN_KINDS
    return [
        Rule("max_seq_len", "must not be 0", m.max_seq_len > 0, "Give the sequence length in tokens."),
        Rule(
            "optimizer",
            "must be Distro",
            m.optimizer_kind is OptimizerKind.Distro,
            "Only DisTrO can be trained over the mesh: use [model.LLM.optimizer.Distro].",
        ),
        Rule(
            "checkpoint",
            "must be Hub, Local, Config or Gcs",
            m.checkpoint_kind in kinds,
            "The first clients need somewhere to take the model from.",
        ),
        Rule("checkpoint", "must name a place", bool(m.checkpoint_repo), "Give repo_id, bucket or path."),
        Rule(
            "data_location",
            "must name a place",
            bool(m.data_path) or m.data_location_kind is DataLocationKind.Dummy,
            "Give path, url or addr.",
        ),
        Rule("optimizer.Distro.compression_topk", "must not be 0", m.compression_topk > 0, "8 is usual."),
        Rule("optimizer.Distro.compression_chunk", "must not be 0", m.compression_chunk > 0, "64 is usual."),
        Rule(
            "optimizer.Distro.quantize_1bit",
            "must be true",
            m.quantize_1bit,
            "Exact aggregation works on signs.",
        ),
        Rule(
            "data_location.token_size_in_bytes",
            "must be TwoBytes or FourBytes",
            m.data_token_size in (2, 4),
            "TwoBytes holds vocabularies up to 65,536.",
        ),
    ]


def get_client_rules(m: Model) -> list[Rule]:
    """Rules of ``[model.LLM]`` that the program leaves to us: it never computes with these numbers."""
    schedule = f"lr_schedule.{m.lr_schedule_kind.name}"
    is_decaying = m.lr_schedule_kind in (LrScheduleKind.Linear, LrScheduleKind.Cosine)
    is_stable_decay = m.lr_schedule_kind is LrScheduleKind.WarmupStableDecay
    return [
        Rule(
            "optimizer.Distro.compression_topk",
            "must be at most compression_chunk squared",
            m.compression_topk <= m.compression_chunk**2,
            "A chunk has no more coefficients.",
        ),
        Rule(
            "optimizer.Distro.compression_decay",
            "must be below 1",
            float(np.float32(m.compression_decay)) < 1,  # as it is stored
            "Momentum would grow without bound; 0.999 is usual.",
        ),
        Rule(
            "optimizer.Distro.compression_topk",
            f"must be at most {MAX_TOPK}",
            m.compression_topk <= MAX_TOPK,
            "The message's code has no more; 8 is usual.",
        ),
        Rule(
            "optimizer.Distro.compression_chunk",
            f"must be at most {MAX_CHUNK}",
            m.compression_chunk <= MAX_CHUNK,
            "The exact transform has no larger tiles; 64 is usual.",
        ),
        Rule(
            "optimizer.Distro.step_levels",
            f"must be at most {MAX_STEP_LEVELS}",
            m.step_levels <= MAX_STEP_LEVELS,
            "16 is usual; 1 moves by signs alone.",
        ),
        *_get_local_steps_rules(m),
        Rule(f"{schedule}.base_lr", "must not be 0", m.lr_base > 0, "Nothing would be learned."),
        Rule(
            f"{schedule}.total_steps",
            "must be above warmup_steps",
            not is_decaying or m.lr_total_steps > m.lr_warmup_steps,
            "The decay runs from warmup_steps to total_steps.",
        ),
        Rule(
            f"{schedule}.final_lr",
            "must be at most base_lr",
            not is_decaying or m.lr_final <= m.lr_base,
            "The rate only falls after the warm-up.",
        ),
        Rule(
            f"{schedule}.cosine_decay_final_lr",
            "must be at most base_lr and at least linear_decay_final_lr",
            not is_stable_decay or m.lr_base >= m.lr_final >= m.lr_linear_final,
            "The rate only falls after the warm-up.",
        ),
    ]


def _get_local_steps_rules(m: Model) -> list[Rule]:
    """What the clients' AdamW takes, as it is stored; zeros are its defaults."""
    betas = {"adam_beta1": m.adam_beta1, "adam_beta2": m.adam_beta2}
    return [
        Rule(
            "optimizer.Distro.local_steps",
            f"must be at most {MAX_LOCAL_STEPS}",
            m.local_steps <= MAX_LOCAL_STEPS,
            "4 to 8 are usual; 1 is the default's step.",
        ),
        *(
            Rule(f"optimizer.Distro.{name}", "must be below 1", float(np.float32(beta)) < 1, "0.9 is usual.")
            for name, beta in betas.items()
        ),
    ]
