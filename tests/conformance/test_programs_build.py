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
from psyche_py.chain.artifacts import (
    PROGRAM_NAMES,
    SBPF_VERSIONS,
    get_program_id,
    read_idl_text,
    read_program,
)
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
    found = {
        f"{'v3/' if version else ''}{name}.so": hashlib.sha256(read_program(name, version)).hexdigest()
        for version in SBPF_VERSIONS
        for name in PROGRAM_NAMES
    }
    assert sums == found
    record = json.loads((SHIPPED / "BUILD.json").read_text())
    assert {file: entry["sha256"] for file, entry in record["programs"].items()} == found
    assert set(record["compiler"]) == {"rustc", "commit", "llvm"}


@pytest.mark.parametrize("version", SBPF_VERSIONS)
@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_each_file_says_its_format(name: str, version: int) -> None:
    """A loader takes the format from e_flags, the four bytes at 48 of an ELF file."""
    program = read_program(name, version)
    assert program[:4] == b"\x7fELF"
    assert int.from_bytes(program[48:52], "little") == version


@pytest.mark.parametrize("name", PROGRAM_NAMES)
def test_idls_are_generated_from_the_sources(idl: ModuleType, name: str) -> None:
    files = idl.render_all()
    assert files[f"{name}.json"] == read_idl_text(name)
    assert files[f"{name}.anchor30.json"] == (SHIPPED.parent / "idl" / f"{name}.anchor30.json").read_text()


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


@pytest.fixture
def source(idl: ModuleType) -> ModuleType:
    """programs/build/rust_source.py as a module."""
    return importlib.import_module("rust_source")


@pytest.mark.parametrize(
    "text",
    [
        "psyche_common::instructions! {\n    what is this;\n}",
        "psyche_common::instructions! {\n    tick [user: s] (x: HashMap);\n}",
        "nothing",
    ],
)
def test_the_generator_refuses_what_it_cannot_read(source: ModuleType, text: str) -> None:
    with pytest.raises(SystemExit, match=r"idl\.py"):
        source.parse_instructions(text, source.Constants(""))


EVENTS = """fn before() {}
psyche_common::events! {
    /// What {happened}, or
    /// did not.
    Transition {
        /// Where; from {here}.
        from: u8,
        wallet: Key,
        unix_timestamp: i64,
    }
    Nothing {}
}
fn behind() {}
"""


def test_events_are_read_with_their_fields(idl: ModuleType, source: ModuleType) -> None:
    events = source.parse_events(EVENTS, source.Constants(""))
    assert [event.docs for event in events] == [["What {happened}, or", "did not."], []]
    assert events[0].fields[0].docs == ["Where; from {here}."]
    assert [idl.convert_event(event) for event in events] == [
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


def test_events_that_cannot_be_read_are_refused(source: ModuleType) -> None:
    constants = source.Constants("")
    with pytest.raises(SystemExit, match=r"events! table"):
        source.parse_events("psyche_common::events! {\n    Transition;\n}\n", constants)
    with pytest.raises(SystemExit, match=r"HashMap"):
        source.parse_events("psyche_common::events! {\n    Transition { a: HashMap, }\n}\n", constants)


STRUCTS = """pub const MAX: usize = 256;
pub const HALF: usize = MAX / 2 - 1;
pub type Bitmap = [u64; MAX / 64];
/// A part.
#[repr(C)]
pub struct Part {
    /// Bits.
    pub bits: Bitmap,
    pub bytes: [u8; HALF],
    pub last: u8,
}
#[repr(C)]
pub struct Whole {
    pub discriminator: [u8; 8],
    pub parts: [Part; 2],
}
#[repr(C)]
pub struct Hidden {
    pub small: u8,
    pub large: u64,
}
"""


def test_zero_copy_structs_are_laid_out(source: ModuleType) -> None:
    structs = source.Structs(STRUCTS, source.Constants(STRUCTS))
    (account,) = structs.get_accounts()
    assert (account.name, account.is_zero_copy_account, account.is_repr_c) == ("Whole", True, True)
    (part,) = structs.find_parts([field.kind for field in account.fields])
    assert (part.name, part.docs) == ("Part", ["A part."])
    assert [field.docs for field in part.fields] == [["Bits."], [], []]
    assert structs.compute_layout(source.Kind("defined", defined="Whole")) == (8 + 2 * (32 + 127 + 1), 8)


def test_hidden_padding_is_refused(source: ModuleType) -> None:
    """Borsh, which anchorpy and Anchor's JavaScript read every account as, has none."""
    structs = source.Structs(STRUCTS, source.Constants(STRUCTS))
    with pytest.raises(SystemExit, match=r"hidden padding before large"):
        structs.compute_layout(source.Kind("defined", defined="Hidden"))


def test_lengths_that_cannot_be_computed_are_refused(source: ModuleType) -> None:
    for length in ("UNKNOWN", "size_of()", "2 ** 9", "1 +"):
        with pytest.raises(SystemExit, match=r"cannot compute"):
            source.Constants("").parse_kind(f"[u8; {length}]")


def test_the_big_account_has_the_rule_books_size(idl: ModuleType, source: ModuleType) -> None:
    program = idl.read_program("coordinator")
    kind = source.Kind("defined", defined="CoordinatorAccount")
    assert program.structs.compute_layout(kind) == (layout.ACCOUNT_SIZE, 8)
