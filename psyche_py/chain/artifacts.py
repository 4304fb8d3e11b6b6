"""The programs and their IDLs as shipped with the package; ``make programs`` writes both."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import Any

from solders.pubkey import Pubkey

from psyche_py.errors import ChainError

PROGRAM_NAMES = ("coordinator", "authorizer", "treasurer", "mining_pool", "distributor")
_FOLDERS = {0: "programs", 3: "programs/v3"}
SBPF_VERSIONS = tuple(_FOLDERS)
"""Formats that the programs are shipped in: the same code in two envelopes."""


def _read(folder: str, name: str) -> bytes:
    path = resources.files("psyche_py.chain").joinpath(folder, name)
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ChainError(
            f"{folder}/{name} is missing from this installation of psyche-py.",
            "In a checkout run `make programs`; otherwise install the package again.",
        ) from None


@cache
def read_idl_text(name: str) -> str:
    """The IDL of program ``name`` (legacy Anchor JSON). Raises ChainError when it is not installed."""
    return _read("idl", f"{name}.json").decode()


@cache
def read_idl(name: str) -> dict[str, Any]:
    """The same, parsed. Callers must not write into it."""
    idl: dict[str, Any] = json.loads(read_idl_text(name))
    return idl


def read_program(name: str, sbpf_version: int = 0) -> bytes:
    """Program ``name``, an SBF ELF, in one of SBPF_VERSIONS. Raises ChainError when it is missing."""
    return _read(_FOLDERS[sbpf_version], f"{name}.so")


@cache
def get_program_id(name: str) -> Pubkey:
    """Where program ``name`` lives, on every cluster."""
    return Pubkey.from_string(read_idl(name)["metadata"]["address"])


def read_all_programs(sbpf_version: int = 0) -> dict[Pubkey, bytes]:
    """Our programs by id."""
    return {get_program_id(name): read_program(name, sbpf_version) for name in PROGRAM_NAMES}
