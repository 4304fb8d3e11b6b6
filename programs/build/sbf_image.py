"""The ELF files that the loader takes, v0 and v3: addresses, headers, tables.

From reading the loader (anza-xyz/sbpf, elf.rs). v0: file offsets are addresses; section names of at most 16
bytes; headers ascending and overlapping nothing. v3: exactly one or two PT_LOADs, constants at 0 and code at
1 << 32, right behind the headers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from sbf_object import EM_BPF, Section

HEADER_SIZE, PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE = 64, 56, 64
NUM_PROGRAM_HEADERS_V0 = 3
PT_LOAD, PT_DYNAMIC = 1, 2
EXECUTE, WRITE, READ = 1, 2, 4
PROGBITS, SYMTAB, STRTAB, DYNAMIC, REL, DYNSYM = 1, 2, 3, 6, 9, 11
ALLOC, EXECINSTR, SECTION_WRITE = 2, 4, 1
DYNAMIC_RELATIVE, DYNAMIC_CALL = 8, 10
SYMBOL_SIZE, RELOCATION_SIZE, DYNAMIC_ENTRY_SIZE = 24, 16, 16
GLOBAL_UNTYPED, GLOBAL_FUNCTION = 0x10, 0x12
MAX_SYMBOL_NAME = 60
DT_REL, DT_RELSZ, DT_RELENT, DT_SYMTAB, DT_SYMENT, DT_STRTAB, DT_STRSZ = 17, 18, 19, 6, 11, 5, 10
DT_FLAGS, DF_TEXTREL = 0x1E, 4


def align(value: int) -> int:
    """Up to a multiple of 8."""
    return (value + 7) & -8


def place(sections: list[Section], start: int, base: int) -> int:
    """Places sections one behind the other from `start`; returns the end. Addresses are `base` higher."""
    at = start
    for section in sections:
        at = (at + section.align - 1) & -section.align
        section.address = base + at
        at += section.size
    return align(at)


@dataclass
class Layout:
    """Sections in their order, and the file offsets between them."""

    code: list[Section]
    constants: list[Section]
    addresses: list[Section]
    """Constants that hold addresses."""
    code_start: int = 0
    code_end: int = 0
    constants_end: int = 0
    addresses_end: int = 0
    code_base: int = 0
    """Address of file offset `code_start`, less `code_start`."""

    def place_v0(self) -> None:
        """Code, constants, addresses; the address is the file offset."""
        self.code_start = HEADER_SIZE + PROGRAM_HEADER_SIZE * NUM_PROGRAM_HEADERS_V0
        self.code_end = place(self.code, self.code_start, 0)
        self.constants_end = place(self.constants, self.code_end, 0)
        self.addresses_end = place(self.addresses, self.constants_end, 0)

    def place_v3(self, code_address: int) -> None:
        """Constants from 0, code apart. 8 bytes at 0 stay unused, since no reference may be null."""
        num_headers = 1
        if self.constants or self.addresses:
            num_headers = 2
            self.constants_end = place(self.constants, 8, 0)
            self.addresses_end = place(self.addresses, self.constants_end, 0)
        self.code_start = HEADER_SIZE + PROGRAM_HEADER_SIZE * num_headers + self.addresses_end
        self.code_base = code_address - self.code_start
        self.code_end = self.code_start + place(self.code, 0, code_address)

    def get_code(self) -> bytearray:
        """The code, one piece."""
        return join(self.code, self.code_start + self.code_base, self.code_end + self.code_base)


def join(sections: list[Section], start: int, end: int) -> bytearray:
    """Sections' bytes between two addresses."""
    out = bytearray(end - start)
    for section in sections:
        at = section.address - start
        out[at : at + section.size] = section.data
    return out


@dataclass
class Image:
    """A file in the making: bytes, and headers that go to its front and its end."""

    version: int
    entry: int
    data: bytearray
    program_headers: list[bytes] = field(default_factory=list)
    sections: list[bytes] = field(default_factory=lambda: [bytes(SECTION_HEADER_SIZE)])
    names: bytearray = field(default_factory=lambda: bytearray(b"\0"))

    def add_segment(self, kind: int, flags: int, offset: int, address: int, size: int) -> None:
        """A program header."""
        self.program_headers.append(
            struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, size, 8)
        )

    def add_section(
        self,
        name: str,
        kind: int,
        flags: int,
        address: int,
        offset: int,
        size: int,
        *,
        link: int = 0,
        info: int = 0,
        alignment: int = 8,
        entry_size: int = 0,
    ) -> None:
        """A section header; its name is added to the names."""
        fields = (kind, flags, address, offset, size, link, info, alignment, entry_size)
        self.sections.append(struct.pack("<IIQQQQIIQQ", len(self.names), *fields))
        self.names.extend(name.encode() + b"\0")

    def add_function_names(self, functions: list[tuple[int, str, int]], code_section: int) -> None:
        """A symbol table, which the loader ignores and disassemblers like."""
        table, strings = make_symbols(
            [
                (name[:MAX_SYMBOL_NAME], GLOBAL_FUNCTION, code_section, at, size)
                for at, name, size in functions
            ]
        )
        self.data += bytes(-len(self.data) % 8)
        offset, link = len(self.data), len(self.sections) + 1
        self.add_section(
            ".symtab", SYMTAB, 0, 0, offset, len(table), link=link, info=1, entry_size=SYMBOL_SIZE
        )
        self.add_section(".strtab", STRTAB, 0, 0, offset + len(table), len(strings), alignment=1)
        self.data += table + strings

    def finish(self) -> bytes:
        """Adds names, section headers and the file header."""
        offset, own_name = len(self.data), b".shstrtab\0"
        size = len(self.names) + len(own_name)
        self.add_section(".shstrtab", STRTAB, 0, 0, offset, size, alignment=1)
        self.data += self.names
        self.data += bytes(-len(self.data) % 8)
        start = len(self.data)
        self.data += b"".join(self.sections)
        shared_object, elf_version = 3, 1
        header = b"\x7fELF\x02\x01\x01" + bytes(9)
        header += struct.pack(
            "<HHIQQQIHHHHHH",
            shared_object,
            EM_BPF,
            elf_version,
            self.entry,
            HEADER_SIZE,
            start,
            self.version,
            HEADER_SIZE,
            PROGRAM_HEADER_SIZE,
            len(self.program_headers),
            SECTION_HEADER_SIZE,
            len(self.sections),
            len(self.sections) - 1,
        )
        header += b"".join(self.program_headers)
        self.data[: len(header)] = header
        return bytes(self.data)


def make_symbols(symbols: list[tuple[str, int, int, int, int]]) -> tuple[bytes, bytes]:
    """(table, strings) of (name, info, section, value, size)."""
    table, strings = bytearray(SYMBOL_SIZE), bytearray(b"\0")
    for name, info, section, value, size in symbols:
        table += struct.pack("<IBBHQQ", len(strings), info, 0, section, value, size)
        strings += name.encode() + b"\0"
    return bytes(table), bytes(strings)


def write_v0(
    layout: Layout,
    code: bytearray,
    entry: int,
    dynamic: list[tuple[int, int, str | None]],
    syscalls: dict[str, int],
    functions: list[tuple[int, str, int]],
) -> bytes:
    """The v0 file. `dynamic` are the relocations that the loader applies."""
    data = bytearray(layout.code_start) + code
    data += join(layout.constants, layout.code_end, layout.constants_end)
    data += join(layout.addresses, layout.constants_end, layout.addresses_end)
    image = Image(0, entry, data)
    for name, flags, start, end in (
        (".text", ALLOC | EXECINSTR, layout.code_start, layout.code_end),
        (".rodata", ALLOC, layout.code_end, layout.constants_end),
        (".data.rel.ro", ALLOC | SECTION_WRITE, layout.constants_end, layout.addresses_end),
    ):
        if end > start:
            image.add_section(name, PROGBITS, flags, start, start, end - start)
    image.add_segment(PT_LOAD, READ | EXECUTE, 0, 0, layout.addresses_end)
    if dynamic:
        add_dynamic(image, dynamic, syscalls)
    if functions:
        image.add_function_names(functions, 1)
    return image.finish()


def add_dynamic(image: Image, dynamic: list[tuple[int, int, str | None]], syscalls: dict[str, int]) -> None:
    """.dynamic, .dynsym, .dynstr and .rel.dyn."""
    table, strings = make_symbols([(name, GLOBAL_UNTYPED, 0, 0, 0) for name in syscalls])
    relocations = b"".join(
        struct.pack("<QQ", where, (syscalls[name] << 32 if name else 0) | kind)
        for where, kind, name in sorted(dynamic, key=lambda item: item[0])
    )
    num_entries = 9
    dynamic_at = len(image.data)
    table_at = dynamic_at + DYNAMIC_ENTRY_SIZE * num_entries
    strings_at = table_at + len(table)
    relocations_at = align(strings_at + len(strings))
    entries = [
        (DT_FLAGS, DF_TEXTREL),
        (DT_REL, relocations_at),
        (DT_RELSZ, len(relocations)),
        (DT_RELENT, RELOCATION_SIZE),
        (DT_SYMTAB, table_at),
        (DT_SYMENT, SYMBOL_SIZE),
        (DT_STRTAB, strings_at),
        (DT_STRSZ, len(strings)),
        (0, 0),
    ]
    image.data += b"".join(struct.pack("<QQ", *entry) for entry in entries) + table + strings
    image.data += bytes(relocations_at - len(image.data)) + relocations
    first, size = len(image.sections), table_at - dynamic_at
    flags = ALLOC | SECTION_WRITE
    image.add_section(
        ".dynamic",
        DYNAMIC,
        flags,
        dynamic_at,
        dynamic_at,
        size,
        link=first + 2,
        entry_size=DYNAMIC_ENTRY_SIZE,
    )
    image.add_section(
        ".dynsym",
        DYNSYM,
        ALLOC,
        table_at,
        table_at,
        len(table),
        link=first + 2,
        info=1,
        entry_size=SYMBOL_SIZE,
    )
    image.add_section(".dynstr", STRTAB, ALLOC, strings_at, strings_at, len(strings), alignment=1)
    image.add_section(
        ".rel.dyn",
        REL,
        ALLOC,
        relocations_at,
        relocations_at,
        len(relocations),
        link=first + 1,
        entry_size=RELOCATION_SIZE,
    )
    image.add_segment(PT_LOAD, READ, dynamic_at, dynamic_at, len(image.data) - dynamic_at)
    image.add_segment(PT_DYNAMIC, READ | WRITE, dynamic_at, dynamic_at, size)


def write_v3(layout: Layout, code: bytearray, entry: int, functions: list[tuple[int, str, int]]) -> bytes:
    """The v3 file."""
    constants = join([*layout.constants, *layout.addresses], 0, layout.addresses_end)
    constants_at = layout.code_start - len(constants)
    image = Image(3, entry, bytearray(constants_at) + constants + code)
    if constants:
        image.add_segment(PT_LOAD, READ, constants_at, 0, len(constants))
        image.add_section(".rodata", PROGBITS, ALLOC, 0, constants_at, len(constants))
    address = layout.code_start + layout.code_base
    image.add_segment(PT_LOAD, EXECUTE, layout.code_start, address, len(code))
    image.add_section(".text", PROGBITS, ALLOC | EXECINSTR, address, layout.code_start, len(code))
    if functions:
        image.add_function_names(functions, len(image.sections) - 1)
    return image.finish()
