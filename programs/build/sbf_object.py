"""Relocatable BPF objects as LLVM writes them, read with the struct module alone."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

SECTION_SYMBOLS, SECTION_RELA, SECTION_NO_BITS, SECTION_REL = 2, 4, 8, 9
FLAG_WRITE, FLAG_ALLOC, FLAG_EXECUTE = 1, 2, 4
FUNCTION_SYMBOL = 2
EM_BPF = 247
LDDW = 0x18
"""The one instruction of two slots: load a 64-bit constant."""


class LinkError(Exception):
    """The objects cannot become a program that the VM would take."""


@dataclass(eq=False)
class Section:
    """A section of an object; the linker gives it an address."""

    name: str
    kind: int
    flags: int
    data: bytearray
    align: int
    size: int
    relocations: list[tuple[int, int, Symbol]] = field(default_factory=list)
    """(offset, type, symbol)"""
    address: int = 0
    is_live: bool = False

    @property
    def is_code(self) -> bool:
        return bool(self.flags & FLAG_EXECUTE)

    @property
    def is_writable(self) -> bool:
        return bool(self.flags & FLAG_WRITE)


@dataclass(eq=False)
class Symbol:
    """A symbol; without a section it is defined elsewhere."""

    name: str
    value: int
    size: int
    info: int
    section: Section | None

    @property
    def is_local(self) -> bool:
        return self.info >> 4 == 0

    @property
    def is_weak(self) -> bool:
        return self.info >> 4 == 2

    @property
    def is_function(self) -> bool:
        return self.info & 15 == FUNCTION_SYMBOL


def murmur3(data: bytes) -> int:
    """32-bit murmur3 with seed 0, the key under which the VM registers names and code addresses."""
    mask = 0xFFFFFFFF

    def mix(word: int) -> int:
        word = word * 0xCC9E2D51 & mask
        return (word << 15 | word >> 17) * 0x1B873593 & mask

    value, whole = 0, len(data) & ~3
    for i in range(0, whole, 4):
        value ^= mix(int.from_bytes(data[i : i + 4], "little"))
        value = (value << 13 | value >> 19) & mask
        value = value * 5 + 0xE6546B64 & mask
    if data[whole:]:
        value ^= mix(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = (value ^ value >> 16) * 0x85EBCA6B & mask
    value = (value ^ value >> 13) * 0xC2B2AE35 & mask
    return value ^ value >> 16


def iterate_code(code: bytes | bytearray) -> Iterator[int]:
    """Offsets of the instructions."""
    at = 0
    while at < len(code):
        yield at
        at += 16 if code[at] == LDDW else 8


def read_object(data: bytes, label: str) -> tuple[list[Section], list[Symbol]]:
    """Sections and symbols of an object, relocations attached to the sections they change."""
    if data[:6] != b"\x7fELF\x02\x01":
        raise LinkError(f"{label}: not a little-endian ELF64 file")
    if struct.unpack_from("<HH", data, 16) != (1, EM_BPF):
        raise LinkError(f"{label}: not a relocatable BPF object")
    start = struct.unpack_from("<Q", data, 40)[0]
    _, num, names = struct.unpack_from("<HHH", data, 58)
    # name, type, flags, address, offset, size, link, info, align, entry size
    headers = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * i) for i in range(num)]

    def read_name(table: int, offset: int) -> str:
        at = headers[table][4] + offset
        return data[at : data.index(0, at)].decode()

    sections = []
    for name, kind, flags, _, offset, size, _, _, align, _ in headers:
        body = b"" if kind == SECTION_NO_BITS else data[offset : offset + size]
        sections.append(Section(read_name(names, name), kind, flags, bytearray(body), max(align, 1), size))
    symbols = []
    for header in headers:
        if header[1] != SECTION_SYMBOLS:
            continue
        for at in range(header[4], header[4] + header[5], 24):
            name, info, _, index, value, size = struct.unpack_from("<IBBHQQ", data, at)
            section = sections[index] if 0 < index < 0xFF00 else None
            symbols.append(Symbol(read_name(header[6], name), value, size, info, section))
    for header in headers:
        target = sections[header[7]] if header[1] in (SECTION_REL, SECTION_RELA) else None
        if target is None:
            continue
        if header[1] == SECTION_RELA and target.flags & FLAG_ALLOC:
            raise LinkError(f"{label}: RELA relocations are not expected for BPF")
        if header[1] == SECTION_REL:
            for at in range(header[4], header[4] + header[5], 16):
                offset, info = struct.unpack_from("<QQ", data, at)
                target.relocations.append((offset, info & 0xFFFFFFFF, symbols[info >> 32]))
    return sections, symbols
