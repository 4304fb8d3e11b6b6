"""``run-manager deploy-programs`` on a validator that takes deployments: ours, on the newest solders.

That solders is in .venv-newest (`make test-newest` makes it). The command runs in this environment, from a
copy of the package whose programs have addresses of the test's own: the real ones' keypairs are nobody's.
"""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from localnet_process import Localnet, start_localnet, stop
from solders.keypair import Keypair

from psyche_py.chain.artifacts import PROGRAM_NAMES, read_program
from psyche_py.chain.keypair import write_keypair
from psyche_py.chain.upgradeable_loader import LOADER, PROGRAM_DATA_HEADER_BYTES, find_program_data

ROOT = Path(__file__).resolve().parents[2]
NEWEST = ROOT / ".venv-newest" / "bin" / "python"
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not NEWEST.exists(), reason="no .venv-newest: run `make test-newest` once"),
]


@dataclass(frozen=True)
class Owner:
    """A copy of the package, keypairs for its programs, a funded wallet, and a validator."""

    home: Path
    localnet: Localnet

    def __call__(self, *arguments: object, code: int = 0) -> str:
        command = [sys.executable, "-m", "psyche_py.cli.main", *map(str, arguments)]
        command += ["-u", self.localnet.rpc_url, "-k", "wallet.json"]
        done = subprocess.run(
            command,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def read_code(self, name: str) -> bytes:
        """What the cluster holds for a program, as its RPC shows it."""
        keypair = Keypair.from_json((self.home / "keys" / f"{name}.json").read_text())
        address = str(find_program_data(keypair.pubkey()))
        value = self.localnet.call("getAccountInfo", address, {"encoding": "base64"})["value"]
        assert value["owner"] == str(LOADER)
        return base64.b64decode(value["data"][0])[PROGRAM_DATA_HEADER_BYTES:].rstrip(b"\0")


@pytest.fixture(scope="module")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    home = tmp_path_factory.mktemp("deploy")
    shutil.copytree(ROOT / "psyche_py", home / "psyche_py", ignore=shutil.ignore_patterns("__pycache__"))
    for name in PROGRAM_NAMES:
        keypair = write_keypair(home / "keys" / f"{name}.json")
        path = home / "psyche_py" / "chain" / "idl" / f"{name}.json"
        idl = json.loads(path.read_text())
        idl["metadata"]["address"] = str(keypair.pubkey())
        path.write_text(json.dumps(idl))
    write_keypair(home / "wallet.json")
    localnet = start_localnet("--rpc-port", "0", python=str(NEWEST))
    try:
        owner = Owner(home, localnet)
        owner("wallet", "airdrop", 10)
        yield owner
    finally:
        stop(localnet)


def test_all_programs_are_deployed_then_upgraded_then_final(owner: Owner) -> None:
    told = owner("deploy-programs", code=2)
    assert "--program-keypairs" in told
    told = owner("deploy-programs", "--program-keypairs", "keys", "--dry-run")
    assert told.count("deploy:") == len(PROGRAM_NAMES)
    told = owner("deploy-programs", "--program-keypairs", "keys")
    assert told.startswith("SBPF v3\n")
    for name in PROGRAM_NAMES:
        assert f"{name}: deploy done" in told
        assert owner.read_code(name) == read_program(name, 3).rstrip(b"\0")
    assert owner("deploy-programs").count("is up to date") == len(PROGRAM_NAMES)

    told = owner("deploy-programs", "coordinator", "--sbpf", 0)  # larger: the account must grow first
    assert "coordinator: upgrade done" in told
    assert owner.read_code("coordinator") == read_program("coordinator", 0).rstrip(b"\0")

    owner("deploy-programs", "treasurer", "--final", code=130)  # nobody answers the question
    told = owner("deploy-programs", "treasurer", "--final", "--yes")
    assert "treasurer: nobody can upgrade it any more" in told
    told = owner("deploy-programs", "treasurer", "--sbpf", 0, code=3)
    assert "nobody may" in told
    assert owner("deploy-programs", "--close-buffers") == "0.000000 SOL of buffers came back.\n"
