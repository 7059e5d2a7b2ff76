"""DLPack capsules through ctypes: the view inside one, and numpy's capsule with another type."""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    c_int32,
    c_int64,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from dataclasses import dataclass
from typing import Any


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (py_object, ctypes.c_char_p)

READ_ONLY = 1


@dataclass
class DlpackView:
    """What a capsule describes. The capsule is never consumed: its own destructor frees it, when
    this view is gone.
    """

    address: int
    dtype: tuple[int, int]
    device: tuple[int, int]
    shape: list[int]
    strides: list[int]
    read_only: bool
    capsule: Any


def _capsule_of(exporter: Any) -> Any:
    try:
        return exporter.__dlpack__(max_version=(1, 0))
    except TypeError:  # an exporter from before versions
        return exporter.__dlpack__()


def from_capsule(exporter: Any, name: str) -> DlpackView:
    """Errors: TypeError (vectors as elements, a capsule of an unknown version)."""
    capsule = _capsule_of(exporter)
    read_only = False
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major != 1:
            raise TypeError(f"{name}: expected DLPack 1, got {managed.major}.{managed.minor}")
        inner, read_only = managed.tensor, bool(managed.flags & READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        inner = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    else:
        raise TypeError(f"{name}: expected a DLPack capsule, got {capsule!r}")
    if inner.lanes != 1:
        raise TypeError(f"{name}: expected one lane an element, got {inner.lanes}")
    shape = list(inner.shape[: inner.ndim])
    if inner.strides:
        strides = list(inner.strides[: inner.ndim])
    else:
        strides = [1] * inner.ndim
        for i in range(inner.ndim - 2, -1, -1):
            strides[i] = strides[i + 1] * shape[i + 1]
    return DlpackView(
        address=(inner.data or 0) + inner.byte_offset,
        dtype=(inner.code, inner.bits),
        device=(inner.device_type, inner.device_id),
        shape=shape,
        strides=strides,
        read_only=read_only,
        capsule=capsule,
    )


def export(array: Any, max_version: Any) -> Any:
    """numpy's capsule; with a version where the importer asks for one and this numpy has them."""
    if max_version is None:
        return array.__dlpack__()
    try:
        return array.__dlpack__(max_version=max_version)
    except TypeError:  # numpy before 2.1
        return array.__dlpack__()


def retype_capsule(capsule: Any, code: int, bits: int) -> Any:
    """The same capsule with elements of another type of the same size."""
    if _is_valid(capsule, b"dltensor_versioned"):
        inner = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned")).tensor
    else:
        inner = _DLTensor.from_address(_pointer(capsule, b"dltensor"))
    inner.code, inner.bits = code, bits
    return capsule
