"""The VM's own rules for code, applied when linking: a bad program fails to build, not to deploy."""

from __future__ import annotations

import struct

from sbf_object import LDDW, LinkError, iterate_code

CLASS_LOAD, CLASS_STORE_CONSTANT, CLASS_STORE = 1, 2, 3
CLASS_ALU32, CLASS_JUMP, CLASS_JUMP32, CLASS_ALU64 = 4, 5, 6, 7
CALL, CALL_REGISTER, EXIT = 0x85, 0x8D, 0x95
BYTE_SWAPS = (0xD4, 0xDC)
FRAME_POINTER = 10
ALU_OPERATIONS = frozenset(range(0x00, 0xD0, 0x10))
JUMP_OPERATIONS = frozenset(range(0x00, 0xE0, 0x10)) - {0x80, 0x90}
DIVISIONS = (0x30, 0x90)
SHIFTS = (0x60, 0x70, 0xC0)


def check_code(code: bytearray, version: int) -> dict[str, int]:
    """Raises LinkError at the first instruction that the VM would refuse; returns counts.

    Also rewrites `callx` in place: LLVM names the register in dst, SBPF v0 wants it in imm. 32-bit arithmetic
    is refused, since SBPF v0 sign-extends results where LLVM's BPF assumes zero extension.
    """
    num = len(code) // 8
    starts = {offset // 8 for offset in iterate_code(code)}
    num_indirect = 0
    for index in sorted(starts):
        opcode, registers, offset, constant = struct.unpack_from("<BBhi", code, 8 * index)
        target, source = registers & 15, registers >> 4
        problem = None
        if target > 10 or source > 10:
            problem = "register"
        elif opcode == LDDW:
            problem = "lddw" if target > 9 or source else None
        elif opcode == CALL_REGISTER:
            register = target if constant == 0 else constant
            problem = None if 0 <= register <= 9 else "callx"
            fields = (0, 0, register) if version == 0 else (register, 0, 0)
            struct.pack_into("<BBhi", code, 8 * index, opcode, *fields)
            num_indirect += 1
        elif opcode == CALL:
            # source 1 is a call within the program; imm -1 stands for a system call
            callee = index + 1 + constant
            if source == 1 and constant != -1 and callee not in starts:
                problem = "call out of code"
        elif opcode & 7 == CLASS_JUMP:
            problem = find_jump_problem(opcode, index + 1 + offset in starts)
        else:
            problem = find_problem(opcode, target, offset, constant)
        if problem is not None:
            raise LinkError(
                f"instruction {index} ({opcode:02x} {registers:02x} {offset & 0xFFFF:04x} "
                f"{constant & 0xFFFFFFFF:08x}): {problem}"
            )
    return {"instructions": num, "callx": num_indirect}


def find_jump_problem(opcode: int, is_inside: bool) -> str | None:
    """What is wrong with a jump, or with an exit."""
    if opcode == EXIT:
        return None
    if opcode & 0xF0 not in JUMP_OPERATIONS or opcode == 0x0D:
        return "opcode"
    return None if is_inside else "jump out of code"


def find_problem(opcode: int, target: int, offset: int, constant: int) -> str | None:
    """What is wrong with an instruction that neither jumps nor calls."""
    group, operation = opcode & 7, opcode & 0xF0
    if group in (CLASS_LOAD, CLASS_STORE_CONSTANT, CLASS_STORE):
        mode = opcode & 0xE0
        if mode == 0xC0:
            return "atomic instruction"
        if mode != 0x60:
            return "memory mode (sign-extending load?)"
        return "write to r10" if group == CLASS_LOAD and target == FRAME_POINTER else None
    if group == CLASS_ALU32:
        return None if opcode in BYTE_SWAPS else "32-bit arithmetic"
    if group != CLASS_ALU64:
        return "32-bit jump" if group == CLASS_JUMP32 else "opcode"
    has_constant = not opcode & 8
    if operation not in ALU_OPERATIONS:
        return "opcode"
    if target == FRAME_POINTER:
        return "write to r10"
    if offset:
        return "signed division or sign-extending move"
    if has_constant and operation in DIVISIONS and constant == 0:
        return "division by zero"
    if has_constant and operation in SHIFTS and not 0 <= constant < 64:
        return "shift"
    return None
