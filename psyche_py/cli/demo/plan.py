"""What the demo runs: how many clients, how long, with what; and where it puts things."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from psyche_py.coordinator.config import RunConfig, load_run_config
from psyche_py.errors import UsageError

RUN_ID = "demo"
SEQ_LEN = 256
SEQUENCES_PER_CLIENT = 4
STEPS_PER_MINUTE = 50
"""What two cores train with three clients, set-up apart; a slower machine is paused when time is up."""
MIN_STEPS = 24
EARNING_RATE = 1_000_003
"""Points an epoch's clients share: a prime, so that an even split would show a rounding error."""
VOCAB_SIZE = 2048
MARKER = "this-is-a-psyche-py-demo"


@dataclass(frozen=True)
class DemoPlan:
    """Choices of the user and what follows from them."""

    directory: Path
    num_clients: int
    minutes: float
    texts: tuple[Path, ...]
    model_config: Path
    verification_percent: int = 0

    @property
    def total_steps(self) -> int:
        """Steps of the run."""
        return max(round(self.minutes * STEPS_PER_MINUTE), MIN_STEPS)

    @property
    def shards(self) -> Path:
        """The token shards."""
        return self.directory / "shards"

    @property
    def config_path(self) -> Path:
        """The run configuration, as filled in."""
        return self.directory / "run.toml"

    def get_wallet(self, name: str) -> Path:
        """Keypair file of ``owner`` or ``client-0`` ..."""
        return self.directory / f"{name}.json"

    def get_events(self, number: int) -> Path:
        """Event file of a client."""
        return self.directory / f"client-{number}.events.jsonl"

    def get_log(self, name: str) -> Path:
        """What a process printed."""
        return self.directory / f"{name}.log"

    def get_checkpoints(self, number: int) -> Path:
        """Checkpoints of a client."""
        return self.directory / f"client-{number}-checkpoints"

    def write_config(self, template: str) -> RunConfig:
        """Fill the template in, check it and write it down."""
        epoch_time = round(min(max(self.minutes * 20, 40), 600))
        values = {
            "total_steps": self.total_steps,
            "init_min_clients": self.num_clients,
            "min_clients": max(1, min(2, self.num_clients)),
            "global_batch_size_start": SEQUENCES_PER_CLIENT * self.num_clients,
            "global_batch_size_end": SEQUENCES_PER_CLIENT * self.num_clients,
            "epoch_time": epoch_time,
            "warmup_time": min(60, epoch_time - 10),
            "verification_percent": self.verification_percent,
        }
        lines = []
        for line in template.splitlines():
            key = line.split("=")[0].strip()
            if key in values:
                line = f"{key} = {values[key]}"
            elif line.startswith('path = "configs/'):
                line = f'path = "{self.model_config}"'
            elif line.startswith('path = "shards"'):
                line = f'path = "{self.shards}"'
            lines.append(line)
        text = "\n".join(lines) + "\n"
        config = load_run_config(text)
        self.config_path.write_text(text)
        return config


def make_directory(directory: Path) -> None:
    """An empty directory for a demo; one that an earlier demo left is cleared. Raises UsageError."""
    marker = directory / MARKER
    if directory.exists():
        if not directory.is_dir() or (any(directory.iterdir()) and not marker.is_file()):
            raise UsageError(f"{directory} is not a demo's directory.", "Choose another with --dir.")
        if marker.is_file() and _is_running(marker.read_text().strip()):
            raise UsageError(f"A demo is running in {directory}.", "Choose another with --dir.")
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    marker.write_text(f"{os.getpid()}\n")


def _is_running(text: str) -> bool:
    """Whether the process whose id a marker holds is alive."""
    if not text.isdigit():
        return False
    try:
        os.kill(int(text), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(text) != os.getpid()


def get_command(*arguments: str) -> list[str]:
    """The command line of ``run-manager`` in this environment."""
    return [sys.executable, "-m", "psyche_py.cli.main", *arguments]
