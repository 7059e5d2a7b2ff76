"""Where and how operators run: threads, scratch memory, error block; and the call itself."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import Structure, byref, c_int32, c_int64, c_uint32, sizeof
from typing import Any

from ._abi import _constants as c
from ._abi._library import call, encoded, text_of
from ._abi._structs import ls_context, ls_device_status

FLAGS = {
    "slot_out_of_range": c.LS_FLAG_SLOT_OUT_OF_RANGE,
    "bad_offsets": c.LS_FLAG_BAD_OFFSETS,
    "bad_parent": c.LS_FLAG_BAD_PARENT,
    "bad_accepted_node": c.LS_FLAG_BAD_ACCEPTED_NODE,
    "duplicate_slot": c.LS_FLAG_DUPLICATE_SLOT,
    "snapshot_not_taken": c.LS_FLAG_SNAPSHOT_NOT_TAKEN,
    "state_overflow": c.LS_FLAG_STATE_OVERFLOW,
    "non_finite": c.LS_FLAG_NON_FINITE,
}


def _aligned(size: int) -> tuple[Any, int]:
    """A buffer and the first address in it that is a multiple of 64."""
    buffer = ctypes.create_string_buffer(size + 64)
    address = ctypes.addressof(buffer)
    return buffer, address + -address % 64


class DeviceStatus:
    """Sticky error block that operators write: what they noticed in data nobody checked before."""

    def __init__(self) -> None:
        self._buffer, self.address = _aligned(sizeof(ls_device_status))
        self._block = ls_device_status.from_address(self.address)
        self.reset()

    def reset(self) -> None:
        """Back to the clean state."""
        call("device_status_reset", byref(self._block))

    def flags(self) -> set[str]:
        """Names of the raised flags, as in `FLAGS`."""
        raised = c_uint32()
        call("device_status_flags", byref(self._block), byref(raised))
        return {name for name, bit in FLAGS.items() if raised.value & bit}

    def row(self, flag: str) -> int:
        """Lowest row that raised the flag, -1 when none did. Errors: KeyError."""
        row = c_int32()
        call("device_status_row", byref(self._block), FLAGS[flag], byref(row))
        return row.value

    def describe(self) -> str:
        """One line a raised flag; empty when clean."""
        return text_of("device_status_describe", byref(self._block))


class Context:
    """How calls run. One context serves one call at a time; threads use contexts of their own.

    num_threads: CPU threads, 0 = all that OpenMP offers. Never changes a bit of a result.
    check_finite: raise the flag "non_finite" in `status`; reads every output once.
    strict: a fallback to a slower kernel is an UnsupportedError.
    The scratch memory grows to what a call needs, and stays.
    """

    def __init__(
        self,
        *,
        num_threads: int = 0,
        check_finite: bool = False,
        strict: bool = False,
        status: DeviceStatus | None = None,
    ) -> None:
        self.struct = ls_context()
        self.struct.struct_size = sizeof(ls_context)
        self.struct.num_threads = num_threads
        self.struct.check_finite = int(check_finite)
        self.struct.strict = int(strict)
        self.status = status
        if status is not None:
            self.struct.status = ctypes.pointer(status._block)
        self._scratch: Any = None

    def reserve(self, size: int) -> None:
        """Scratch of at least `size` bytes, so that later calls allocate nothing."""
        if size > self.struct.workspace_bytes:
            self._scratch, self.struct.workspace = _aligned(size)
            self.struct.workspace_bytes = size


class _Thread(threading.local):
    """What belongs to one thread: its default context, and the answers `explain` collects."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.answers: list[str] | None = None


_thread = _Thread()


def context_or_default(context: Context | None) -> Context:
    """The context given, or this thread's own."""
    if context is not None:
        return context
    if _thread.context is None:
        _thread.context = Context()
    return _thread.context


def collected(text: Callable[[], str]) -> bool:
    """While `explain` runs: keeps the text, and the caller computes nothing."""
    if _thread.answers is None:
        return False
    _thread.answers.append(text())
    return True


def run(op: str, params: Structure, context: Context | None, kernel: str | None) -> None:
    """One operator: sizes its scratch and runs it. Errors: LinestateError."""
    where = context_or_default(context)
    size = c_int64()
    arguments = (byref(params), byref(where.struct), encoded(kernel))
    call(f"{op}_workspace_bytes", *arguments, byref(size))
    where.reserve(size.value)
    arguments = (byref(params), byref(where.struct), encoded(kernel))
    if not collected(lambda: text_of(f"{op}_explain", *arguments)):
        call(op, *arguments)


def explain(function: Callable[..., Any], /, *arguments: Any, **options: Any) -> str:
    """Which kernels `function(*arguments, **options)` would run, and why not the others.

    `function` is an operator or a backend's `forward`. Nothing is computed, and what the function
    would return is undefined memory, so it is thrown away. Errors: those of the function.
    """
    before, _thread.answers = _thread.answers, []
    try:
        function(*arguments, **options)
        return "".join(_thread.answers or [])
    finally:
        _thread.answers = before
