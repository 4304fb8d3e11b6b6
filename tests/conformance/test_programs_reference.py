"""docs/instructions.md follows from the sources, and the errors in it from following calls."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from documented_errors import check_documented, find_documented, read_outcomes
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, read_idl

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "programs" / "build"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """programs/build/rust_calls.py as a module."""
    monkeypatch.syspath_prepend(str(BUILD))
    return importlib.import_module("rust_calls")


def test_the_reference_is_what_the_sources_say() -> None:
    done = subprocess.run(
        [sys.executable, str(BUILD / "reference.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_instruction_and_error_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "instructions.md").read_text()
    outcomes = read_outcomes()
    assert outcomes.keys() == set(PROGRAM_NAMES)
    for program in PROGRAM_NAMES:
        assert outcomes[program].keys() == set(get_program(program).instruction_names)
        for name in outcomes[program]:
            assert f"#### {name}\n" in text
        for account in read_idl(program)["accounts"]:
            assert f"#### {account['name']}\n" in text
        for error in read_idl(program)["errors"]:
            assert f"| {error['code']} | {error['name']} | " in text


def test_every_error_that_we_number_can_be_met() -> None:
    """The coordinator's numbers are Psyche's, and some of those are of things that cannot happen here."""
    for program in set(PROGRAM_NAMES) - {"coordinator"}:
        given = {error.name for outcome in read_outcomes()[program].values() for error in outcome.errors}
        own = {entry.name for code, entry in get_program(program).errors.items() if code < 6100}
        assert own <= given


def test_a_refusal_that_is_not_documented_fails_its_test() -> None:
    accounts = dict.fromkeys(("user", "instance", "coordinator_account"), Pubkey.default())
    tick = get_program("coordinator").encode("tick", accounts, {})
    check_documented(tick, "coordinator", "Halted")
    for program, error in (("coordinator", "ClientsFull"), ("treasurer", "Halted")):
        with pytest.raises(AssertionError, match="not in docs"):
            check_documented(tick, program, error)
    unknown = Instruction(tick.program_id, bytes(9), [])
    check_documented(unknown, "coordinator", "InvalidInstructionData")
    with pytest.raises(AssertionError, match="not in docs"):
        check_documented(unknown, "coordinator", "Halted")


def test_calls_of_our_other_programs_are_known() -> None:
    program = get_program("treasurer")
    data = bytes.fromhex("00")
    outcome = read_outcomes()["treasurer"]["run_update"]
    assert ("coordinator", "set_paused") in outcome.calls
    assert find_documented(str(program.program_id), data) == {"treasurer": {"InvalidInstructionData"}}


def test_another_programs_error_must_not_get_out(calls: ModuleType) -> None:
    """Its number would be read as one of ours; the treasurer reads the coordinator's account by its code."""
    finder = importlib.import_module("instruction_errors").OutcomeFinder()
    crate = ROOT / "programs" / "coordinator" / "state"
    body = "{ Err(Error::ClientsFull.into()) } { Common::WrongOwner }"
    function = calls.Function(crate, crate / "src" / "account.rs", "", "load", True, False, body)
    with pytest.raises(SystemExit, match="treasurer claim lets an error of another program through"):
        finder.find_names("treasurer", "claim", function, False)
    assert finder.find_names("treasurer", "claim", function, True) == {("Common", "WrongOwner")}
    names = {("Common", "WrongOwner"), ("Error", "ClientsFull")}
    assert finder.find_names("coordinator", "claim", function, False) == names


FILES = {
    "common/Cargo.toml": '[package]\nname = "common"\n',
    "common/src/account.rs": """
        impl Account {
            pub fn check(&self) -> Res { Err(Common::WrongOwner.into()) }
            pub fn len(&self) -> usize { self.hidden() }
            fn hidden(&self) -> usize { Common::Hidden }
        }
        impl<const N: usize> Decode for &'static [u8; N] { fn decode() { Common::Decoded } }
        pub fn unrelated() { Common::Unrelated }
    """,
    "program/Cargo.toml": '[package]\nname = "p"\n[dependencies]\ncommon = { path = "../common" }\n',
    "program/src/lib.rs": "pub fn top() { Error::Top }",
    "program/src/instructions/mod.rs": """
        fn load(a: &Account) -> Res { a.check()?; Err(Error::Load.into()) }
        fn unused() { Error::Unused }
    """,
    "program/src/instructions/act.rs": """
        pub fn process(a: &Accounts) -> Res {
            // Error::Comment
            super::load(a)?;
            let text = "Error::Text and an open { brace"; let c = '{';
            rules::decide(a).map_err(|_| Error::Mapped)?;
            let Some(x) = rules::guess(a).ok() else { return Err(Error::Guess.into()) };
            inner::<3>(a)?;
            Kind::make(a)
        }
        fn inner<const N: usize>(a: &Accounts) -> [u8; 3] { Err(Error::Inner.into()) }
        #[cfg(test)]
        mod tests { fn process() { Error::Test } }
    """,
    "program/src/rules.rs": """
        pub fn decide(a: &Accounts) -> Res { Err(Error::Decide.into()) }
        pub fn guess(a: &Accounts) -> Res { Err(Error::Swallowed.into()) }
        #[cfg(not(target_os = "solana"))]
        pub fn guess(a: &Accounts) -> Res { Err(Error::Host.into()) }
    """,
    "program/src/state.rs": """
        pub struct Kind;
        impl Kind {
            pub fn make(a: &Accounts) -> Res { Kind {}.check() }
            fn check(&self) -> Res { self.deeper(); crate::top() }
            fn deeper(&self) { if x { Err(Error::Deep.into()) } }
        }
        impl Other { fn deeper(&self) { Error::OtherType } fn make() { Error::OtherMake } }
    """,
}


def test_calls_are_followed(calls: ModuleType, tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    graph, crate = calls.CallGraph(tmp_path), tmp_path / "program"
    process = graph.get_function(crate, crate / "src/instructions/act.rs", "process")
    bodies = " ".join(function.body for function in graph.find_reachable(process))
    errors = set(re.findall(r"(?:Error|Common)::(\w+)", bodies))
    assert errors == {"WrongOwner", "Load", "Mapped", "Guess", "Inner", "Deep", "Top"}


def test_a_process_that_is_not_there_is_refused(calls: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "Cargo.toml").write_text('[package]\nname = "p"\n')
    with pytest.raises(SystemExit, match="no fn process"):
        calls.CallGraph(tmp_path).get_function(tmp_path, tmp_path / "src/lib.rs", "process")
