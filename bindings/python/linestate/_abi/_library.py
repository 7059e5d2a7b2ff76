"""The shared library: found, checked, and called with errors as exceptions."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from ..errors import error_of
from ._functions import FUNCTIONS, OPERATORS
from ._structs import ls_context

ABI_VERSION = 1


def _load() -> ctypes.CDLL:
    beside = Path(__file__).parent.parent / "liblinestate.so"
    path = os.environ.get("LINESTATE_LIBRARY") or str(beside)
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(
            f"linestate: cannot load {path}: {error}. LINESTATE_LIBRARY names another file."
        ) from error
    library.ls_abi_version.restype = ctypes.c_uint32
    if library.ls_abi_version() != ABI_VERSION:
        raise ImportError(
            f"linestate: {path} has C interface {library.ls_abi_version()}, this package needs "
            f"{ABI_VERSION}"
        )
    for name, (restype, argtypes) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = restype, argtypes
    for op, params in OPERATORS.items():
        head = (POINTER(params), POINTER(ls_context), c_char_p)
        tails: dict[str, tuple[Any, ...]] = {
            "": (),
            "_workspace_bytes": (POINTER(c_int64),),
            "_explain": (c_void_p, c_size_t, POINTER(c_size_t)),
        }
        for end, tail in tails.items():
            function = getattr(library, f"ls_{op}{end}")
            function.restype, function.argtypes = c_int, head + tail
    return library


lib = _load()


def call(name: str, *arguments: Any) -> None:
    """Runs ls_<name>; raises what its status says."""
    status = getattr(lib, f"ls_{name}")(*arguments)
    if status != 0:
        raise error_of(status, lib.ls_last_error().decode())


def text_of(name: str, *arguments: Any) -> str:
    """The text of a function that ends in (buffer, size, needed)."""
    needed = c_size_t()
    call(name, *arguments, None, 0, byref(needed))
    size = needed.value + 1
    buffer = ctypes.create_string_buffer(size)
    call(name, *arguments, buffer, size, byref(needed))
    return buffer.value.decode()


def encoded(name: str | None) -> bytes | None:
    """A kernel's name as the C interface takes it; None lets the library choose."""
    return None if name is None else name.encode()


class Handle:
    """An object of the library. `close` ends it; so does the garbage collector."""

    _destroy: str

    def __init__(self, pointer: c_void_p) -> None:
        self._pointer: c_void_p | None = pointer

    @property
    def pointer(self) -> c_void_p:
        """The handle of the C interface. Errors: ValueError after `close`."""
        if self._pointer is None:
            raise ValueError(f"{type(self).__name__}: closed")
        return self._pointer

    def close(self) -> None:
        """Ends the object now; a second call does nothing."""
        pointer, self._pointer = getattr(self, "_pointer", None), None
        if pointer is not None and pointer.value is not None:
            getattr(lib, f"ls_{self._destroy}")(pointer)

    def __del__(self) -> None:
        self.close()


def create(name: str, *arguments: Any) -> c_void_p:
    """The handle that ls_<name> makes as its last argument."""
    pointer = c_void_p()
    call(name, *arguments, byref(pointer))
    return pointer
