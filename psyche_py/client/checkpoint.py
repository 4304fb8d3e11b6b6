"""Checkpoints in Hugging Face's format, whole or not at all.

<parent>/<run id>-step<step>/
    model.safetensors  config.json  generation_config.json  tokenizer files
    psyche.json        run_id, step, epoch, model_digest
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import quote

from psyche_py.data.atomic import explain_os_error, replace_directory
from psyche_py.errors import DataError, StorageError
from psyche_py.model.sharing import ModelSnapshot

PSYCHE_FILE = "psyche.json"
WEIGHTS_FILE = "model.safetensors"
MAX_FACTS_BYTES = 1 << 16
_REMEDY = "Give another --checkpoint-dir."


@dataclass(frozen=True)
class CheckpointFacts:
    """``psyche.json``: which run, which step and epoch, and the model digest (hex)."""

    run_id: str
    step: int
    epoch: int
    model_digest: str


def save_checkpoint(
    snapshot: ModelSnapshot, parent: Path, *, run_id: str, step: int, epoch: int, keep: int = 3
) -> Path:
    """Write ``<parent>/<run_id>-step<step>`` and remove all but the newest ``keep`` of the run.

    The directory loads with ``AutoModelForCausalLM.from_pretrained``. It is written beside its place and
    renamed when every byte is on disk; one that is already there with the same model is kept. Raises
    StorageError; nothing half-done is left.
    """
    facts = CheckpointFacts(run_id, step, epoch, snapshot.digest.hex())
    target = parent / f"{_get_prefix(run_id)}{step}"
    if not _is_there(target, facts):
        with replace_directory(target, "a checkpoint", _REMEDY) as directory:
            _write(snapshot, directory, facts)
    _remove_old(parent, run_id, keep)
    return target


def prepare_directory(parent: Path) -> None:
    """Make the directory that checkpoints go into. Raises StorageError when that or writing is impossible."""
    try:
        parent.mkdir(parents=True, exist_ok=True)
        if not os.access(parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise explain_os_error(error, "checkpoints", parent, _REMEDY) from error


def _get_prefix(run_id: str) -> str:
    """A run id may hold any character, a file name may not."""
    return f"{quote(run_id, safe='')}-step"


def _is_there(target: Path, facts: CheckpointFacts) -> bool:
    try:
        return (target / WEIGHTS_FILE).is_file() and read_facts(target) == facts
    except DataError:
        return False


def _write(snapshot: ModelSnapshot, directory: Path, facts: CheckpointFacts) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file(snapshot.tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    except SafetensorError as error:
        raise _explain(error, directory.parent) from error
    (directory / "config.json").write_bytes(snapshot.config_json)
    files = {**_make_defaults(snapshot), **snapshot.files}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    (directory / PSYCHE_FILE).write_text(json.dumps(asdict(facts), indent=1) + "\n", encoding="utf-8")


def _explain(error: Exception, parent: Path) -> StorageError:
    """safetensors hides the operating system's error number in its text."""
    match = re.search(r"os error (\d+)", str(error))
    if match is None:
        return StorageError(f"Cannot write a checkpoint to {parent}: {error}", _REMEDY)
    return explain_os_error(OSError(int(match[1]), str(error)), "a checkpoint", parent, _REMEDY)


def _make_defaults(snapshot: ModelSnapshot) -> dict[str, bytes]:
    """Files that make the directory usable when the model came without them."""
    config = json.loads(snapshot.config_json)
    keys = ("bos_token_id", "eos_token_id", "pad_token_id")
    generation = {key: config[key] for key in keys if config.get(key) is not None}
    defaults = {"generation_config.json": (json.dumps(generation, indent=1) + "\n").encode()}
    if "tokenizer.json" in snapshot.files:
        tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast"}
        defaults["tokenizer_config.json"] = (json.dumps(tokenizer, indent=1) + "\n").encode()
    return defaults


def find_checkpoints(parent: Path, run_id: str) -> list[tuple[int, Path]]:
    """Step and path of every whole checkpoint of a run, oldest first."""
    pattern = re.compile(re.escape(_get_prefix(run_id)) + r"(\d+)")
    found = []
    for path in parent.iterdir() if parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and (path / PSYCHE_FILE).is_file():
            found.append((int(match[1]), path))
    return sorted(found)


def find_latest_checkpoint(parent: Path, run_id: str) -> Path | None:
    """The newest whole checkpoint of a run, if there is one."""
    found = find_checkpoints(parent, run_id)
    return found[-1][1] if found else None


def read_facts(checkpoint: Path) -> CheckpointFacts:
    """``psyche.json`` of a checkpoint. Raises DataError."""
    path = checkpoint / PSYCHE_FILE
    try:
        with path.open("rb") as file:
            facts = CheckpointFacts(**json.loads(file.read(MAX_FACTS_BYTES)))
    except OSError as error:
        raise DataError(
            f"{checkpoint} is no checkpoint of a run: {error.strerror}.", "Check the path."
        ) from None
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is damaged: {error}", "Use another checkpoint.") from None
    return facts


def _remove_old(parent: Path, run_id: str, keep: int) -> None:
    for _, path in find_checkpoints(parent, run_id)[: -max(keep, 1)]:
        with suppress(OSError):  # an old checkpoint that stays costs space, not correctness
            shutil.rmtree(path)
