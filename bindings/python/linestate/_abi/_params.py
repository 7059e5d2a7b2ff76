"""Building the structs of the C interface from Python arguments."""

from __future__ import annotations

import ctypes
from ctypes import Structure, sizeof
from typing import Any, TypeVar

from ..tensors import Tensor
from ._structs import ls_tensor

StructT = TypeVar("StructT", bound=Structure)


def choice(name: str, value: str, values: dict[str, int]) -> int:
    """The number of a named option. Errors: ValueError listing the names."""
    if value not in values:
        raise ValueError(f"{name}: expected one of {', '.join(values)}, got {value!r}")
    return values[value]


def fill(cls: type[StructT], **members: Any) -> StructT:
    """A struct with its size set. None leaves a member zero, that is, not given.

    Tensors become ls_tensor, structs become pointers where a pointer is asked for. What they view
    is kept alive by the struct.
    """
    struct = cls()
    kinds = dict(cls._fields_)  # type: ignore[misc,arg-type,unused-ignore]
    if "struct_size" in kinds:
        struct.struct_size = sizeof(cls)
    keep: list[object] = []
    for name, value in members.items():
        if name not in kinds:
            raise TypeError(f"{cls.__name__} has no member {name}")
        if value is None:
            continue
        if isinstance(value, Tensor):
            keep.append(value)
            value = value.struct
        elif isinstance(value, Structure) and not isinstance(value, ls_tensor):
            keep.append(value)
            if not isinstance(value, kinds[name]):
                value = ctypes.pointer(value)
        setattr(struct, name, value)
    # An attribute that is no field: it lives as long as the struct.
    struct.kept = keep
    return struct


def array_of(cls: type[StructT], values: list[StructT]) -> Any:
    """A C array of structs, which keeps alive what they view; None when empty."""
    if not values:
        return None
    array = (cls * len(values))(*values)
    array.kept = values  # type: ignore[attr-defined]
    return array
