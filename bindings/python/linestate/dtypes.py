"""Element types, by the names that the library's messages use."""

from __future__ import annotations

from typing import Any

import numpy as np

# In the order of ls_dtype.
NAMES = ("f32", "bf16", "f16", "f64", "i32", "i64", "u8", "bool")
_NUMPY = ("float32", "bfloat16", "float16", "float64", "int32", "int64", "uint8", "bool")
ITEM_BYTES = (4, 2, 2, 8, 4, 8, 1, 1)
BF16 = 1

# (DLPack type code, bits) of each.
DLPACK = ((2, 32), (4, 16), (2, 16), (2, 64), (0, 32), (0, 64), (1, 8), (6, 8))


def code_of(dtype: Any) -> int:
    """The ls_dtype of a name ("bf16", "bfloat16") or of a numpy dtype.

    Errors: TypeError listing the names.
    """
    name = dtype if isinstance(dtype, str) else np.dtype(dtype).name
    if name in NAMES:
        return NAMES.index(name)
    if name in _NUMPY:
        return _NUMPY.index(name)
    raise TypeError(f"dtype: expected one of {', '.join(NAMES)}, got {dtype}")


def numpy_dtype(code: int) -> np.dtype[Any]:
    """Of the elements as numpy holds them: bf16 as ml_dtypes.bfloat16, and without that package as
    uint16, its bits.
    """
    if code != BF16:
        return np.dtype(_NUMPY[code])
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype(np.uint16)
    found: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return found
