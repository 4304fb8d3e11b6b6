"""From a run's account to the optimizer: one set of defaults, and what older accounts mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from programs_harness import make_model

from psyche_py.client.jobs import make_distro_config
from psyche_py.client.trainer import Trainer
from psyche_py.coordinator import rules
from psyche_py.coordinator.config import load_run_config
from psyche_py.distro import Constant, DistroConfig
from psyche_py.distro import config as limits
from psyche_py.model.loader import load_from_config

REPO = Path(__file__).parents[3]


class Zeros:
    """A language of one word."""

    seq_len, vocab_size, num_samples = 8, 512, 1 << 40

    def get_batch(self, start: int, end: int) -> np.ndarray:
        return np.zeros((end - start + 1, self.seq_len + 1), dtype=np.int64)


def test_a_run_file_that_names_only_what_it_must_gets_the_optimizer_s_defaults() -> None:
    text = (REPO / "configs" / "tiny-cpu.toml").read_text()
    for key in ("step_levels", "lr_outside_momentum", "vocab_lr_scale"):
        (line,) = (line for line in text.splitlines() if line.startswith(f"{key} ="))
        text = text.replace(f"{line}\n", "")
    config, usual = make_distro_config(load_run_config(text).model), DistroConfig()
    for name in ("step_levels", "lr_outside_momentum", "vocab_lr_scale", "compression_chunk"):
        assert getattr(config, name) == getattr(usual, name)


def test_accounts_of_runs_made_before_there_was_a_choice_mean_what_was_done_then() -> None:
    config = make_distro_config(make_model())
    assert (config.step_levels, config.lr_outside_momentum, config.vocab_lr_scale) == (1, False, 1.0)
    assert config.local_steps == 1
    assert not config.is_local


def test_a_run_chooses_local_steps_and_what_it_leaves_out_of_adamw_is_the_optimizer_s() -> None:
    config, usual = make_distro_config(make_model(local_steps=6, adam_beta2=0.5)), DistroConfig()
    assert (config.local_steps, config.adam_beta2) == (6, 0.5)
    assert (config.adam_beta1, config.adam_eps) == (usual.adam_beta1, usual.adam_eps)
    assert make_distro_config(make_model(local_steps=1)).local_steps == 1


def test_trainer_and_verifier_give_embedding_and_head_their_rate() -> None:
    loaded = load_from_config(REPO / "configs" / "models" / "nano", 1)
    trainer = Trainer(loaded, DistroConfig(vocab_lr_scale=2.5), Constant(1e-3), Zeros(), device="cpu")
    for optimizer in (trainer.optimizer, trainer.make_optimizer()):
        groups = {group["lr_scale"]: group["names"] for group in optimizer.param_groups}
        assert groups[2.5] == ["lm_head.weight", "model.embed_tokens.weight"]
        assert set(groups) == {1.0, 2.5}


def test_what_a_run_may_ask_for_is_what_the_optimizer_takes() -> None:
    for name in ("MAX_TOPK", "MAX_CHUNK", "MAX_STEP_LEVELS", "MAX_LOCAL_STEPS"):
        assert getattr(rules, name) == getattr(limits, name)
