"""libLLVM's C API by ctypes: only the functions that the tool calls, each with its exact signature."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

# opcodes and kinds of llvm-c/Core.h
MUL, UDIV, SDIV, UREM, SREM, SHL, LSHR, ASHR, CALL = 12, 14, 15, 17, 18, 20, 21, 22, 45
ZEXT = 31
KIND_FLOAT, KIND_DOUBLE, KIND_INTEGER, KIND_POINTER = 2, 3, 8, 12
LINKAGE_INTERNAL = 8
PREDICATE_NOT_EQUAL = 33
SEVERITY_ERROR = 0

TYPES: dict[str, Any] = {
    "void": None,
    "ptr": ctypes.c_void_p,
    "int": ctypes.c_int,
    "uint": ctypes.c_uint,
    "u64": ctypes.c_ulonglong,
    "size": ctypes.c_size_t,
    "str": ctypes.c_char_p,
}
SIGNATURES = """
    AddAttributeAtIndex void ptr int ptr
    AddCallSiteAttribute void ptr int ptr
    AddFunction ptr ptr str ptr
    AppendExistingBasicBlock void ptr ptr
    ArrayType2 ptr ptr u64
    BuildAlloca ptr ptr ptr str
    BuildAnd ptr ptr ptr ptr str
    BuildCall2 ptr ptr ptr ptr ptr uint str
    BuildGEP2 ptr ptr ptr ptr ptr uint str
    BuildICmp ptr ptr int ptr ptr str
    BuildInsertValue ptr ptr ptr ptr uint str
    BuildIntCast2 ptr ptr ptr ptr int str
    BuildLShr ptr ptr ptr ptr str
    BuildLoad2 ptr ptr ptr ptr str
    BuildOr ptr ptr ptr ptr str
    BuildShl ptr ptr ptr ptr str
    BuildStore ptr ptr ptr ptr
    BuildSub ptr ptr ptr ptr str
    BuildTrunc ptr ptr ptr ptr str
    ConstInt ptr ptr u64 int
    ConstIntGetZExtValue u64 ptr
    ContextCreate ptr
    ContextSetDiagnosticHandler void ptr ptr ptr
    CountParamTypes uint ptr
    CreateBuilderInContext ptr ptr
    CreateMemoryBufferWithMemoryRangeCopy ptr str size str
    CreatePassBuilderOptions ptr
    CreateTargetMachine ptr ptr str str str int int int
    DeleteFunction void ptr
    DisposeBuilder void ptr
    DisposeMessage void ptr
    FunctionType ptr ptr ptr uint int
    GetAttributeCountAtIndex uint ptr int
    GetAttributesAtIndex void ptr int ptr
    GetBufferSize size ptr
    GetBufferStart ptr ptr
    GetCallSiteAttributeCount uint ptr int
    GetCallSiteAttributes void ptr int ptr
    GetCalledFunctionType ptr ptr
    GetCalledValue ptr ptr
    GetDiagInfoDescription ptr ptr
    GetDiagInfoSeverity int ptr
    GetEntryBasicBlock ptr ptr
    GetEnumAttributeKind uint ptr
    GetEnumAttributeKindForName uint str size
    GetErrorMessage ptr ptr
    GetFirstBasicBlock ptr ptr
    GetFirstFunction ptr ptr
    GetFirstGlobal ptr ptr
    GetFirstInstruction ptr ptr
    GetFunctionCallConv uint ptr
    GetInstructionCallConv uint ptr
    GetInstructionOpcode int ptr
    GetIntTypeWidth uint ptr
    GetIntrinsicID uint ptr
    GetLinkage int ptr
    GetNamedFunction ptr ptr str
    GetNextBasicBlock ptr ptr
    GetNextFunction ptr ptr
    GetNextGlobal ptr ptr
    GetNextInstruction ptr ptr
    GetNumArgOperands uint ptr
    GetOperand ptr ptr uint
    GetParam ptr ptr uint
    GetParamTypes void ptr ptr
    GetReturnType ptr ptr
    GetTargetFromTriple int str ptr ptr
    GetTypeKind int ptr
    GetUndef ptr ptr
    GetValueName2 ptr ptr ptr
    GlobalGetValueType ptr ptr
    InitializeBPFAsmPrinter void
    InitializeBPFTarget void
    InitializeBPFTargetInfo void
    InitializeBPFTargetMC void
    InstructionEraseFromParent void ptr
    IntTypeInContext ptr ptr uint
    IsAConstantInt ptr ptr
    IsAFunction ptr ptr
    IsAInstruction ptr ptr
    IsDeclaration int ptr
    IsEnumAttribute int ptr
    IsFunctionVarArg int ptr
    IsStringAttribute int ptr
    IsTypeAttribute int ptr
    LinkModules2 int ptr ptr
    ParseBitcodeInContext2 int ptr ptr ptr
    ParseCommandLineOptions void int ptr str
    PointerTypeInContext ptr ptr uint
    PositionBuilderBefore void ptr ptr
    PrintModuleToString ptr ptr
    PrintValueToString ptr ptr
    RemoveBasicBlockFromParent void ptr
    RemoveCallSiteEnumAttribute void ptr int uint
    RemoveEnumAttributeAtIndex void ptr int uint
    ReplaceAllUsesWith void ptr ptr
    RunPasses ptr ptr str ptr ptr
    SetAlignment void ptr uint
    SetFunctionCallConv void ptr uint
    SetInstructionCallConv void ptr uint
    SetLinkage void ptr int
    SetSection void ptr str
    SetTailCall void ptr int
    SetValueName2 void ptr str size
    StripModuleDebugInfo int ptr
    TargetMachineEmitToMemoryBuffer int ptr ptr int ptr ptr
    TypeOf ptr ptr
    VerifyModule int ptr int ptr
"""


class LLVMError(Exception):
    """LLVM refused, or the program needs something that the Solana VM does not have."""


def find_llvm() -> str:
    """The libLLVM that this rustc writes bitcode with; no other version will do."""
    if given := os.environ.get("SBF_LLVM"):
        return given
    rustc = os.environ.get("SBF_RUSTC", "/usr/bin/rustc")
    answer = subprocess.run(["ldd", rustc], check=True, capture_output=True, text=True).stdout
    match = re.search(r"libLLVM\S* => (\S+)", answer)
    if match is None:
        raise LLVMError(f"{rustc} is not linked with a shared libLLVM")
    return match[1]


def count_arguments(function: Any, expected: int) -> Callable[..., Any]:
    """ctypes takes surplus arguments and passes them as 32-bit ints, cutting pointers: count them."""

    def call(*arguments: Any) -> Any:
        if len(arguments) != expected:
            raise TypeError(f"{function.__name__}: {len(arguments)} arguments instead of {expected}")
        return function(*arguments)

    return call


class Api:
    """`api.BuildLoad2(...)` is `LLVMBuildLoad2(...)`."""

    def __init__(self) -> None:
        library = ctypes.CDLL(find_llvm())
        for line in SIGNATURES.strip().splitlines():
            name, result, *arguments = line.split()
            function = getattr(library, "LLVM" + name)
            function.restype = TYPES[result]
            function.argtypes = [TYPES[argument] for argument in arguments]
            setattr(self, name, count_arguments(function, len(arguments)))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        raise AttributeError(f"LLVM{name} is not in SIGNATURES")

    def read_text(self, address: int | None) -> str:
        """A C string of LLVM's."""
        return ctypes.string_at(address).decode("utf-8", "replace") if address else ""

    def get_name(self, value: Any) -> str:
        """Name of a function or global."""
        length = ctypes.c_size_t()
        address = self.GetValueName2(value, ctypes.byref(length))
        return ctypes.string_at(address, length.value).decode()


def make_array(values: list[Any]) -> Any:
    """A C array of LLVM handles."""
    return (ctypes.c_void_p * max(len(values), 1))(*values)
