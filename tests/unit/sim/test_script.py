"""Script files: what is written is read back, what is wrong is named with its key and a remedy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from psyche_py.errors import ConfigError
from psyche_py.sim.families import make_library
from psyche_py.sim.outcome import judge, make_world, play_script
from psyche_py.sim.script import read_script, write_script

CONFIGS = Path(__file__).parents[3] / "configs" / "sim"


def test_the_library_is_read_as_it_is_written() -> None:
    for script in make_library(3):
        assert read_script(write_script(script)) == script


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.toml")), ids=lambda path: path.stem)
def test_the_examples_are_read_as_they_are_written(path: Path) -> None:
    script = read_script(path.read_text())
    again = read_script(write_script(script))
    assert again.faults == script.faults
    assert replace(again.settings, roles={}) == replace(script.settings, roles={})
    numbers = range(script.settings.num_clients)
    assert [again.settings.get_role(n) for n in numbers] == [script.settings.get_role(n) for n in numbers]


def test_one_seed_is_one_trace() -> None:
    script = read_script((CONFIGS / "partition.toml").read_text())
    first, second = play_script(script), play_script(script)
    assert not first.problems
    assert first == second
    other = replace(script, settings=replace(script.settings, seed=2))
    assert play_script(other).trace != first.trace


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("", "clients"),
        ("clients = 0", "clients"),
        ("clients = 300", "clients"),
        ("clients = true", "clients"),
        ("clients = 4\nclint = 3", "clint"),
        ("clients = 4\nseed = -1", "seed"),
        ("clients = 4\nchain = 'devnet'", "chain"),
        ("clients = 4\n[config]\nwarmup = 3", "config.warmup"),
        ("clients = 4\n[compute]\ntrain_seconds = 'long'", "compute.train_seconds"),
        ("clients = 4\n[compute]\nmode = 'real'", "compute.model"),
        ("clients = 4\n[link]\nloss = 2.0", "link.loss"),
        ("clients = 4\n[group.a]\nmode = 'honest'", "group.a.clients"),
        ("clients = 4\n[group.a]\nclients = [1]\n[group.b]\nclients = [1]", "group.b.clients"),
        ("clients = 4\n[group.a]\nclients = [1]\nmode = 'thief'", "group.a.mode"),
        ("clients = 4\n[[path]]\nbetween = ['a', 'b']\nlatency_ms = 3", "path 1: between"),
        ("clients = 4\n[[fault]]\nclients = [1]", "fault 1: kind"),
        ("clients = 4\n[[fault]]\nkind = 'kil'", "fault 1: kind"),
        ("clients = 4\n[[fault]]\nkind = 'kill'\npoint = 'Tran'", "fault 1: point"),
        ("clients = 4\n[[fault]]\nkind = 'kill'\npoint = 'Warmup'", "fault 1: clients"),
        ("clients = 4\n[[fault]]\nkind = 'kill'\nclients = [1, 1]", "fault 1: clients"),
        ("clients = 4\n[[fault]]\nkind = 'kill'\ngroup = 'x'", "fault 1: group"),
        ("clients = [", "file"),
    ],
)
def test_what_is_wrong_is_named(text: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_script(text)
    assert caught.value.key == key
    assert caught.value.remedy


def test_clients_that_train_keep_equal_weights(shards: Path, nano: Path) -> None:
    """Mode "real": the run's model, the client's trainer, payloads of real bytes."""
    text = f"""
clients = 3
[config]
total_steps = 8
epoch_time = 300
global_batch_size_start = 6
global_batch_size_end = 6
[compute]
mode = "real"
model = "{nano}"
data = "{shards}"
"""
    script = read_script(text)
    world = make_world(script)
    outcome = judge(script, world, world.run())
    assert not outcome.problems
    assert len({client.weights for client in world.clients}) == 1
    assert world.clients[0].weights != bytes(32)
    assert outcome.traffic.own == 2.0
