"""Checkpoints: transformers reads them, a full disk leaves nothing, old ones go."""

import errno
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from psyche_py.client import checkpoint
from psyche_py.client.checkpoint import (
    CheckpointFacts,
    find_checkpoints,
    find_latest_checkpoint,
    read_facts,
    save_checkpoint,
)
from psyche_py.data.prepare import prepare_shards
from psyche_py.distro.digest import describe_model
from psyche_py.errors import DataError, StorageError
from psyche_py.model.loader import canonicalize_config, load_from_config, load_from_directory
from psyche_py.model.sharing import ModelSnapshot

NANO = Path(__file__).parents[3] / "configs" / "models" / "nano"


def make_snapshot(seed: int = 1, tokenizer: Path | None = None) -> ModelSnapshot:
    loaded = load_from_config(NANO, seed, tokenizer)
    tensors = {name: p.detach() for name, p in loaded.model.named_parameters()}
    manifest = describe_model(tensors, canonicalize_config(loaded.config_json))
    return ModelSnapshot(manifest, loaded.config_json, loaded.files, tensors)


def test_transformers_loads_a_checkpoint_and_generates_text(tmp_path: Path) -> None:
    import transformers

    (tmp_path / "a.txt").write_text("Shall I compare thee to a summer's day?\n" * 50)
    prepare_shards([tmp_path / "a.txt"], tmp_path / "data", vocab_size=300)
    snapshot = make_snapshot(tokenizer=tmp_path / "data")

    path = save_checkpoint(snapshot, tmp_path / "out", run_id="run", step=7, epoch=2)

    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    for name, p in model.named_parameters():
        assert torch.equal(p, snapshot.tensors[name])
    ids = tokenizer("Shall I compare", return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == "Shall I compare"
    with torch.no_grad():
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
        )
    assert output.shape[1] > ids.shape[1]
    assert isinstance(tokenizer.decode(output[0]), str)
    assert read_facts(path) == CheckpointFacts("run", 7, 2, snapshot.digest.hex())
    again = load_from_directory(path)
    assert again.files.keys() == {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}
    assert json.loads(again.files["generation_config.json"])["eos_token_id"] == 0


def test_the_newest_are_kept_and_other_runs_are_left_alone(tmp_path: Path) -> None:
    snapshot = make_snapshot()
    save_checkpoint(snapshot, tmp_path, run_id="run-step2", step=1, epoch=0)
    for step in (9, 10, 11, 8):
        save_checkpoint(snapshot, tmp_path, run_id="run", step=step, epoch=0, keep=3)
    (tmp_path / "run-step99").mkdir()  # not a whole checkpoint

    assert [step for step, _ in find_checkpoints(tmp_path, "run")] == [9, 10, 11]
    assert find_latest_checkpoint(tmp_path, "run") == tmp_path / "run-step11"
    assert find_latest_checkpoint(tmp_path, "run-step2") == tmp_path / "run-step2-step1"
    assert find_latest_checkpoint(tmp_path, "other") is None
    assert find_latest_checkpoint(tmp_path / "nowhere", "run") is None


def test_a_run_id_cannot_lead_out_of_the_directory(tmp_path: Path) -> None:
    for run_id in ("../../evil", "a/b", "..", "läuft [*]?"):
        path = save_checkpoint(make_snapshot(), tmp_path / "out", run_id=run_id, step=1, epoch=0)
        assert path.parent == tmp_path / "out"
        assert find_latest_checkpoint(tmp_path / "out", run_id) == path
        assert read_facts(path).run_id == run_id


def test_a_checkpoint_of_the_same_model_is_kept_another_one_replaced(tmp_path: Path) -> None:
    path = save_checkpoint(make_snapshot(1), tmp_path, run_id="run", step=1, epoch=0)
    made = (path / "model.safetensors").stat().st_ino
    save_checkpoint(make_snapshot(1), tmp_path, run_id="run", step=1, epoch=0)
    assert (path / "model.safetensors").stat().st_ino == made
    save_checkpoint(make_snapshot(2), tmp_path, run_id="run", step=1, epoch=0)
    assert read_facts(path).model_digest == make_snapshot(2).digest.hex()
    assert [p.name for p in tmp_path.iterdir()] == ["run-step1"]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from psyche_py.client.checkpoint import save_checkpoint
from psyche_py.errors import StorageError
from test_checkpoint import make_snapshot
snapshot = make_snapshot(2)
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    save_checkpoint(snapshot, Path(sys.argv[1]), run_id="run", step=1, epoch=0)
except StorageError as error:
    print(error.what, error.remedy)
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize("limit", [100_000, 200])  # the weights, then the configuration, do not fit
def test_a_file_that_cannot_grow_leaves_the_old_checkpoint_and_nothing_else(
    tmp_path: Path, limit: int
) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    path = save_checkpoint(make_snapshot(1), tmp_path, run_id="run", step=1, epoch=0)

    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, tmp_path, "100000"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )

    assert done.returncode == StorageError.exit_code, done.stderr
    assert "disk is full" in done.stdout
    assert "--checkpoint-dir" in done.stdout
    assert [p.name for p in tmp_path.iterdir()] == ["run-step1"]
    assert read_facts(path).model_digest == make_snapshot(1).digest.hex()


def _fail_at(number: int) -> Callable[[Path, bytes], int]:
    count = iter(range(100))
    write_bytes = Path.write_bytes

    def write(path: Path, data: bytes) -> int:
        if next(count) == number:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write_bytes(path, data)

    return write


@pytest.mark.parametrize("number", [0, 1])
def test_no_space_for_a_small_file_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    snapshot = make_snapshot()
    monkeypatch.setattr(Path, "write_bytes", _fail_at(number))
    with pytest.raises(StorageError, match="disk is full"):
        save_checkpoint(snapshot, tmp_path, run_id="run", step=1, epoch=0)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="Cannot write a checkpoint to") as caught:
        save_checkpoint(make_snapshot(), tmp_path / "file", run_id="run", step=1, epoch=0)
    assert "--checkpoint-dir" in caught.value.remedy


def test_errors_of_safetensors_are_storage_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import safetensors.torch
    from safetensors import SafetensorError

    for text, expected in (
        ("Error while serializing: I/O error: No space left on device (os error 28)", "disk is full"),
        ("Error while serializing: something else", "something else"),
    ):

        def fail(*args: object, text: str = text, **kwargs: object) -> None:
            raise SafetensorError(text)

        monkeypatch.setattr(safetensors.torch, "save_file", fail)
        with pytest.raises(StorageError, match=expected):
            save_checkpoint(make_snapshot(), tmp_path, run_id="run", step=1, epoch=0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"run_id": "a", "more": 1}', b"\xff"])
def test_damaged_facts_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / checkpoint.PSYCHE_FILE).write_bytes(content)
    with pytest.raises(DataError, match="is damaged"):
        read_facts(tmp_path)
    with pytest.raises(DataError, match="is no checkpoint"):
        read_facts(tmp_path / "nowhere")
