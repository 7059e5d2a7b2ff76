"""DLPack capsules through ctypes: the view inside one, and a capsule of a view, for any device."""

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


class _Managed(Structure):
    _fields_ = [
        ("tensor", _DLTensor),
        ("manager", c_void_p),
        ("deleter", c_void_p),
    ]


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = c_void_p, (py_object, ctypes.c_char_p)

READ_ONLY = 1


@dataclass
class DlpackView:
    """What a capsule describes. An imported capsule is never consumed: its own destructor frees
    it, when this view is gone. Of an export, `capsule` is what owns the memory.
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


_Deleter = ctypes.CFUNCTYPE(None, c_void_p)
_Destructor = ctypes.PYFUNCTYPE(None, c_void_p)

# Exports that somebody may still read, by the address of their struct: the struct, and what owns
# the memory.
_exported: dict[int, Any] = {}


def _delete(managed: int, exported: dict[int, Any] = _exported) -> None:
    exported.pop(managed, None)


# The same functions on a bare pointer: in a destructor nothing may count references of the capsule.
_name_is = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)
_address_of = ctypes.PYFUNCTYPE(c_void_p, c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def _forget(
    capsule: int,
    name_is: Any = _name_is,
    address_of: Any = _address_of,
    exported: dict[int, Any] = _exported,
) -> None:
    """A capsule ends that nobody consumed; a consumer renames it."""
    for name in (b"dltensor", b"dltensor_versioned"):
        if name_is(capsule, name):
            exported.pop(address_of(capsule, name), None)


# Arrays that outlive this module call these when the interpreter ends.
_deleter, _destructor = _Deleter(_delete), _Destructor(_forget)
for _callback in (_deleter, _destructor):
    ctypes.pythonapi.Py_IncRef(py_object(_callback))

_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = py_object, (c_void_p, ctypes.c_char_p, _Destructor)


def export(view: DlpackView, max_version: Any) -> Any:
    """A capsule of the view, which keeps `view.capsule`, the owner, alive. It has a version where
    the importer asks for one. Errors: BufferError for read-only memory without a version, which
    could not say so.
    """
    versioned = max_version is not None and max_version[0] >= 1
    if view.read_only and not versioned:
        raise BufferError("tensor: read-only memory needs an importer of DLPack 1")
    managed: Any = _Versioned() if versioned else _Managed()
    rank = len(view.shape)
    sizes = (c_int64 * rank)(*view.shape)
    steps = (c_int64 * rank)(*view.strides)
    inner = managed.tensor
    inner.data, inner.byte_offset = view.address or None, 0
    inner.device_type, inner.device_id = view.device
    inner.ndim, inner.lanes = rank, 1
    inner.code, inner.bits = view.dtype
    inner.shape, inner.strides = sizes, steps
    managed.deleter = ctypes.cast(_deleter, c_void_p)
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = READ_ONLY if view.read_only else 0
    address = ctypes.addressof(managed)
    _exported[address] = (managed, sizes, steps, view.capsule)
    name = b"dltensor_versioned" if versioned else b"dltensor"
    return _new(address, name, _destructor)
