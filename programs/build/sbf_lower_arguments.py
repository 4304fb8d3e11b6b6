"""Functions with more arguments than registers.

The VM passes r1 to r5; the back end refuses more ("stack arguments are not supported"). Every function type
that needs more than five registers gets a new shape, (first ones.., pointer to a block with the rest), at
definitions, at direct and at indirect calls alike, so that function pointers keep matching. The block lies on
the caller's frame.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from sbf_llvm_api import (
    CALL,
    KIND_DOUBLE,
    KIND_FLOAT,
    KIND_INTEGER,
    KIND_POINTER,
    LLVMError,
    make_array,
)

if TYPE_CHECKING:
    from sbf_llvm import Module

MAX_REGISTERS = 5
KEPT_ATTRIBUTES = (b"nounwind", b"noreturn", b"cold", b"noinline", b"willreturn", b"noundef")
"""Still true when arguments move to memory; those that speak of memory or pointers are not."""


class Plan(NamedTuple):
    """How the arguments of a function type are passed."""

    num_kept: int
    types: list[Any]
    offsets: list[int]
    """Of the packed ones, in words."""
    num_words: int


def pack_arguments(module: Module) -> int:
    """Rewrites all calls, then all definitions; returns how many."""
    packer = Packer(module)
    count = sum(packer.rewrite_calls(function) for function in module.functions())
    return count + sum(packer.rewrite_definition(function) for function in module.functions())


class Packer:
    """The rewrite over one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.api = module.api
        self.i64 = module.get_integer(64)
        self.pointer = self.api.PointerTypeInContext(module.context, 0)
        self.by_value = self.api.GetEnumAttributeKindForName(b"byval", 5)
        self.kept_kinds = {self.api.GetEnumAttributeKindForName(name, len(name)) for name in KEPT_ATTRIBUTES}

    # ---- what to do with a function type ------------------------------------------------------------------

    def count_registers(self, kind: Any) -> int:
        """Registers that one argument takes."""
        number = self.api.GetTypeKind(kind)
        if number == KIND_INTEGER:
            return (int(self.api.GetIntTypeWidth(kind)) + 63) // 64
        if number in (KIND_POINTER, KIND_FLOAT, KIND_DOUBLE):
            return 1
        raise LLVMError(f"argument type kind {number}")

    def make_plan(self, function_type: Any) -> Plan | None:
        """None when the arguments fit the registers."""
        num = self.api.CountParamTypes(function_type)
        array = make_array([None] * num)
        self.api.GetParamTypes(function_type, array)
        types = list(array)[:num]
        try:
            registers = [self.count_registers(kind) for kind in types]
        except LLVMError:
            # metadata and the like, in declarations of intrinsics
            if num <= MAX_REGISTERS:
                return None
            raise
        if sum(registers) <= MAX_REGISTERS:
            return None
        if self.api.IsFunctionVarArg(function_type):
            raise LLVMError("variadic function with more than five arguments")
        num_kept = used = 0
        while used + registers[num_kept] <= MAX_REGISTERS - 1:
            used += registers[num_kept]
            num_kept += 1
        offsets, at = [], 0
        for size in registers[num_kept:]:
            if size > 1:
                at = (at + 1) & ~1
            offsets.append(at)
            at += size
        return Plan(num_kept, types, offsets, at)

    def make_type(self, function_type: Any, plan: Plan) -> Any:
        """The new shape."""
        types = make_array([*plan.types[: plan.num_kept], self.pointer])
        result = self.api.GetReturnType(function_type)
        return self.api.FunctionType(result, types, plan.num_kept + 1, 0)

    def get_address(self, builder: Any, block: Any, offset: int) -> Any:
        """Of a word in a block."""
        index = make_array([self.api.ConstInt(self.i64, offset, 0)])
        return self.api.BuildGEP2(builder, self.i64, block, index, 1, b"")

    def select_attributes(
        self,
        get_count: Callable[[Any, int], int],
        get: Callable[[Any, int, Any], None],
        owner: Any,
        index: int,
    ) -> Iterator[Any]:
        """Attributes at an index (-1 function, 0 result, from 1 parameters) that stay true."""
        num = get_count(owner, index)
        array = make_array([None] * num)
        get(owner, index, array)
        for attribute in list(array)[:num]:
            if self.api.IsStringAttribute(attribute):
                yield attribute
                continue
            kind = self.api.GetEnumAttributeKind(attribute)
            if kind == self.by_value:
                raise LLVMError("byval argument")
            is_plain = self.api.IsEnumAttribute(attribute) or self.api.IsTypeAttribute(attribute)
            if is_plain and kind in self.kept_kinds:
                yield attribute

    # ---- calls --------------------------------------------------------------------------------------------

    def rewrite_calls(self, function: Any) -> int:
        """Packs the arguments of the calls that a function makes."""
        api = self.api
        sites = []
        for instruction in self.module.instructions(function):
            if api.GetInstructionOpcode(instruction) != CALL:
                continue
            callee = api.GetCalledValue(instruction)
            if api.IsAFunction(callee) and api.GetIntrinsicID(callee):
                continue
            plan = self.make_plan(api.GetCalledFunctionType(instruction))
            if plan is not None:
                sites.append((instruction, plan))
        if not sites:
            return 0
        # one block serves all calls: it is filled right before each
        size = max(plan.num_words for _, plan in sites)
        with self.module.build_at_entry(function) as builder:
            block = api.BuildAlloca(builder, api.ArrayType2(self.i64, size), b"args")
            api.SetAlignment(block, 16)
        for instruction, plan in sites:
            with self.module.build_before(instruction) as builder:
                self.rewrite_call(builder, instruction, plan, block)
        return len(sites)

    def rewrite_call(self, builder: Any, instruction: Any, plan: Plan, block: Any) -> None:
        """Puts a call of the new shape in the old one's place."""
        api = self.api
        arguments = [api.GetOperand(instruction, i) for i in range(len(plan.types))]
        for offset, value in zip(plan.offsets, arguments[plan.num_kept :], strict=True):
            store = api.BuildStore(builder, value, self.get_address(builder, block, offset))
            api.SetAlignment(store, 8)
        kind = self.make_type(api.GetCalledFunctionType(instruction), plan)
        passed = make_array([*arguments[: plan.num_kept], block])
        callee = api.GetCalledValue(instruction)
        new = api.BuildCall2(builder, kind, callee, passed, plan.num_kept + 1, b"")
        api.SetInstructionCallConv(new, api.GetInstructionCallConv(instruction))
        # a tail call would give up the frame that holds the block
        api.SetTailCall(new, 0)
        for index in range(-1, plan.num_kept + 1):
            for attribute in self.select_attributes(
                api.GetCallSiteAttributeCount, api.GetCallSiteAttributes, instruction, index
            ):
                api.AddCallSiteAttribute(new, index, attribute)
        self.module.replace(instruction, new)

    # ---- definitions --------------------------------------------------------------------------------------

    def rewrite_definition(self, function: Any) -> bool:
        """Moves a function's body into one of the new shape."""
        api = self.api
        if api.GetIntrinsicID(function):
            return False
        kind = api.GlobalGetValueType(function)
        plan = self.make_plan(kind)
        if plan is None:
            return False
        name = api.get_name(function)
        if api.IsDeclaration(function):
            raise LLVMError(f"external function {name} takes more than five arguments")
        api.SetValueName2(function, b"", 0)
        new = api.AddFunction(self.module.handle, name.encode(), self.make_type(kind, plan))
        api.SetLinkage(new, api.GetLinkage(function))
        api.SetFunctionCallConv(new, api.GetFunctionCallConv(function))
        for index in range(-1, plan.num_kept + 1):
            for attribute in self.select_attributes(
                api.GetAttributeCountAtIndex, api.GetAttributesAtIndex, function, index
            ):
                api.AddAttributeAtIndex(new, index, attribute)
        for block in self.module.blocks(function):
            api.RemoveBasicBlockFromParent(block)
            api.AppendExistingBasicBlock(new, block)
        self.replace_parameters(function, new, plan)
        api.ReplaceAllUsesWith(function, new)
        api.DeleteFunction(function)
        return True

    def replace_parameters(self, old: Any, new: Any, plan: Plan) -> None:
        """Parameters in registers stay; the others are loaded from the block."""
        api = self.api
        with self.module.build_at_entry(new) as builder:
            for i in range(plan.num_kept):
                api.ReplaceAllUsesWith(api.GetParam(old, i), api.GetParam(new, i))
            block = api.GetParam(new, plan.num_kept)
            for i, offset in enumerate(plan.offsets, start=plan.num_kept):
                address = self.get_address(builder, block, offset)
                value = api.BuildLoad2(builder, plan.types[i], address, b"")
                api.SetAlignment(value, 8)
                api.ReplaceAllUsesWith(api.GetParam(old, i), value)
