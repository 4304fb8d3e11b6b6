"""What the token programs may do for ours: reading mints and token accounts, moving and creating them.

Mints with extensions are none here: no scene has one, tests/unit has them all.
"""

from __future__ import annotations

from typing import NamedTuple

from attack_model import Model, demand
from solders.pubkey import Pubkey

from psyche_py.chain.artifacts import get_program_id
from psyche_py.chain.pda import (
    ASSOCIATED_TOKEN_PROGRAM,
    SYSTEM_PROGRAM,
    TOKEN_2022_PROGRAM,
    TOKEN_PROGRAM,
    find_token_account,
)

MINT_SIZE, TOKEN_SIZE = 82, 165
TOKEN_PROGRAMS = (TOKEN_PROGRAM, TOKEN_2022_PROGRAM)


class Held(NamedTuple):
    """A token account: its token program, mint, owner, and base units."""

    program: Pubkey
    mint: Pubkey
    owner: Pubkey
    amount: int
    has_delegate: bool


def read_u64(data: bytes, at: int) -> int:
    """A little-endian number."""
    return int.from_bytes(data[at : at + 8], "little")


def add_u64(data: bytes, changes: dict[int, int]) -> bytes:
    """u64 fields at offsets, increased; Refusal when one leaves its range."""
    out = bytearray(data)
    for at, amount in changes.items():
        total = read_u64(data, at) + amount
        demand(0 <= total < 2**64, "a number leaves its range")
        out[at : at + 8] = total.to_bytes(8, "little")
    return bytes(out)


def load(model: Model, address: Pubkey, program: str, kind: bytes, size: int) -> bytes:
    """Bytes of an account of one of our programs; Refusal when it is of another, another kind or length."""
    state = model.get(address)
    demand(state.owner == get_program_id(program), "an account of another program")
    demand(state.data[:8] == kind and len(state.data) == size, "an account of another kind")
    return state.data


def check_mint(model: Model, mint: Pubkey) -> Pubkey:
    """The token program of a mint; Refusal when it is none."""
    state = model.get(mint)
    is_mint = state.owner in TOKEN_PROGRAMS and len(state.data) == MINT_SIZE and state.data[45] == 1
    demand(is_mint, "no mint")
    return state.owner


def read_held(model: Model, address: Pubkey) -> Held:
    """A token account that is neither frozen nor empty of content."""
    state = model.get(address)
    data = state.data
    demand(state.owner in TOKEN_PROGRAMS and len(data) == TOKEN_SIZE and data[108] == 1, "no token account")
    keys = Pubkey(data[:32]), Pubkey(data[32:64])
    return Held(state.owner, *keys, read_u64(data, 64), any(data[72:76]))


def check_holds(model: Model, address: Pubkey, owner: Pubkey, mint: Pubkey) -> Held:
    """A token account of ``owner``'s from which nobody else may spend."""
    held = read_held(model, address)
    demand((held.owner, held.mint) == (owner, mint) and not held.has_delegate, "another's token account")
    return held


def check_vault(model: Model, address: Pubkey, owner: Pubkey, mint: Pubkey) -> Held:
    """The same, at the one address where the owner's tokens of the mint are kept."""
    held = check_holds(model, address, owner, mint)
    demand(address == find_token_account(owner, mint, held.program), "not the vault's address")
    return held


def transfer(
    model: Model, a: dict[str, Pubkey], source: str, target: str, amount: int, mint: str = "collateral_mint"
) -> None:
    """``amount`` base units between two places of an instruction."""
    program = check_mint(model, a[mint])
    demand(a["token_program"] == program, "another program for the token program")
    for slot in (source, target):
        held = read_held(model, a[slot])
        demand((held.mint, held.program) == (a[mint], program), "a token account of another mint")
    demand(a[source] != a[target], "one account for both")
    for slot, change in ((source, -amount), (target, amount)):
        model.put(a[slot], data=add_u64(model.get(a[slot]).data, {64: change}))


def create_vault(model: Model, a: dict[str, Pubkey], vault: str, owner: Pubkey, mint: str) -> None:
    """The associated token account of ``owner``, unless somebody made it before."""
    token = check_mint(model, a[mint])
    programs = {
        "associated_token_program": ASSOCIATED_TOKEN_PROGRAM,
        "token_program": token,
        "system_program": SYSTEM_PROGRAM,
    }
    demand(all(a[name] == program for name, program in programs.items()), "another program")
    demand(a[vault] == find_token_account(owner, a[mint], token), "not the vault's address")
    if model.get(a[vault]).owner != token:
        data = bytes(a[mint]) + bytes(owner) + bytes(44) + b"\1" + bytes(56)
        model.create(a["payer"], a[vault], token, data)
    check_holds(model, a[vault], owner, a[mint])
