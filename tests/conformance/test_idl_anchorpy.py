"""From the legacy IDL anchorpy encodes every instruction and decodes every account and event."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest
from anchorpy import Coder, EventParser, Idl
from idl_values import IdlValues, to_snake
from programs_harness import ProgramChain, RunHarness
from solders.pubkey import Pubkey

from psyche_py.chain.anchor import get_program
from psyche_py.chain.artifacts import PROGRAM_NAMES, get_program_id, read_idl, read_idl_text
from psyche_py.coordinator.layout import ACCOUNT_SIZE, Record

INSTRUCTIONS = [
    (program, entry["name"]) for program in PROGRAM_NAMES for entry in read_idl(program)["instructions"]
]
ACCOUNTS = [(program, entry["name"]) for program in PROGRAM_NAMES for entry in read_idl(program)["accounts"]]
EVENTS = [(program, entry["name"]) for program in PROGRAM_NAMES for entry in read_idl(program)["events"]]


def find(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)


def discriminate(space: str, name: str) -> bytes:
    return hashlib.sha256(f"{space}:{name}".encode()).digest()[:8]


@pytest.mark.parametrize(("program", "name"), INSTRUCTIONS)
def test_instructions_are_encoded(program: str, name: str) -> None:
    for seed in range(5):
        values = IdlValues(program, seed)
        entry = find(values.idl["instructions"], name)
        args = values.make_fields(entry["args"])
        accounts = {to_snake(use["name"]): Pubkey([i] * 32) for i, use in enumerate(entry["accounts"])}
        pairs = zip(entry["args"], args, strict=True)
        given = {to_snake(arg["name"]): values.to_python(arg["type"], value) for arg, value in pairs}
        instruction = get_program(program).encode(to_snake(name), accounts, given)
        tag = discriminate("global", to_snake(name))
        assert bytes(instruction.data) == tag + values.encode_fields(entry["args"], args)
        assert [(meta.pubkey, meta.is_signer, meta.is_writable) for meta in instruction.accounts] == [
            (Pubkey([i] * 32), use["isSigner"], use["isMut"]) for i, use in enumerate(entry["accounts"])
        ]


@pytest.mark.parametrize(("program", "name"), ACCOUNTS)
def test_accounts_are_decoded(program: str, name: str) -> None:
    values = IdlValues(program)
    fields = find(values.idl["accounts"], name)["type"]["fields"]
    expected = values.make_fields(fields)
    data = discriminate("account", name) + values.encode_fields(fields, expected)
    assert values.fields_from_python(fields, get_program(program).decode_account(name, data)) == expected


@pytest.mark.parametrize(("program", "name"), EVENTS)
def test_events_are_decoded_from_logs(program: str, name: str) -> None:
    values, address = IdlValues(program), get_program_id(program)
    fields = find(values.idl["events"], name)["fields"]
    expected = values.make_fields(fields)
    data = discriminate("event", name) + values.encode_fields(fields, expected)
    logs = [
        f"Program {address} invoke [1]",
        f"Program data: {base64.b64encode(data).decode()}",
        f"Program {address} success",
    ]
    found: list[Any] = []
    EventParser(address, Coder(Idl.from_json(read_idl_text(program)))).parse_logs(logs, found.append)
    (event,) = found
    assert event.name == name
    assert values.fields_from_python(fields, vars(event.data)) == expected


def test_every_kind_of_thing_is_there() -> None:
    """The parametrised tests above run over lists from the IDLs, which must not be empty."""
    assert (
        {program for program, _ in INSTRUCTIONS} == set(PROGRAM_NAMES) == {program for program, _ in ACCOUNTS}
    )
    assert ("coordinator", "CoordinatorAccount") in ACCOUNTS


def test_a_training_run_is_decoded_as_the_rule_book_reads_it() -> None:
    run = RunHarness(ProgramChain())
    run.open(3, rate=1000)
    run.start_training()
    data = run.chain.get_data(run.address)
    assert data is not None
    assert len(data) == ACCOUNT_SIZE
    decoded = get_program("coordinator").decode_account("CoordinatorAccount", data)
    compare(run.account.record, {"discriminator": list(data[:8]), **decoded})


def compare(record: Record, decoded: dict[str, Any]) -> None:
    """Every field of a numpy record, down to the last."""
    names = record.dtype.names
    assert [name.strip("_") for name in names] == list(decoded)
    for name, value in zip(names, decoded.values(), strict=True):
        compare_value(record[name], value)


def compare_value(expected: Any, value: Any) -> None:
    if getattr(expected, "dtype", None) is not None and expected.dtype.names and expected.shape == ():
        compare(expected, {key: item for key, item in vars(value).items() if not key.startswith("_")})
    elif getattr(expected, "shape", ()):
        items = bytes(value) if isinstance(value, Pubkey) else value
        assert len(expected) == len(items)
        for one, other in zip(expected, items, strict=True):
            compare_value(one, other)
    else:
        assert expected == value
