"""Checkpoints in Hugging Face's format, whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from psyche_py.errors import StorageError
from psyche_py.model.sharing import ModelSnapshot

PSYCHE_FILE = "psyche.json"
WEIGHTS_FILE = "model.safetensors"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def save_checkpoint(
    snapshot: ModelSnapshot, parent: Path, *, run_id: str, step: int, epoch: int, keep: int = 3
) -> Path:
    """Write ``<parent>/<run_id>-step<step>`` and remove all but the newest ``keep`` of the run.

    The directory loads with ``AutoModelForCausalLM.from_pretrained``. It is written beside its place and
    renamed when every byte is on disk. Raises StorageError; nothing half-done is left.
    """
    target = parent / f"{run_id}-step{step}"
    temporary: Path | None = None
    try:
        parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=parent))
        _write(snapshot, temporary, run_id=run_id, step=step, epoch=epoch)
        if target.exists():
            shutil.rmtree(target)
        temporary.rename(target)
    except OSError as error:
        raise _explain(error, parent) from error
    except Exception as error:
        # safetensors reports a full disk in an error type of its own
        if "SafetensorError" not in type(error).__name__:
            raise
        raise StorageError(f"Cannot write a checkpoint to {parent}: {error}", "Free space there.") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    _remove_old(parent, run_id, keep)
    return target


def _explain(error: OSError, parent: Path) -> StorageError:
    if error.errno in NO_SPACE:
        return StorageError(
            f"The disk is full: cannot write a checkpoint to {parent}.",
            "Free space, or give another --checkpoint-dir.",
        )
    return StorageError(
        f"Cannot write a checkpoint to {parent}: {error.strerror}.", "Give another --checkpoint-dir."
    )


def _write(snapshot: ModelSnapshot, directory: Path, *, run_id: str, step: int, epoch: int) -> None:
    from safetensors.torch import save_file

    directory.chmod(0o755)
    save_file(snapshot.tensors, directory / WEIGHTS_FILE, metadata={"format": "pt"})
    (directory / "config.json").write_bytes(snapshot.config_json)
    for name, data in snapshot.files.items():
        (directory / name).write_bytes(data)
    if "tokenizer.json" in snapshot.files and "tokenizer_config.json" not in snapshot.files:
        # lets AutoTokenizer load a tokenizer that was trained with `data prepare`
        values = {"tokenizer_class": "PreTrainedTokenizerFast"}
        (directory / "tokenizer_config.json").write_text(json.dumps(values) + "\n")
    facts = {"run_id": run_id, "step": step, "epoch": epoch, "model_digest": snapshot.digest.hex()}
    (directory / PSYCHE_FILE).write_text(json.dumps(facts, indent=1) + "\n")
    for path in (*directory.iterdir(), directory):
        _sync(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def find_checkpoints(parent: Path, run_id: str) -> list[tuple[int, Path]]:
    """Step and path of every whole checkpoint of a run, oldest first."""
    pattern = re.compile(re.escape(run_id) + r"-step(\d+)")
    found = []
    for path in parent.glob(f"{run_id}-step*") if parent.is_dir() else ():
        match = pattern.fullmatch(path.name)
        if match and (path / PSYCHE_FILE).is_file():
            found.append((int(match[1]), path))
    return sorted(found)


def find_latest_checkpoint(parent: Path, run_id: str) -> Path | None:
    """The newest whole checkpoint of a run, if there is one."""
    found = find_checkpoints(parent, run_id)
    return found[-1][1] if found else None


def read_facts(checkpoint: Path) -> dict[str, Any]:
    """``psyche.json`` of a checkpoint: run_id, step, epoch, model_digest."""
    facts: dict[str, Any] = json.loads((checkpoint / PSYCHE_FILE).read_text())
    return facts


def _remove_old(parent: Path, run_id: str, keep: int) -> None:
    for _, path in find_checkpoints(parent, run_id)[: -max(keep, 1)]:
        with contextlib.suppress(OSError):  # an old checkpoint that stays costs space, not correctness
            shutil.rmtree(path)
