"""Arithmetic beyond 64 bits becomes calls of the run time (sbf_rt.rs).

The back end supports "only small returns", so no library call may return 128 bits: the run time's functions
write their result through a pointer to a stack slot. Addition, subtraction, comparison and shifts by
constants need no call. `u64 as u128 * u64 as u128` is recognised and takes a shorter routine.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from sbf_llvm_api import (
    ASHR,
    CALL,
    KIND_INTEGER,
    LSHR,
    MUL,
    PREDICATE_NOT_EQUAL,
    SDIV,
    SHL,
    SREM,
    UDIV,
    UREM,
    ZEXT,
    LLVMError,
    make_array,
)

if TYPE_CHECKING:
    from sbf_llvm import Module

ROUTINES = {
    # opcode: (run-time function, whether narrower operands are sign-extended)
    MUL: ("__multi3", False),
    UDIV: ("__udivti3", False),
    SDIV: ("__divti3", True),
    UREM: ("__umodti3", False),
    SREM: ("__modti3", True),
    SHL: ("__ashlti3", False),
    LSHR: ("__lshrti3", False),
    ASHR: ("__ashrti3", True),
}
SHIFTS = (SHL, LSHR, ASHR)
LOW_64 = (1 << 64) - 1


def lower_wide(module: Module) -> int:
    """Rewrites the whole module; returns how many instructions."""
    count = sum(lower_rotates(module, function) for function in module.functions())
    for function in module.functions():
        frame = Frame(module, function)
        for instruction in module.instructions(function):
            count += lower_instruction(module, frame, function, instruction)
    return count


class Frame:
    """Stack slots of one function for the results of run-time calls, made when first needed."""

    def __init__(self, module: Module, function: Any) -> None:
        self._module = module
        self._function = function
        self._result: Any = None
        self._large: list[Any] = []

    @property
    def result(self) -> Any:
        """128 bits."""
        if self._result is None:
            api = self._module.api
            with self._module.build_at_entry(self._function) as builder:
                self._result = api.BuildAlloca(builder, self._module.get_integer(128), b"wide")
                api.SetAlignment(self._result, 16)
        return self._result

    @property
    def large(self) -> list[Any]:
        """Three times 256 bits: a product and its factors."""
        if not self._large:
            api, i256 = self._module.api, self._module.get_integer(256)
            with self._module.build_at_entry(self._function) as builder:
                self._large = [api.BuildAlloca(builder, i256, b"wide256") for _ in range(3)]
        return self._large


def lower_rotates(module: Module, function: Any) -> int:
    """Variable 128-bit rotations (funnel shifts) become shifts, which are lowered afterwards."""
    api, count = module.api, 0
    i128 = module.get_integer(128)
    for instruction in module.instructions(function):
        if api.GetInstructionOpcode(instruction) != CALL:
            continue
        match = re.match(r"llvm\.fsh([lr])\.i128$", api.get_name(api.GetCalledValue(instruction)))
        if match is None or api.IsAConstantInt(api.GetOperand(instruction, 2)):
            continue
        with module.build_before(instruction) as b:
            high, low = api.GetOperand(instruction, 0), api.GetOperand(instruction, 1)
            one, top = api.ConstInt(i128, 1, 0), api.ConstInt(i128, 127, 0)
            amount = api.BuildAnd(b, api.GetOperand(instruction, 2), top, b"")
            # shifting by one and then by 127 - amount: a single shift by 128 would be undefined
            rest = api.BuildSub(b, top, amount, b"")
            if match[1] == "l":
                left = api.BuildShl(b, high, amount, b"")
                right = api.BuildLShr(b, api.BuildLShr(b, low, one, b""), rest, b"")
            else:
                left = api.BuildShl(b, api.BuildShl(b, high, one, b""), rest, b"")
                right = api.BuildLShr(b, low, amount, b"")
            module.replace(instruction, api.BuildOr(b, left, right, b""))
        count += 1
    return count


def lower_instruction(module: Module, frame: Frame, function: Any, instruction: Any) -> bool:
    """Rewrites one instruction if it needs it."""
    api = module.api
    opcode = api.GetInstructionOpcode(instruction)
    overflow, width = None, 0
    if opcode == CALL:
        name = api.get_name(api.GetCalledValue(instruction))
        overflow = re.match(r"llvm\.([us])mul\.with\.overflow\.i(64|128)$", name)
        if overflow is None:
            return False
    elif opcode in ROUTINES:
        width = get_wide_width(module, opcode, instruction)
        if width == 0:
            return False
    else:
        return False
    name = api.get_name(function)
    if module.is_run_time(function) or "compiler_builtins" in name:
        raise LLVMError(f"run-time function {name} itself needs the run time")
    frame.result  # noqa: B018  slots come before everything else in the entry block
    if width > 128:
        frame.large  # noqa: B018
    with module.build_before(instruction) as builder:
        lowering = Lowering(module, frame, builder, instruction)
        if overflow is not None:
            value = lowering.multiply_checked(overflow[1] == "s", int(overflow[2]))
        elif width > 128:
            value = lowering.multiply_large(width)
        else:
            value = lowering.call_routine(opcode, width)
        module.replace(instruction, value)
    return True


def get_wide_width(module: Module, opcode: int, instruction: Any) -> int:
    """Width in bits of an operation that needs the run time, or 0."""
    api = module.api
    kind = api.TypeOf(instruction)
    if api.GetTypeKind(kind) != KIND_INTEGER or api.GetIntTypeWidth(kind) <= 64:
        return 0
    if opcode in SHIFTS and api.IsAConstantInt(api.GetOperand(instruction, 1)):
        return 0
    width = int(api.GetIntTypeWidth(kind))
    if width > 256 or (width > 128 and opcode != MUL):
        raise LLVMError(f"{width}-bit arithmetic")
    return width


class Lowering:
    """Builds the replacement of one instruction."""

    def __init__(self, module: Module, frame: Frame, builder: Any, instruction: Any) -> None:
        self.module = module
        self.api = module.api
        self.frame = frame
        self.builder = builder
        self.kind = self.api.TypeOf(instruction)
        self.left = self.api.GetOperand(instruction, 0)
        self.right = self.api.GetOperand(instruction, 1)
        self.i64, self.i128, self.i256 = (module.get_integer(width) for width in (64, 128, 256))

    def call(self, name: str, arguments: list[Any]) -> Any:
        return self.module.call(self.builder, self.module.find_run_time(name), arguments)

    def split(self, value: Any) -> list[Any]:
        """Low and high half of an i128."""
        api, b = self.api, self.builder
        low = api.BuildTrunc(b, value, self.i64, b"")
        shifted = api.BuildLShr(b, value, api.ConstInt(self.i128, 64, 0), b"")
        return [low, api.BuildTrunc(b, shifted, self.i64, b"")]

    def load_half(self, index: int) -> Any:
        """A half of the result slot."""
        at = make_array([self.api.ConstInt(self.i64, index, 0)])
        address = self.api.BuildGEP2(self.builder, self.i64, self.frame.result, at, 1, b"")
        return self.api.BuildLoad2(self.builder, self.i64, address, b"")

    def multiply_checked(self, is_signed: bool, width: int) -> Any:
        """{product, whether it overflowed}."""
        api, b, slot = self.api, self.builder, self.frame.result
        if width == 64:
            # the unsigned product of 64 bits overflows when its high half is not zero
            self.call("__sbf_smulo64" if is_signed else "__sbf_mul64", [slot, self.left, self.right])
            value, flag = self.load_half(0), self.load_half(1)
        else:
            name = "__sbf_smulo128" if is_signed else "__sbf_umulo128"
            flag = self.call(name, [slot, *self.split(self.left), *self.split(self.right)])
            value = api.BuildLoad2(b, self.i128, slot, b"")
        flag = api.BuildICmp(b, PREDICATE_NOT_EQUAL, flag, api.ConstInt(self.i64, 0, 0), b"")
        pair = api.BuildInsertValue(b, api.GetUndef(self.kind), value, 0, b"")
        return api.BuildInsertValue(b, pair, flag, 1, b"")

    def multiply_large(self, width: int) -> Any:
        """A product of 129 to 256 bits; core's formatting of u128 needs it."""
        api, b = self.api, self.builder
        product, *factors = self.frame.large
        for value, slot in zip((self.left, self.right), factors, strict=True):
            store = api.BuildStore(b, api.BuildIntCast2(b, value, self.i256, 0, b""), slot)
            api.SetAlignment(store, 8)
        self.call("__sbf_mul256", [product, *factors])
        answer = api.BuildLoad2(b, self.i256, product, b"")
        return api.BuildTrunc(b, answer, self.kind, b"") if width < 256 else answer

    def call_routine(self, opcode: int, width: int) -> Any:
        """An operation of 65 to 128 bits."""
        api, b, slot = self.api, self.builder, self.frame.result
        name, is_signed = ROUTINES[opcode]
        narrow = [self.get_narrow(v) for v in (self.left, self.right)] if opcode == MUL else [None, None]
        if all(narrow):
            self.call("__sbf_mul64", [slot, *narrow])
        else:
            left, right = self.left, self.right
            if width < 128:
                left, right = (api.BuildIntCast2(b, v, self.i128, is_signed, b"") for v in (left, right))
            first, second = self.split(left), self.split(right)
            # a shift's amount is its low half
            self.call(name, [slot, *first, *(second[:1] if opcode in SHIFTS else second)])
        answer = api.BuildLoad2(b, self.i128, slot, b"")
        return api.BuildTrunc(b, answer, self.kind, b"") if width < 128 else answer

    def get_narrow(self, value: Any) -> Any:
        """The value as an i64 when it is one that was widened, else None."""
        api = self.api
        if api.IsAConstantInt(value):
            kind = api.TypeOf(value)
            if api.GetIntTypeWidth(kind) <= 64:
                return api.ConstInt(self.i64, api.ConstIntGetZExtValue(value), 0)
            # the C API reads low 64 bits only: see whether they give the same constant
            low = self.read_low_bits(value)
            return api.ConstInt(self.i64, low, 0) if api.ConstInt(kind, low, 0) == value else None
        if api.IsAInstruction(value) and api.GetInstructionOpcode(value) == ZEXT:
            source = api.GetOperand(value, 0)
            if api.GetIntTypeWidth(api.TypeOf(source)) <= 64:
                return api.BuildIntCast2(self.builder, source, self.i64, 0, b"")
        return None

    def read_low_bits(self, value: Any) -> int:
        """Low 64 bits of a constant of any width, from its printed form."""
        text = self.api.PrintValueToString(value)
        number = int(self.api.read_text(text).split()[-1])
        self.api.DisposeMessage(text)
        return number & LOW_64
