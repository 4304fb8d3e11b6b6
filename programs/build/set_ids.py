#!/usr/bin/env python3
"""Gives the programs addresses of your own, before `make programs` builds them.

    set_ids.py KEYPAIRS     reads KEYPAIRS/PROGRAM.json for each program, writes common/src/ids.rs

A keypair file is what `run-manager wallet new` or `solana-keygen` writes: a JSON array of 64 bytes, whose second
half is the address. The first half is the secret and is not looked at; keep these files, a first deployment is
signed with them. A program checks the others by their addresses, so all of them change together.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import idl

IDS = idl.ROOT / "common" / "src" / "ids.rs"
ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
KEYPAIR_BYTES = 64


def encode_base58(key: bytes) -> str:
    """Base58 as Solana writes addresses."""
    number, text = int.from_bytes(key, "big"), ""
    while number:
        number, digit = divmod(number, 58)
        text = ALPHABET[digit] + text
    return "1" * (len(key) - len(key.lstrip(b"\0"))) + text


def read_address(path: Path) -> str:
    """The address of a keypair file."""
    try:
        numbers = json.loads(path.read_text())
        keypair = bytes(numbers)
    except FileNotFoundError:
        raise SystemExit(f"There is no {path}: run-manager wallet new {path}") from None
    except (ValueError, TypeError):
        raise SystemExit(f"{path} is no keypair file: a JSON array of 64 bytes.") from None
    if not isinstance(numbers, list) or len(keypair) != KEYPAIR_BYTES:
        raise SystemExit(f"{path} is no keypair file: a JSON array of 64 bytes.")
    return encode_base58(keypair[32:])


def replace_ids(text: str, addresses: dict[str, str]) -> str:
    """ids.rs with these addresses, by program name."""
    for name, address in addresses.items():
        line = f'pub const {name.upper()}: Key = decode("{address}");'
        text, count = re.subn(rf'^pub const {name.upper()}: Key = decode\("\w+"\);$', line, text, flags=re.M)
        if count != 1:
            raise SystemExit(f"ids.rs has no line for {name}.")
    return text


def main(arguments: list[str]) -> None:
    """Command line."""
    if len(arguments) != 1:
        raise SystemExit(__doc__)
    addresses = {name: read_address(Path(arguments[0], f"{name}.json")) for name in idl.PROGRAMS}
    if len(set(addresses.values())) != len(addresses):
        raise SystemExit("Two programs cannot have one address.")
    IDS.write_text(replace_ids(IDS.read_text(), addresses))
    for name, address in addresses.items():
        print(f"{name:12} {address}")
    print("Now run `make programs`.")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(sys.argv[1:])
