"""Mints of Token-2022 with extensions, made by the real program: the instructions that spl-token's Python
package lacks. Numbers and layouts are those of ``TokenInstruction`` and its extensions.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from psyche_py.chain.pda import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM

KEY = Pubkey(bytes([9] * 32))
"""Stands for some authority, fee taker, hook program, ..."""
_SOME = bytes([1]) + bytes(KEY)
_NAME_METADATA = bytes([210, 225, 30, 162, 88, 184, 77, 141])
_MULTISIG_BYTES = 355
_FIRST_EXTENSION = 166


@dataclass(frozen=True)
class MintExtension:
    """``size`` bytes in the mint, and the data of the instruction that fills them before the mint is made."""

    name: str
    size: int
    data: bytes


EXTENSIONS = {
    extension.name: extension
    for extension in (
        MintExtension("TransferFee", 108, bytes([26, 0]) + _SOME + _SOME + struct.pack("<HQ", 100, 10**6)),
        MintExtension("CloseAuthority", 32, bytes([25]) + _SOME),
        MintExtension("ConfidentialTransfer", 65, bytes([27, 0]) + bytes(KEY) + bytes([1]) + bytes(32)),
        MintExtension("DefaultAccountState", 1, bytes([28, 0, 2])),
        MintExtension("NonTransferable", 0, bytes([32])),
        MintExtension("InterestBearing", 52, bytes([33, 0]) + bytes(KEY) + struct.pack("<h", 500)),
        MintExtension("PermanentDelegate", 32, bytes([35]) + bytes(KEY)),
        MintExtension("TransferHook", 64, bytes([36, 0]) + bytes(KEY) + bytes(KEY)),
        MintExtension("MetadataPointer", 64, bytes([39, 0]) + bytes(KEY) + bytes(KEY)),
        MintExtension("GroupPointer", 64, bytes([40, 0]) + bytes(KEY) + bytes(KEY)),
        MintExtension("GroupMemberPointer", 64, bytes([41, 0]) + bytes(KEY) + bytes(KEY)),
    )
}


NEWER_EXTENSIONS = {"ScaledUiAmount": (25, 56), "Pausable": (26, 33)}
"""Number and size of those that the Token-2022 of solders 0.26 cannot make yet."""


def compute_mint_bytes(extensions: Sequence[str]) -> int:
    """Length of a mint account with these extensions; the program wants it exact."""
    if not extensions:
        return 82
    total = _FIRST_EXTENSION + sum(4 + EXTENSIONS[name].size for name in extensions)
    return total + 2 if total == _MULTISIG_BYTES else total


def encode_extensions(mint: Pubkey, extensions: Sequence[str]) -> list[Instruction]:
    """What goes between the mint's create_account and its initialize_mint."""
    return [
        Instruction(TOKEN_2022_PROGRAM, EXTENSIONS[name].data, [AccountMeta(mint, False, True)])
        for name in extensions
    ]


def write_extended_mint(plain: bytes, number: int, size: int) -> bytes:
    """The bytes of a plain mint with one more extension, settings zero, as Token-2022 lays it out."""
    return plain[:82].ljust(_FIRST_EXTENSION - 1, b"\0") + struct.pack("<BHH", 1, number, size) + bytes(size)


def encode_metadata(mint: Pubkey, authority: Pubkey, name: str) -> Instruction:
    """TokenMetadata in the mint itself; it must hold the rent and have a pointer."""
    texts = b"".join(struct.pack("<I", len(text)) + text.encode() for text in (name, "SYM", "https://x.y"))
    metas = [
        AccountMeta(mint, False, True),
        AccountMeta(authority, False, False),
        AccountMeta(mint, False, False),
        AccountMeta(authority, True, False),
    ]
    return Instruction(TOKEN_2022_PROGRAM, _NAME_METADATA + texts, metas)


MEMO_TRANSFER, CPI_GUARD = (8, 30), (11, 34)
"""Extension and instruction number of what a token account's owner can switch on."""


def encode_switch_on(account: Pubkey, owner: Pubkey, switch: tuple[int, int]) -> list[Instruction]:
    """Room for the extension in the owner's token account, then on."""
    number, instruction = switch
    grow = [
        AccountMeta(account, False, True),
        AccountMeta(owner, True, True),
        AccountMeta(SYSTEM_PROGRAM, False, False),
        AccountMeta(owner, True, False),
    ]
    own = [AccountMeta(account, False, True), AccountMeta(owner, True, False)]
    return [
        Instruction(TOKEN_2022_PROGRAM, bytes([29]) + struct.pack("<H", number), grow),
        Instruction(TOKEN_2022_PROGRAM, bytes([instruction, 0]), own),
    ]
