"""Rewrites of single instructions that the upstream BPF back end refuses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sbf_llvm_api import CALL, KIND_INTEGER, SDIV, SREM

if TYPE_CHECKING:
    from sbf_llvm import Module


def strip_struct_returns(module: Module) -> None:
    """Drops `sret`: the back end refuses it, and a plain pointer argument means the same to it."""
    api = module.api
    kind = api.GetEnumAttributeKindForName(b"sret", 4)
    for function in module.functions():
        for index in range(1, api.CountParamTypes(api.GlobalGetValueType(function)) + 1):
            api.RemoveEnumAttributeAtIndex(function, index, kind)
        for instruction in module.instructions(function):
            if api.GetInstructionOpcode(instruction) == CALL:
                for index in range(1, api.GetNumArgOperands(instruction) + 1):
                    api.RemoveCallSiteEnumAttribute(instruction, index, kind)


def lower_memory(module: Module, limit: int) -> int:
    """Large or variable llvm.memcpy, memmove and memset become calls of the run time's functions."""
    api, count = module.api, 0
    for declaration in module.functions():
        match = re.match(r"llvm\.(memcpy|memmove|memset)\.", api.get_name(declaration))
        if match is None or not api.IsDeclaration(declaration):
            continue
        for function in module.functions():
            # the run time is what these are lowered to
            if not module.is_run_time(function):
                count += lower_memory_calls(module, function, declaration, match[1], limit)
    return count


def lower_memory_calls(module: Module, function: Any, declaration: Any, name: str, limit: int) -> int:
    """The calls of one intrinsic in one function."""
    api, count = module.api, 0
    for instruction in module.instructions(function):
        if api.GetInstructionOpcode(instruction) != CALL or api.GetCalledValue(instruction) != declaration:
            continue
        length = api.GetOperand(instruction, 2)
        if api.IsAConstantInt(length) and api.ConstIntGetZExtValue(length) <= limit:
            continue
        with module.build_before(instruction) as builder:
            target, source = api.GetOperand(instruction, 0), api.GetOperand(instruction, 1)
            if name == "memset":
                source = api.BuildIntCast2(builder, source, module.get_integer(32), 0, b"")
            length = api.BuildIntCast2(builder, length, module.get_integer(64), 0, b"")
            module.call(builder, module.find_run_time(name), [target, source, length])
            api.InstructionEraseFromParent(instruction)
        count += 1
    return count


def lower_signed_division(module: Module) -> int:
    """Signed division and remainder of up to 64 bits become calls: SBPF v0 has unsigned ones only."""
    api, count = module.api, 0
    i64 = module.get_integer(64)
    for function in module.functions():
        for instruction in module.instructions(function):
            opcode = api.GetInstructionOpcode(instruction)
            if opcode not in (SDIV, SREM):
                continue
            kind = api.TypeOf(instruction)
            if api.GetTypeKind(kind) != KIND_INTEGER or api.GetIntTypeWidth(kind) > 64:
                continue
            target = module.find_run_time("__divdi3" if opcode == SDIV else "__moddi3")
            with module.build_before(instruction) as builder:
                numbers = [
                    api.BuildIntCast2(builder, api.GetOperand(instruction, i), i64, 1, b"") for i in (0, 1)
                ]
                answer = module.call(builder, target, numbers)
                module.replace(instruction, api.BuildIntCast2(builder, answer, kind, 1, b""))
            count += 1
    return count
