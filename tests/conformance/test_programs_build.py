"""The shipped programs and IDLs follow from the sources in programs/."""

from __future__ import annotations

import hashlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id, read_idl_text, read_program
from psyche_py.coordinator import layout
from psyche_py.coordinator.errors import ErrorCode

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "programs" / "build"
SHIPPED = ROOT / "psyche_py" / "chain" / "programs"


@pytest.fixture
def idl(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """programs/build/idl.py as a module."""
    monkeypatch.syspath_prepend(str(BUILD))
    return importlib.import_module("idl")


def test_sums_are_of_the_shipped_files() -> None:
    lines = (SHIPPED / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {f"{name}.so": hashlib.sha256(read_program(name)).hexdigest() for name in PROGRAM_NAMES}
    assert sums == found
    record = json.loads((SHIPPED / "BUILD.json").read_text())
    assert {f"{name}.so": entry["sha256"] for name, entry in record["programs"].items()} == found
    assert set(record["compiler"]) == {"rustc", "commit", "llvm"}


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_idls_are_generated_from_the_sources(idl: ModuleType, name: str) -> None:
    assert idl.render(name) == read_idl_text(name)


def test_the_whole_check_passes() -> None:
    """Rebuilds the programs where the compiler is the recorded one, else compares hashes of the sources."""
    done = subprocess.run(
        [sys.executable, str(BUILD / "make.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_error_codes_are_those_of_the_rule_book() -> None:
    errors = get_program("coordinator").errors
    assert {code.value: code.name for code in ErrorCode} == {
        code: entry.name for code, entry in errors.items() if code < 6100 or code in set(ErrorCode)
    }


def test_ids_differ() -> None:
    assert len({get_program_id(name) for name in PROGRAM_NAMES}) == len(PROGRAM_NAMES)


def test_argument_structs_are_the_rule_books_layouts() -> None:
    types = {
        entry["name"]: entry["type"]["fields"] for entry in json.loads(read_idl_text("coordinator"))["types"]
    }
    for name, dtype in (
        ("Metadata", layout.METADATA),
        ("CoordinatorConfig", layout.CONFIG),
        ("Model", layout.MODEL),
        ("CoordinatorProgress", layout.PROGRESS),
    ):
        expected = [field.strip("_").replace("_", "").lower() for field in dtype.names or ()]
        assert [field["name"].replace("_", "").lower() for field in types[name]] == expected


@pytest.mark.parametrize(
    "text",
    [
        "psyche_common::instructions! {\n    what is this;\n}",
        "psyche_common::instructions! {\n    tick [user: s] (x: HashMap);\n}",
        "nothing",
    ],
)
def test_the_generator_refuses_what_it_cannot_read(idl: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit, match=r"idl\.py"):
        idl.parse_instructions(text)


def test_events_are_read_with_their_fields(idl: ModuleType) -> None:
    text = (
        "psyche_common::events! {\n    /// What {happened}.\n    Transition {\n        /// Where.\n"
        "        from: u8,\n        wallet: Key,\n        unix_timestamp: i64,\n    }\n    Nothing {}\n}\n"
    )
    assert idl.parse_events("fn before() {}\n" + text + "fn behind() {}\n") == [
        {
            "name": "Transition",
            "fields": [
                {"name": "from", "type": "u8", "index": False},
                {"name": "wallet", "type": "publicKey", "index": False},
                {"name": "unixTimestamp", "type": "i64", "index": False},
            ],
        },
        {"name": "Nothing", "fields": []},
    ]


def test_events_that_cannot_be_read_are_refused(idl: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"events! table"):
        idl.parse_events("psyche_common::events! {\n    Transition;\n}\n")
    with pytest.raises(SystemExit, match=r"HashMap"):
        idl.parse_events("psyche_common::events! {\n    Transition { a: HashMap, }\n}\n")
