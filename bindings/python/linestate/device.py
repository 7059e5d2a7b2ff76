"""Devices: their names, memory on them, streams."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import TypeAlias

from ._abi import _constants as c
from ._abi._library import Handle, call, create

#: "cpu", "cuda" (the first one), "cuda:1", or ("cuda", 1). "external" is somebody else's.
DeviceLike: TypeAlias = str | tuple[str, int]

TYPES = {"cpu": c.LS_CPU, "cuda": c.LS_CUDA, "external": c.LS_EXTERNAL}


def device_pair(device: DeviceLike) -> tuple[str, int]:
    """("cuda", 1) of any way to write it. Errors: ValueError."""
    if isinstance(device, str):
        name, _, index = device.partition(":")
        number = int(index) if index.isdecimal() else 0 if not index else -1
    else:
        name, number = device
    if name not in TYPES or number < 0:
        raise ValueError(f"device: expected cpu, cuda or cuda:N, got {device!r}")
    return name, number


def device_codes(device: DeviceLike) -> tuple[int, int]:
    """ls_device_type and index. Errors: ValueError."""
    name, index = device_pair(device)
    return TYPES[name], index


class Memory(Handle):
    """Bytes on a device, aligned to 256, contents undefined. Nothing waits when it ends: whoever
    lets go of memory that a stream still uses synchronises first.

    Errors: UnsupportedError (no such device), ResourceExhaustedError.
    """

    _destroy = "memory_destroy"

    def __init__(self, size: int, device: DeviceLike) -> None:
        super().__init__(create("memory_create", *device_codes(device), size))
        self.bytes = size

    @property
    def address(self) -> int:
        """Of the first byte; 0 when there are none."""
        data = c_void_p()
        call("memory_data", self.pointer, byref(data))
        return data.value or 0


def synchronize(device: DeviceLike, stream: StreamLike = None) -> None:
    """Waits for all work on a stream; None is the device's default stream.

    Errors: DeviceError with what went wrong in that work.
    """
    call("synchronize", *device_codes(device), stream_handle(stream))


class Stream(Handle):
    """A stream of its own, which waits for no other one. On the CPU it is only a name.

    Errors: UnsupportedError (no such device).
    """

    _destroy = "stream_destroy"

    def __init__(self, device: DeviceLike = "cuda") -> None:
        self.device = device_pair(device)
        super().__init__(create("stream_create", *device_codes(device)))

    @property
    def handle(self) -> int:
        """The cudaStream_t; 0 on the CPU."""
        handle = c_void_p()
        call("stream_handle", self.pointer, byref(handle))
        return handle.value or 0

    def synchronize(self) -> None:
        """Waits for all work on it. Errors: DeviceError."""
        synchronize(self.device, self)


#: A `Stream`, the handle of somebody else's (torch: `stream.cuda_stream`), None = the default one.
StreamLike: TypeAlias = Stream | int | None


def stream_handle(stream: StreamLike) -> int | None:
    """The handle; None for the default stream."""
    return (stream.handle if isinstance(stream, Stream) else stream) or None
