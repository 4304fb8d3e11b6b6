"""@coral-xyz/anchor on our IDLs of the 0.30 shape, where node and the package are there."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from idl_values import IDL_FOLDER, IdlValues, to_snake
from programs_harness import ProgramChain, RunHarness
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id

SCRIPT = Path(__file__).with_name("anchor_idl_flow.mjs")
REPOSITORY = Path(__file__).resolve().parents[2]
MAX_ARGUMENT_BYTES = 1000
"""What the package's encoder has room for: less than an update of everything (no transaction has more)."""


def find_modules() -> Path:
    """A node_modules directory with the package in it; skips the test, and says why, when there is none."""
    if shutil.which("node") is None:
        pytest.skip("node is not on PATH")
    named = os.environ.get("PSYCHE_ANCHOR_JS")
    modules = Path(named) if named else REPOSITORY / "node_modules"
    if not (modules / "@coral-xyz" / "anchor" / "package.json").exists():
        pytest.skip(
            f"no @coral-xyz/anchor in {modules}: `npm install @coral-xyz/anchor` somewhere "
            "and set PSYCHE_ANCHOR_JS to its node_modules"
        )
    return modules


def discriminate(space: str, name: str) -> bytes:
    return hashlib.sha256(f"{space}:{name}".encode()).digest()[:8]


def make_instructions(values: IdlValues, program: str) -> tuple[list[Any], list[Any]]:
    """Calls of every instruction, and what our own encoder makes of them."""
    cases, expected = [], []
    for index, entry in enumerate(values.idl["instructions"]):
        name = to_snake(entry["name"])
        args = values.make_fields(entry["args"])
        while len(values.encode_fields(entry["args"], args)) > MAX_ARGUMENT_BYTES:
            args = values.make_fields(entry["args"])
        keys = {to_snake(use["name"]): Pubkey([i + 1] * 32) for i, use in enumerate(entry["accounts"])}
        pairs = zip(entry["args"], args, strict=True)
        given = {to_snake(arg["name"]): values.to_python(arg["type"], value) for arg, value in pairs}
        made = get_program(program).encode(name, keys, given)
        cases.append({"index": index, "accounts": [str(key) for key in keys.values()], "args": args})
        expected.append(
            {
                "program": str(made.program_id),
                "data": bytes(made.data).hex(),
                "accounts": [[str(meta.pubkey), meta.is_signer, meta.is_writable] for meta in made.accounts],
            }
        )
    return cases, expected


def make_accounts(values: IdlValues) -> tuple[list[Any], list[Any]]:
    """An account of every kind, and its values."""
    cases, expected = [], []
    for index, entry in enumerate(values.idl["accounts"]):
        fields = entry["type"]["fields"]
        expected.append(values.make_fields(fields))
        data = discriminate("account", entry["name"]) + values.encode_fields(fields, expected[-1])
        cases.append({"index": index, "data": base64.b64encode(data).decode()})
    return cases, expected


def make_events(values: IdlValues, program: str) -> tuple[list[Any], list[Any]]:
    """A log with every event twice, and with one that another program wrote; the values of ours."""
    address, lines, expected = get_program_id(program), [], []
    for entry in (*values.idl["events"], *values.idl["events"]):
        fields = values.make_fields(entry["fields"])
        data = discriminate("event", entry["name"]) + values.encode_fields(entry["fields"], fields)
        lines.append(f"Program data: {base64.b64encode(data).decode()}")
        # the package's names for events and accounts begin with a small letter
        expected.append([entry["name"][0].lower() + entry["name"][1:], fields])
    other = Pubkey([9] * 32)
    inner = [f"Program {other} invoke [2]", *lines, f"Program {other} success"]
    logs = [f"Program {address} invoke [1]", *lines, *inner, f"Program {address} success"]
    return [{"logs": logs}], [expected]


def run_script(modules: Path, cases: Path) -> dict[str, Any]:
    ended = subprocess.run(
        ["node", str(SCRIPT), str(cases)],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
        env={**os.environ, "PSYCHE_ANCHOR_JS": str(modules)},
    )
    assert ended.returncode == 0, ended.stderr
    results: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return results


def test_anchor_js_reads_and_writes_what_we_do(tmp_path: Path) -> None:
    modules = find_modules()
    cases: dict[str, Any] = {}
    expected: dict[str, Any] = {}
    for program in PROGRAM_NAMES:
        idl = json.loads((IDL_FOLDER / f"{program}.anchor30.json").read_text())
        cases[program], expected[program] = {"idl": idl}, {"errors": len(idl["errors"])}
        values = IdlValues(program)
        parts = {
            "instructions": make_instructions(values, program),
            "accounts": make_accounts(values),
            "events": make_events(values, program),
        }
        for part, (given, wanted) in parts.items():
            cases[program][part], expected[program][part] = given, wanted
    run, coordinator = make_training_run()
    cases["coordinator"]["accounts"].append(run)
    expected["coordinator"]["accounts"].append(coordinator)
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    results = run_script(modules, tmp_path / "cases.json")
    for program in PROGRAM_NAMES:
        for part in ("instructions", "accounts", "events", "errors"):
            assert results[program][part] == expected[program][part], (program, part)


def make_training_run() -> tuple[dict[str, Any], list[Any]]:
    """The account of a run that the program itself has written, and its values as anchorpy decodes them."""
    harness = RunHarness(ProgramChain())
    harness.open(3, rate=1000)
    harness.start_training()
    data = harness.chain.get_data(harness.address)
    assert data is not None
    values = IdlValues("coordinator")
    names = [entry["name"] for entry in values.idl["accounts"]]
    index = names.index("CoordinatorAccount")
    decoded = get_program("coordinator").decode_account("CoordinatorAccount", data)
    fields = values.idl["accounts"][index]["type"]["fields"]
    return {"index": index, "data": base64.b64encode(data).decode()}, values.fields_from_python(
        fields, decoded
    )
