"""Views: numpy, DLPack both ways, bf16, and what must be refused."""

from __future__ import annotations

import gc
import importlib.util
import weakref
from typing import Any

import linestate as ls
import numpy as np
import pytest

HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None


class Exporter:
    """Someone else's array: only DLPack shows what it is. Old exporters know no versions.

    The capsules are the library's own, because numpy's depend on its version.
    """

    def __init__(self, array: Any, versioned: bool) -> None:
        self.array, self.versioned = ls.tensor(array), versioned

    def __dlpack__(self, **options: Any) -> Any:
        if options and not self.versioned:
            raise TypeError("no such option")
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


@pytest.mark.parametrize("versioned", [False, True])
@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i4", "i8", "u1", "?"])
def test_dlpack_in_shares_memory(versioned: bool, dtype: str) -> None:
    array = np.arange(24).astype(dtype).reshape(4, 6)[::2, 1::2]
    view = ls.tensor(Exporter(array, versioned))
    assert view.shape == (2, 3) and view.strides == (12, 2)
    assert np.array_equal(view.numpy(), array) and np.shares_memory(view.numpy(), array)
    array[...] = 1
    assert np.array_equal(view.numpy(), array)


def test_dlpack_out_shares_memory_and_keeps_it() -> None:
    tensor = ls.empty((3, 5), "f32")
    array = np.from_dlpack(tensor)  # type: ignore[arg-type]
    tensor.numpy()[...] = 2.5
    assert (array == 2.5).all() and np.shares_memory(array, tensor.numpy())
    del tensor
    gc.collect()
    assert (array == 2.5).all()
    bits = np.from_dlpack(ls.empty((2, 0, 3), "i64"))  # type: ignore[arg-type]
    assert bits.shape == (2, 0, 3)


def test_bf16_goes_through_dlpack() -> None:
    values = np.array([[1.0, -2.5], [np.inf, 3.140625]], np.float32)
    tensor = ls.to_bf16(values)
    again = ls.tensor(Exporter(tensor, versioned=True))
    assert again.dtype == "bf16" and np.array_equal(again.float32(), values)
    assert np.shares_memory(again.bits(), tensor.bits())
    again.bits()[0, 0] = 0x4000
    assert tensor.float32()[0, 0] == 2.0


def test_bf16_rounds_to_nearest_even() -> None:
    words = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800001, 0xFF800000])
    bits = ls.to_bf16(words.astype(np.uint32).view(np.float32)).bits()
    assert bits.tolist()[:4] == [0x3F80, 0x3F82, 0x3F81, 0x7F80]
    assert bits[4] & 0x7FFF > 0x7F80 and bits[5] == 0xFF80


def test_bf16_in_numpy() -> None:
    tensor = ls.to_bf16([1.0, 2.0])
    name = "bfloat16" if HAS_ML_DTYPES else "uint16"
    assert tensor.numpy().dtype.name == name
    assert np.shares_memory(tensor.numpy(), tensor.bits())
    if HAS_ML_DTYPES:
        again = ls.tensor(tensor.numpy())
        assert again.dtype == "bf16" and np.shares_memory(again.bits(), tensor.bits())
    with pytest.raises(TypeError, match="wrap bits of bf16"):
        ls.tensor(tensor.bits())


def test_a_view_keeps_its_owner() -> None:
    array = np.ones(4, np.float32)
    gone = weakref.ref(array)
    view = ls.tensor(array)
    del array
    gc.collect()
    assert gone() is not None and view.numpy()[0] == 1.0
    del view
    gc.collect()
    assert gone() is None


def test_capsules_are_freed_once() -> None:
    array = np.ones(4, np.float32)
    gone = weakref.ref(array)
    for _ in range(3):
        ls.tensor(Exporter(array, versioned=True))
        ls.tensor(Exporter(array, versioned=False))
    del array
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.zeros(3, np.complex64), "expected one of f32"),
        (np.zeros(3, ">f4"), "native byte order"),
        (np.zeros((1,) * 6, np.float32), "rank 1 to 5"),
        (np.zeros((), np.float32), "rank 1 to 5"),
        ([1.0, 2.0], "expected an array, got list"),
        (np.zeros(3, np.dtype([("a", "f4"), ("b", "i1")]))["a"], "no multiples of 4"),
    ],
)
def test_refused(value: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"x: .*{message}|tensor: .*{message}"):
        ls.tensor(value, "x")


@pytest.mark.parametrize("dtype", ["f4", "f2", "f8", "i4", "i8", "u1"])
def test_dlpack_of_numpy(dtype: str) -> None:
    array = np.arange(24).astype(dtype).reshape(4, 6)[::2, 1::2]
    view = ls.tensor(Foreign(array))
    assert np.shares_memory(view.numpy(), array) and np.array_equal(view.numpy(), array)


class Foreign:
    """A numpy array behind its DLPack interface, as this numpy has it."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


def test_read_only_needs_a_version() -> None:
    array = np.zeros(3, np.float32)
    array.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        ls.tensor(Exporter(array, versioned=False))


def test_an_export_lives_as_long_as_its_reader() -> None:
    for consumed in (True, False):
        array = np.ones(4, np.float32)
        gone = weakref.ref(array)
        view = ls.tensor(array)
        reader = np.from_dlpack(view) if consumed else view.__dlpack__()  # type: ignore[arg-type]
        del array, view
        gc.collect()
        assert gone() is not None
        del reader
        gc.collect()
        assert gone() is None


def test_read_only_exports_are_no_outputs() -> None:
    array = np.zeros((2, 1, 16), np.float32)
    array.flags.writeable = False
    view = ls.tensor(Exporter(array, versioned=True))
    assert not view.writable and not view.numpy().flags.writeable
    with pytest.raises(ValueError, match="out: expected writable"):
        ls.gated_rms_norm(array, array, array[0, 0], out=Exporter(array, versioned=True))


def test_asarray_of_a_tensor_does_not_copy() -> None:
    tensor = ls.empty((2, 2), "f32")
    tensor.numpy()[...] = 4
    assert np.shares_memory(np.asarray(tensor), tensor.numpy())
    assert np.asarray(tensor, np.float64).dtype == np.float64
