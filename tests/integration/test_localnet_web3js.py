"""@solana/web3.js against a localnet process, where node and the package are there."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from localnet_process import running_localnet

SCRIPT = Path(__file__).with_name("web3js_flow.mjs")
REPOSITORY = Path(__file__).resolve().parents[2]


def find_modules() -> Path:
    """A node_modules directory with the package in it; skips the test, and says why, when there is none."""
    if shutil.which("node") is None:
        pytest.skip("node is not on PATH")
    named = os.environ.get("PSYCHE_WEB3JS")
    modules = Path(named) if named else REPOSITORY / "node_modules"
    if not (modules / "@solana" / "web3.js" / "package.json").exists():
        pytest.skip(
            f"no @solana/web3.js in {modules}: `npm install @solana/web3.js@1 @solana/spl-token` somewhere "
            "and set PSYCHE_WEB3JS to its node_modules"
        )
    return modules


def test_web3js_flows() -> None:
    modules = find_modules()
    with running_localnet() as localnet:
        ended = subprocess.run(
            ["node", str(SCRIPT), localnet.rpc_url],
            capture_output=True,
            text=True,
            timeout=110,
            check=False,
            env={**os.environ, "PSYCHE_WEB3JS": str(modules)},
        )
    assert ended.stdout, ended.stderr
    flows = json.loads(ended.stdout.splitlines()[-1])["flows"]
    assert len(flows) >= 12
    assert {name: result for name, result in flows.items() if result != "ok"} == {}
    assert ended.returncode == 0
