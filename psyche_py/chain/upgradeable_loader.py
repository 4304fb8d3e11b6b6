"""Solana's upgradeable loader: its instructions, and the accounts that it keeps.

A program is three accounts: the program's own, which only names the second; the program data with slot,
upgrade authority and code; and, while a new build is on its way, a buffer. No I/O here; ``deploy`` does it.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey
from solders.system_program import (
    AllocateParams,
    AllocateWithSeedParams,
    AssignParams,
    TransferParams,
    allocate,
    allocate_with_seed,
    assign,
    transfer,
)
from solders.sysvar import CLOCK, RENT

from psyche_py.chain.errors import DeploymentRefused
from psyche_py.chain.pda import SYSTEM_PROGRAM
from psyche_py.chain.port import AccountInfo

LOADER = Pubkey.from_string("BPFLoaderUpgradeab1e11111111111111111111111")
BUFFER_HEADER_BYTES = 37
PROGRAM_ACCOUNT_BYTES = 36
PROGRAM_DATA_HEADER_BYTES = 45
MIN_EXTENSION_BYTES = 10_240
"""A program's account grows by at least this much at a time (SIMD-0431)."""

_BUFFER, _PROGRAM, _PROGRAM_DATA = 1, 2, 3
_INITIALIZE_BUFFER, _WRITE, _DEPLOY, _UPGRADE, _SET_AUTHORITY, _CLOSE, _EXTEND = range(7)


@dataclass(frozen=True, slots=True)
class Buffer:
    """A build on its way; ``data`` has the length of the whole build, with zeros where nothing is written."""

    authority: Pubkey | None
    data: bytes


@dataclass(frozen=True, slots=True)
class ProgramData:
    """A deployed program. ``authority`` None: nobody can upgrade it any more.

    ``data`` is the code followed by zeros up to what the account can hold.
    """

    slot: int
    authority: Pubkey | None
    data: bytes

    def holds(self, elf: bytes) -> bool:
        """Whether the deployed code is ``elf``."""
        return self.data.rstrip(b"\0") == elf.rstrip(b"\0")


def find_program_data(program_id: Pubkey) -> Pubkey:
    """Where the loader keeps the code of ``program_id``."""
    return Pubkey.find_program_address([bytes(program_id)], LOADER)[0]


def compute_buffer_seed(elf: bytes, authority: Pubkey) -> str:
    """Seed of the buffer for a build: the same build goes on in the same buffer, with no key to keep."""
    return hashlib.sha256(bytes(authority) + elf).hexdigest()[:32]


def find_buffer(payer: Pubkey, elf: bytes, authority: Pubkey) -> Pubkey:
    """Address of the buffer that ``payer`` opens for ``elf``."""
    return Pubkey.create_with_seed(payer, compute_buffer_seed(elf, authority), LOADER)


def read_buffer(info: AccountInfo) -> Buffer:
    """Raises DeploymentRefused when the account is no buffer."""
    if info.owner != LOADER or len(info.data) < BUFFER_HEADER_BYTES or _read_tag(info) != _BUFFER:
        raise DeploymentRefused(f"{info.pubkey} is no buffer of the upgradeable loader.")
    return Buffer(_read_authority(info.data, 4), info.data[BUFFER_HEADER_BYTES:])


def read_program_data(info: AccountInfo) -> ProgramData:
    """Raises DeploymentRefused when the account is no program data."""
    is_long_enough = len(info.data) >= PROGRAM_DATA_HEADER_BYTES
    if info.owner != LOADER or not is_long_enough or _read_tag(info) != _PROGRAM_DATA:
        raise DeploymentRefused(f"{info.pubkey} holds no program of the upgradeable loader.")
    slot = int.from_bytes(info.data[4:12], "little")
    return ProgramData(slot, _read_authority(info.data, 12), info.data[PROGRAM_DATA_HEADER_BYTES:])


def is_program(info: AccountInfo) -> bool:
    """Whether this is a program account of the upgradeable loader."""
    return info.owner == LOADER and len(info.data) >= PROGRAM_ACCOUNT_BYTES and _read_tag(info) == _PROGRAM


def _read_tag(info: AccountInfo) -> int:
    return int.from_bytes(info.data[:4], "little")


def _read_authority(data: bytes, offset: int) -> Pubkey | None:
    return Pubkey(data[offset + 1 : offset + 33]) if data[offset] else None


# ---- instructions -----------------------------------------------------------------------------------------


def open_buffer(payer: Pubkey, elf: bytes, authority: Pubkey, lamports: int) -> list[Instruction]:
    """A buffer for ``elf`` that ``authority`` writes; ``payer`` adds ``lamports``.

    Made of a transfer and an allocation: create_account would fail for good once a stranger has sent a
    lamport to the address.
    """
    buffer = find_buffer(payer, elf, authority)
    allocation = AllocateWithSeedParams(
        address=buffer,
        base=payer,
        seed=compute_buffer_seed(elf, authority),
        space=BUFFER_HEADER_BYTES + len(elf),
        owner=LOADER,
    )
    metas = [_writable(buffer), _readonly(authority)]
    return [
        transfer(TransferParams(from_pubkey=payer, to_pubkey=buffer, lamports=lamports)),
        allocate_with_seed(allocation),
        Instruction(LOADER, struct.pack("<I", _INITIALIZE_BUFFER), metas),
    ]


def write(buffer: Pubkey, authority: Pubkey, offset: int, chunk: bytes) -> Instruction:
    """``chunk`` at ``offset`` bytes into the build."""
    data = struct.pack("<IIQ", _WRITE, offset, len(chunk)) + chunk
    return Instruction(LOADER, data, [_writable(buffer), _signer(authority)])


def deploy(
    payer: Pubkey, program_id: Pubkey, buffer: Pubkey, authority: Pubkey, capacity: int, lamports: int
) -> list[Instruction]:
    """The first deployment; the program's own key signs too.

    ``capacity``: bytes of code the program data can hold, now and after upgrades. ``lamports`` go to the
    program's account, which must be exempt from rent.
    """
    metas = [
        _signer(payer, writable=True),
        _writable(find_program_data(program_id)),
        _writable(program_id),
        _writable(buffer),
        _readonly(RENT),
        _readonly(CLOCK),
        _readonly(SYSTEM_PROGRAM),
        _signer(authority),
    ]
    return [
        transfer(TransferParams(from_pubkey=payer, to_pubkey=program_id, lamports=lamports)),
        allocate(AllocateParams(pubkey=program_id, space=PROGRAM_ACCOUNT_BYTES)),
        assign(AssignParams(pubkey=program_id, owner=LOADER)),
        Instruction(LOADER, struct.pack("<IQ", _DEPLOY, capacity), metas),
    ]


def upgrade(program_id: Pubkey, buffer: Pubkey, authority: Pubkey, spill: Pubkey) -> Instruction:
    """Another build in place of the deployed one; the buffer's lamports go to ``spill``."""
    metas = [
        _writable(find_program_data(program_id)),
        _writable(program_id),
        _writable(buffer),
        _writable(spill),
        _readonly(RENT),
        _readonly(CLOCK),
        _signer(authority),
    ]
    return Instruction(LOADER, struct.pack("<I", _UPGRADE), metas)


def extend(program_id: Pubkey, payer: Pubkey, num_bytes: int) -> Instruction:
    """Room for a larger build. The program cannot be upgraded in the same slot."""
    metas = [
        _writable(find_program_data(program_id)),
        _writable(program_id),
        _readonly(SYSTEM_PROGRAM),
        _signer(payer, writable=True),
    ]
    return Instruction(LOADER, struct.pack("<II", _EXTEND, num_bytes), metas)


def set_upgrade_authority(program_id: Pubkey, authority: Pubkey, new: Pubkey | None) -> Instruction:
    """Hand the right to upgrade to ``new``; None gives it up for ever."""
    metas = [_writable(find_program_data(program_id)), _signer(authority)]
    if new is not None:
        metas.append(_readonly(new))
    return Instruction(LOADER, struct.pack("<I", _SET_AUTHORITY), metas)


def close_buffer(buffer: Pubkey, authority: Pubkey, recipient: Pubkey) -> Instruction:
    """Give a buffer up; its rent goes to ``recipient``."""
    metas = [_writable(buffer), _writable(recipient), _signer(authority)]
    return Instruction(LOADER, struct.pack("<I", _CLOSE), metas)


def _writable(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, False, True)


def _readonly(key: Pubkey) -> AccountMeta:
    return AccountMeta(key, False, False)


def _signer(key: Pubkey, *, writable: bool = False) -> AccountMeta:
    return AccountMeta(key, True, writable)
