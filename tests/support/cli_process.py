"""``run-manager`` as its users meet it: the console script, in a process of its own, with an empty home."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
TINY = ROOT / "configs" / "tiny-cpu.toml"
COMMAND_SECONDS = 240


@dataclass(frozen=True)
class Outcome:
    """What a command left."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def check_error(self, code: int, *parts: str) -> None:
        """The exit code, "Error: what", one line with the remedy and no more; ``parts`` occur in them."""
        assert self.code == code, (self.code, self.out, self.err)
        lines = self.err.strip().splitlines()
        at = next(i for i, line in enumerate(lines) if line.startswith("Error: "))
        assert len(lines) == at + 2, f"not one error with one remedy: {lines}"
        for part in parts:
            assert part in self.err, (part, self.err)


@dataclass(frozen=True)
class Cli:
    """``run-manager`` with a home and a working directory of its own, talking to ``url``."""

    home: Path
    url: str = ""

    def __call__(self, *arguments: object, url: str | None = None) -> Outcome:
        done = subprocess.run(
            self.get_command(*arguments),
            cwd=self.home,
            env=self.get_environment(url),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Outcome(done.returncode, done.stdout, done.stderr)

    def get_command(self, *arguments: object) -> list[str]:
        """The console script of this environment."""
        return [str(Path(sys.executable).parent / "run-manager"), *(str(argument) for argument in arguments)]

    def get_environment(self, url: str | None = None) -> Mapping[str, str]:
        """The caller's, without what would choose a cluster or a wallet."""
        unset = ("RPC", "RPC_2", "RPC_3", "WS_RPC", "WALLET_PATH")
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        chosen = self.url if url is None else url
        return {**kept, "HOME": str(self.home), "COLUMNS": "120", **({"RPC": chosen} if chosen else {})}

    def make_wallet(self, name: str, sol: float = 0) -> Path:
        """A wallet of mode 0600, with money from the localnet's faucet."""
        path = self.home / f"{name}.json"
        assert self("wallet", "new", path).code == 0
        if sol:
            done = self("wallet", "airdrop", sol, "-k", path)
            assert done.code == 0, done.err
        return path
