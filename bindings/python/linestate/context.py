"""Where and how operators run: threads, scratch memory, error block; and the call itself."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from ctypes import Structure, byref, c_int32, c_int64, c_uint32, sizeof
from typing import Any, TypedDict

from ._abi import _constants as c
from ._abi._library import call, encoded, text_of
from ._abi._structs import ls_context, ls_device_status
from .device import DeviceLike, Memory, StreamLike, device_codes, stream_handle, synchronize
from .tensors import Tensor, bytes_at, empty

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
    """Sticky error block that operators write: what they noticed in data nobody checked before.

    device: where the operators run. Of a GPU, what is asked waits for the work queued on `stream`,
    None = the default one.
    """

    def __init__(self, device: DeviceLike = "cpu", *, stream: StreamLike = None) -> None:
        size = sizeof(ls_device_status)
        self._buffer, address = _aligned(size)
        self._block = ls_device_status.from_address(address)
        self._host = bytes_at(address, size, self._buffer)
        self._device: Tensor | None = None
        self._stream = stream
        if device_codes(device) != (c.LS_CPU, 0):
            self._device = empty((size,), "u8", device)
            address = self._device.struct.data
        self.address = address
        self.reset()

    def reset(self) -> None:
        """Back to the clean state."""
        call("device_status_reset", byref(self._block))
        if self._device is not None:
            self._device.copy_from(self._host, stream=self._stream)

    def _read(self) -> Any:
        if self._device is not None:
            self._host.copy_from(self._device, stream=self._stream)
        return byref(self._block)

    def flags(self) -> set[str]:
        """Names of the raised flags, as in `FLAGS`."""
        raised = c_uint32()
        call("device_status_flags", self._read(), byref(raised))
        return {name for name, bit in FLAGS.items() if raised.value & bit}

    def row(self, flag: str) -> int:
        """Lowest row that raised the flag, -1 when none did. Errors: KeyError."""
        row = c_int32()
        call("device_status_row", self._read(), FLAGS[flag], byref(row))
        return row.value

    def overflow(self) -> tuple[int, int]:
        """(slot, layer) of the first "state_overflow"; (-1, -1) when there was none."""
        slot, layer = c_int32(), c_int32()
        call("device_status_overflow", self._read(), byref(slot), byref(layer))
        return slot.value, layer.value

    def describe(self) -> str:
        """One line a raised flag; empty when clean."""
        return text_of("device_status_describe", self._read())


class Context:
    """How calls run. One context serves one call at a time; threads use contexts of their own.

    device: where; all tensors of a call lie there. stream: of a GPU, None = the default one; calls
    return when their work is queued on it.
    num_threads: CPU threads, 0 = all that OpenMP offers. Never changes a bit of a result.
    check_finite: raise the flag "non_finite" in `status`; reads every output once.
    strict: a fallback to a slower kernel is an UnsupportedError.
    The scratch memory grows to what a call needs, and stays; so `reserve` before a graph is
    captured.
    """

    def __init__(
        self,
        *,
        device: DeviceLike = "cpu",
        stream: StreamLike = None,
        num_threads: int = 0,
        check_finite: bool = False,
        strict: bool = False,
        status: DeviceStatus | None = None,
    ) -> None:
        self.struct = ls_context()
        self.struct.struct_size = sizeof(ls_context)
        self.struct.device_type, self.struct.device_index = device_codes(device)
        self.struct.stream = stream_handle(stream)
        self.struct.num_threads = num_threads
        self.struct.check_finite = int(check_finite)
        self.struct.strict = int(strict)
        self.device = device
        self.stream = stream
        self.status = status
        if status is not None:
            block = ctypes.cast(status.address, ctypes.POINTER(ls_device_status))
            self.struct.status = block
        self._scratch: Any = None

    def reserve(self, size: int) -> None:
        """Scratch of at least `size` bytes, so that later calls allocate nothing."""
        if size <= self.struct.workspace_bytes:
            return
        if self.struct.device_type == c.LS_CUDA:
            before = self._scratch
            self._scratch = Memory(size, self.device)
            self.struct.workspace = self._scratch.address
            if before is not None:  # work that uses it may still run
                synchronize(self.device, self.stream)
        else:
            self._scratch, self.struct.workspace = _aligned(size)
        self.struct.workspace_bytes = size


class CallOptions(TypedDict, total=False):
    """Keyword options of every operator.

    context: None = the thread's own, which runs on the CPU. kernel: None = the best.
    """

    context: Context | None
    kernel: str | None


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


def run(op: str, params: Structure, options: Any) -> None:
    """One operator: sizes its scratch and runs it. `options`: those of `CallOptions` among others.

    Errors: LinestateError.
    """
    where = context_or_default(options.get("context"))
    name = encoded(options.get("kernel"))
    size = c_int64()
    call(f"{op}_workspace_bytes", byref(params), byref(where.struct), name, byref(size))
    where.reserve(size.value)
    arguments = (byref(params), byref(where.struct), name)
    if not collected(lambda: text_of(f"{op}_explain", *arguments)):
        call(op, *arguments)


def checked(shape: type, call_of: Any) -> Any:
    """The keyword arguments of a call, which are to be those of the TypedDict `shape`.

    Errors: TypeError naming what is missing or not known.
    """
    known: Any = shape
    missing = sorted(known.__required_keys__ - call_of.keys())
    extra = sorted(call_of.keys() - known.__required_keys__ - known.__optional_keys__)
    if missing:
        raise TypeError(f"{shape.__name__}: missing {', '.join(missing)}")
    if extra:
        raise TypeError(f"{shape.__name__}: unexpected {', '.join(extra)}")
    return call_of


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
