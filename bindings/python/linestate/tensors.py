"""Views of arrays: numpy's, DLPack's (torch and others), and the library's own memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from . import dtypes
from ._abi._dlpack import DlpackView, export, from_capsule
from ._abi._library import call
from ._abi._structs import ls_tensor
from .device import DeviceLike, Memory, StreamLike, device_codes, stream_handle, synchronize

MAX_RANK = 5

#: What operators take: a numpy array, a Tensor, or anything that exports DLPack.
TensorLike = Union["Tensor", NDArray[Any], Any]


class _Memory:
    """Memory of someone else, as numpy takes it; keeps its owner alive."""

    def __init__(self, interface: dict[str, Any], owner: object) -> None:
        self.__array_interface__ = interface
        self.owner = owner


class Tensor:
    """A strided view: pointer, dtype, sizes and strides. Copies nothing, keeps the owner alive.

    `dtype` is a name ("f32", "bf16", ...), `strides` count elements. `np.asarray(t)` (memory of the
    CPU) and `torch.from_dlpack(t)` share the memory. bf16, which numpy does not have, comes out as
    ml_dtypes.bfloat16 where that package is installed and as uint16 bits otherwise; `float32()`
    converts. `stream`: the one that writes it, where it is not the device's default stream; a
    DLPack export waits for it.
    """

    def __init__(self, struct: ls_tensor, owner: object, writable: bool = True) -> None:
        self.struct = struct
        self.owner = owner
        self.writable = writable
        self.stream: StreamLike = None

    @property
    def dtype(self) -> str:
        """Name of the element type."""
        return dtypes.NAMES[self.struct.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes in elements."""
        return tuple(self.struct.shape[: self.struct.rank])

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in elements."""
        return tuple(self.struct.stride[: self.struct.rank])

    @property
    def device(self) -> tuple[str, int]:
        """("cpu", 0) or ("cuda", index)."""
        kind = ("cpu", "cuda", "external")[self.struct.device_type]
        return kind, self.struct.device_index

    def _array(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        if self.struct.device_type != 0:
            raise BufferError(
                f"tensor: expected memory of the CPU, got {self.device[0]}: use to('cpu')"
            )
        size = dtypes.ITEM_BYTES[self.struct.dtype]
        raw = np.dtype(np.uint16) if dtype.kind == "V" or dtype.name == "bfloat16" else dtype
        interface = {
            "version": 3,
            "shape": self.shape,
            "strides": tuple(step * size for step in self.strides),
            "typestr": raw.str,
            "data": (self.struct.data or 0, not self.writable),
        }
        array = np.asarray(_Memory(interface, self.owner))
        return array if raw is dtype else array.view(dtype)

    def numpy(self) -> NDArray[Any]:
        """The same memory as a numpy array. Errors: BufferError for another device's memory."""
        return self._array(dtypes.numpy_dtype(self.struct.dtype))

    def bits(self) -> NDArray[np.uint16]:
        """The same memory of a bf16 tensor as uint16. Errors: TypeError for another dtype."""
        if self.struct.dtype != dtypes.BF16:
            raise TypeError(f"bits: expected bf16, got {self.dtype}")
        return self._array(np.dtype(np.uint16))

    def float32(self) -> NDArray[np.float32]:
        """A copy as f32, exact for f32, bf16 and f16."""
        if self.struct.dtype == dtypes.BF16:
            return (self.bits().astype(np.uint32) << 16).view(np.float32)
        return self.numpy().astype(np.float32)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.numpy()
        if dtype is not None and np.dtype(dtype) != array.dtype:
            if copy is False:
                raise ValueError(f"tensor: {self.dtype} as {np.dtype(dtype)} needs a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def copy_from(self, source: TensorLike, *, stream: StreamLike = None) -> Tensor:
        """Copies `source`, of the same dtype and shape, into this one, from any device to any.

        Both dense. Ordered on `stream`, of the CUDA side; host memory may be reused on return.
        Returns this tensor. Errors: InvalidArgumentError, ValueError when read-only.
        """
        target = output(self, "tensor").struct
        call("copy_tensor", target, tensor(source, "source").struct, stream_handle(stream))
        return self

    def to(self, device: DeviceLike, *, stream: StreamLike = None) -> Tensor:
        """A copy on `device`; see `copy_from`."""
        code = self.struct.dtype
        copy = empty(self.shape, dtypes.NAMES[code], device).copy_from(self, stream=stream)
        copy.stream = stream
        return copy

    def __dlpack__(self, **options: Any) -> object:
        """A DLPack capsule of the same memory. Options: as the array interface standard has
        them; for memory of a GPU it waits for `stream` of the tensor first.
        """
        if options.get("copy"):
            raise BufferError("tensor: exports no copies")
        device = options.get("dl_device")
        if device is not None and tuple(device) != self.__dlpack_device__():
            raise BufferError("tensor: exports only to its own device")
        if self.struct.device_type == 1 and options.get("stream") != -1:
            synchronize(self.device, self.stream)
        view = DlpackView(
            address=self.struct.data or 0,
            dtype=dtypes.DLPACK[self.struct.dtype],
            device=self.__dlpack_device__(),
            shape=list(self.shape),
            strides=list(self.strides),
            read_only=not self.writable,
            capsule=self.owner,
        )
        return export(view, options.get("max_version"))

    def __dlpack_device__(self) -> tuple[int, int]:
        kind = self.struct.device_type
        if kind not in (0, 1):
            raise BufferError("tensor: no DLPack device for external memory")
        return (1, 2)[kind], self.struct.device_index

    def __repr__(self) -> str:
        return f"Tensor({self.dtype}{list(self.shape)}, strides {self.strides}, {self.device[0]})"


def _struct(
    address: int, code: int, shape: Sequence[int], strides: Sequence[int], device: tuple[int, int]
) -> ls_tensor:
    if not 1 <= len(shape) <= MAX_RANK:
        raise ValueError(f"tensor: expected rank 1 to {MAX_RANK}, got {len(shape)}")
    struct = ls_tensor()
    struct.data, struct.dtype, struct.rank = address, code, len(shape)
    struct.device_type, struct.device_index = device
    struct.shape[: len(shape)] = list(shape)
    struct.stride[: len(strides)] = list(strides)
    return struct


def _from_numpy(array: NDArray[Any], name: str) -> Tensor:
    if not array.dtype.isnative:
        raise TypeError(f"{name}: expected native byte order, got {array.dtype.str}")
    try:
        code = dtypes.code_of(array.dtype)
    except TypeError as error:
        hint = "; wrap bits of bf16 in bf16()" if array.dtype == np.uint16 else ""
        raise TypeError(f"{name}: {error}{hint}") from None
    size = array.itemsize
    if any(step % size for step in array.strides):
        raise ValueError(f"{name}: strides {array.strides} are no multiples of {size} bytes")
    strides = [step // size for step in array.strides]
    struct = _struct(array.ctypes.data, code, array.shape, strides, (0, 0))
    return Tensor(struct, array, array.flags.writeable)


def _from_dlpack(exporter: Any, name: str) -> Tensor:
    view = from_capsule(exporter, name)
    if view.dtype not in dtypes.DLPACK:
        code, bits = view.dtype
        raise TypeError(f"{name}: DLPack type code {code} of {bits} bits is not supported")
    if view.device[0] not in (1, 2, 3, 13):
        raise TypeError(f"{name}: DLPack device type {view.device[0]} is not supported")
    kind = 1 if view.device[0] in (2, 13) else 0
    index = view.device[1] if kind else 0
    code = dtypes.DLPACK.index(view.dtype)
    struct = _struct(view.address, code, view.shape, view.strides, (kind, index))
    return Tensor(struct, view, not view.read_only)


def tensor(value: TensorLike, name: str = "tensor") -> Tensor:
    """The view of an array. No copy, whatever the strides.

    Errors: TypeError (no array, or a dtype the library does not have), ValueError (rank).
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray):
        return _from_numpy(value, name)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value, name)
    raise TypeError(f"{name}: expected an array, got {type(value).__name__}")


def given(value: TensorLike | None, name: str) -> Tensor | None:
    """The view, or None for an argument that is not given."""
    return None if value is None else tensor(value, name)


def output(value: TensorLike, name: str) -> Tensor:
    """The view of an array that is written. Errors: as `tensor`; ValueError when read-only."""
    view = tensor(value, name)
    if not view.writable:
        raise ValueError(f"{name}: expected writable memory, got a read-only array")
    return view


def indices(value: Any, name: str, dtype: Any = np.int32) -> Tensor:
    """An index array as it is; a list or a number becomes an array."""
    if isinstance(value, (Tensor, np.ndarray)) or hasattr(value, "__dlpack__"):
        return tensor(value, name)
    return _from_numpy(np.atleast_1d(np.asarray(value, dtype=dtype)), name)


def bf16(bits: NDArray[np.uint16]) -> Tensor:
    """uint16 bits read as bf16, the same memory. Errors: TypeError for another dtype."""
    if not isinstance(bits, np.ndarray) or bits.dtype != np.uint16:
        raise TypeError(
            f"bits: expected a numpy array of uint16, got {getattr(bits, 'dtype', bits)}"
        )
    view = _from_numpy(bits.view(np.float16), "bits")
    view.struct.dtype = dtypes.BF16
    return Tensor(view.struct, bits, bits.flags.writeable)


def to_bf16(values: Any) -> Tensor:
    """A new bf16 tensor: f32 values rounded to nearest even; NaN stays NaN."""
    word = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (word + 0x7FFF + ((word >> 16) & 1)) >> 16
    nan = (word & 0x7FFFFFFF) > 0x7F800000
    return bf16(np.where(nan, (word >> 16) | 0x40, rounded).astype(np.uint16))


def bytes_at(address: int, size: int, owner: object) -> Tensor:
    """`size` bytes of the CPU's memory as u8 [size]."""
    return Tensor(_struct(address, dtypes.code_of("u8"), (size,), (1,), (0, 0)), owner)


def empty(shape: Sequence[int], dtype: Any, device: DeviceLike = "cpu") -> Tensor:
    """A new dense tensor, contents undefined. Errors: UnsupportedError, ResourceExhaustedError."""
    code = dtypes.code_of(dtype)
    kind, index = device_codes(device)
    if kind == 0:
        if code == dtypes.BF16:
            return bf16(np.empty(shape, np.uint16))
        return _from_numpy(np.empty(shape, dtypes.numpy_dtype(code)), "empty")
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    elements = strides[0] * shape[0] if len(shape) else 0
    memory = Memory(elements * dtypes.ITEM_BYTES[code], device)
    return Tensor(_struct(memory.address, code, shape, strides, (kind, index)), memory)


def result(out: TensorLike | None, shape: Sequence[int], like: Tensor, dtype: Any = None) -> Tensor:
    """`out` to write to, or a new tensor where `like` lies and of its dtype, unless another is
    named.
    """
    if out is not None:
        return output(out, "out")
    return empty(shape, like.dtype if dtype is None else dtype, like.device)
