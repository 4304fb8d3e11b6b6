"""``run-manager sim``: a script, another seed, the library, a picture, errors with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from psyche_py.cli.main import group
from psyche_py.errors import UsageError

SCRIPT = """
clients = 4
[config]
total_steps = 8
[[fault]]
kind = "freeze"
clients = [1]
seconds = 5.0
"""


def run(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(group, ["sim", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return int(result.return_value or 0), result.stdout.strip().splitlines()


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "small.toml"
    path.write_text(SCRIPT)
    return str(path)


def test_a_script_ends_in_a_json_line(script: str) -> None:
    code, lines = run(script)
    result = json.loads(lines[-1])
    assert code == result["failed"] == result["batches_lost"] == 0
    assert result["digests_equal"]
    assert result["faults"] == 1
    assert result["own_payload_sent"] == pytest.approx(2.0)
    assert json.loads(run(script)[1][-1])["trace"] == result["trace"]
    assert json.loads(run(script, "--seed", "9")[1][-1])["trace"] != result["trace"]


def test_it_says_what_became_of_every_sample(tmp_path: Path) -> None:
    """A client is killed as it publishes: others train its batches, and those of the end are lost."""
    path = tmp_path / "kill.toml"
    config = "clients = 5\nseed = 3\n[config]\ntotal_steps = 14\nepoch_time = 200\n"
    fault = '[[fault]]\nkind = "kill"\nclients = [1]\npoint = "Train"\nby = 1\nstep = 6\n'
    path.write_text(config + fault)
    code, lines = run(str(path))
    result = json.loads(lines[-1])
    assert code == 0
    assert result["problems"] == result["samples_missing"] == result["samples_trained_twice"] == []
    assert result["samples_trained_again"] > 0
    assert any(f"{result['samples_trained']} trained" in line for line in lines)
    lost = result["samples_lost"]
    assert all(any(f"{first}-{last}" in line for line in lines) for first, last in lost)


def test_what_failed_is_named_and_the_exit_code_tells(tmp_path: Path) -> None:
    """A cheat whose script says that it is left alone, in a run that convicts it."""
    source = Path(__file__).parents[2] / "configs" / "sim" / "cheats" / "no-work.toml"
    path = tmp_path / "no-work.toml"
    path.write_text(source.read_text().replace('end = "convicted"', 'end = "acquitted"'))
    code, lines = run(str(path))
    result = json.loads(lines[-1])
    assert code == 1
    assert result["failed"] == len(result["problems"]) == 1
    assert "is slashed by" in result["problems"][0]
    assert f"FAILED  {result['problems'][0]}" in lines


def test_a_picture(script: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'psyche-py[plot]'")
    run(script, "--plot", str(tmp_path / "run.png"))
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_a_script_that_fails_is_shrunk(tmp_path: Path) -> None:
    path = tmp_path / "dead.toml"
    kill = "[[fault]]\nkind = 'kill'\nclients = [0, 1, 2, 3]\n[[fault]]\nkind = 'describe'\n"
    path.write_text("clients = 4\nmax_minutes = 5\n" + kill)
    code, lines = run(str(path), "--shrink")
    assert code == 1
    text = "\n".join(lines)
    assert text.count("[[fault]]") == 1
    assert 'kind = "kill"' in text


def test_the_library_is_listed(tmp_path: Path) -> None:
    _, lines = run("--list")
    assert any(line.startswith("grid ") for line in lines)


@pytest.mark.parametrize("name", ["nothing.toml", "kil:3", ""])
def test_no_such_script(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        run(*[name][: bool(name)])
    assert caught.value.remedy
