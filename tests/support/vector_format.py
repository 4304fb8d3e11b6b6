"""Histories as JSON, the format of vectors/FORMAT.md: written from the rule book, read back as events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

from program_driver import get_program_signer
from rulebook_driver import Driver, Event, rules

from psyche_py.coordinator.layout import CONFIG, METADATA, MODEL, PROGRESS

BYTE_FIELDS = {
    "p2p_key": 32,
    "address_hint": 64,
    "evidence_hash": 32,
    "broadcast_merkle": 32,
    "state_digest": 32,
    "metadata": METADATA.itemsize,
    "config": CONFIG.itemsize,
    "model": MODEL.itemsize,
    "progress": PROGRESS.itemsize,
}
"""Arguments that are byte strings of these lengths; zeros at their end are not written."""
WORD_FIELDS = {"participants": 4, "broadcast_bloom": 16}
"""Arguments that are this many u64, written as little-endian bytes in the same way."""
DIGEST_CHARACTERS = 16
GAP_BYTES = 16
"""Zeros between two runs of the account's bytes that are worth a run of their own."""


def _strip(data: bytes) -> str:
    return data.rstrip(b"\0").hex()


def pack_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as they are written."""
    packed = dict(arguments)
    for key in BYTE_FIELDS.keys() & packed.keys():
        packed[key] = _strip(bytes.fromhex(packed[key]))
    for key in WORD_FIELDS.keys() & packed.keys():
        packed[key] = _strip(b"".join(word.to_bytes(8, "little") for word in packed[key]))
    return packed


def unpack_arguments(packed: dict[str, Any]) -> dict[str, Any]:
    """Inverse of :func:`pack_arguments`."""
    arguments = dict(packed)
    for key in BYTE_FIELDS.keys() & packed.keys():
        arguments[key] = bytes.fromhex(packed[key]).ljust(BYTE_FIELDS[key], b"\0").hex()
    for key in WORD_FIELDS.keys() & packed.keys():
        data = bytes.fromhex(packed[key]).ljust(8 * WORD_FIELDS[key], b"\0")
        arguments[key] = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
    return arguments


def compute_digest(data: bytes) -> str:
    """What a step's account is compared by."""
    return hashlib.sha256(data).hexdigest()[:DIGEST_CHARACTERS]


def pack_runs(data: bytes) -> list[list[Any]]:
    """The bytes that are not zero, as [offset, hex]."""
    runs: list[list[Any]] = []
    start = 0
    while (start := _find_nonzero(data, start)) < len(data):
        end = data.find(bytes(GAP_BYTES), start)
        end = len(data) if end < 0 else end
        runs.append([start, data[start:end].rstrip(b"\0").hex()])
        start = end
    return runs


def _find_nonzero(data: bytes, start: int) -> int:
    return len(data) - len(data[start:].lstrip(b"\0"))


def unpack_runs(runs: list[list[Any]], size: int) -> bytes:
    """Inverse of :func:`pack_runs`."""
    data = bytearray(size)
    for offset, text in runs:
        run = bytes.fromhex(text)
        data[offset : offset + len(run)] = run
    return bytes(data)


def pack_history(name: str, events: Iterable[Event], **head: Any) -> str:
    """A history's file: one step a line, with what the rule book makes of it."""
    driver = Driver(rules.process_init("run", "test"), get_signer=get_program_signer)
    steps = []
    for event, arguments in events:
        try:
            error = driver.apply(event, **arguments)
        except Exception as crash:  # a difference that the benchmark writes may be that
            error = f"crash: {crash!r}"
        steps.append([event, pack_arguments(arguments), error, compute_digest(driver.data)])
    top = {"name": name, **head, "account": hashlib.sha256(driver.data).hexdigest()}
    top["bytes"] = pack_runs(driver.data)
    lines = ",\n".join(json.dumps(step, ensure_ascii=False, separators=(",", ":")) for step in steps)
    text = json.dumps(top, ensure_ascii=False, separators=(",", ":"))
    return text[:-1] + ',\n"steps":[\n' + lines + "]}\n"


def read_history(content: dict[str, Any]) -> list[Event]:
    """The events of a history's file."""
    return [(step[0], unpack_arguments(step[1])) for step in content["steps"]]
