"""Names, numbers and argument fields of the rule book are those of the program's IDL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rulebook_driver import make_run_config

from psyche_py.coordinator.errors import ErrorCode
from psyche_py.coordinator.model import Metadata, PackedView, Progress

IDL = Path(__file__).resolve().parents[2] / "psyche_py" / "chain" / "idl" / "coordinator.json"
pytestmark = pytest.mark.skipif(not IDL.exists(), reason="run `make programs` first")


def read_idl() -> dict[str, Any]:
    idl: dict[str, Any] = json.loads(IDL.read_text())
    return idl


def test_error_codes_are_the_programs() -> None:
    codes = {error["name"]: error["code"] for error in read_idl()["errors"]}
    own = {code.name: int(code) for code in ErrorCode}
    assert own.items() <= codes.items()
    assert {name for name, code in codes.items() if code < 6100} <= own.keys()


@pytest.mark.parametrize("name", ["CoordinatorConfig", "Model", "Metadata", "CoordinatorProgress"])
def test_instruction_arguments_have_the_idls_fields(name: str) -> None:
    run_config = make_run_config()
    values: dict[str, PackedView] = {
        "CoordinatorConfig": run_config.config,
        "Model": run_config.model,
        "Metadata": Metadata(),
        "CoordinatorProgress": Progress(),
    }
    (kind,) = (kind for kind in read_idl()["types"] if kind["name"] == name)
    names = [to_snake_case(field["name"]) for field in kind["type"]["fields"]]
    assert names == list(values[name].to_instruction_args())


def to_snake_case(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
