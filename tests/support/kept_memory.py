"""What an object holds on to: everything that is reached from it, but for code and modules."""

from __future__ import annotations

import gc
import sys
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)

_CODE = (
    type,
    ModuleType,
    FunctionType,
    BuiltinFunctionType,
    CodeType,
    FrameType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)


def measure_kept_bytes(root: object, *but: object) -> int:
    """Bytes of everything that ``root`` keeps alive, and that ``but`` does not reach in its own right."""
    seen = {id(item) for item in but}
    size, waiting = 0, [root]
    while waiting:
        item = waiting.pop()
        if id(item) in seen or isinstance(item, _CODE):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item)
        waiting += gc.get_referents(item)
    return size
