"""Arrays of numpy as the evaluator takes them: element type by its name in HLO, dims, bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hlo_opt._native import HloError

# Element types of HLO and their names in numpy and ml_dtypes.
_NAMES = {
    "pred": "bool",
    "s1": "int1",
    "s2": "int2",
    "s4": "int4",
    "s8": "int8",
    "s16": "int16",
    "s32": "int32",
    "s64": "int64",
    "u1": "uint1",
    "u2": "uint2",
    "u4": "uint4",
    "u8": "uint8",
    "u16": "uint16",
    "u32": "uint32",
    "u64": "uint64",
    "f4e2m1fn": "float4_e2m1fn",
    "f6e2m3fn": "float6_e2m3fn",
    "f6e3m2fn": "float6_e3m2fn",
    "f8e3m4": "float8_e3m4",
    "f8e4m3": "float8_e4m3",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "f8e8m0fnu": "float8_e8m0fnu",
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}
_OF_NUMPY = {name: dtype for dtype, name in _NAMES.items()}

# As what arrays of types below 8 bits cross: the evaluator packs them, numpy does not.
_WIDENED: dict[str, np.dtype[Any]] = {
    **dict.fromkeys(("s1", "s2", "s4"), np.dtype(np.int8)),
    **dict.fromkeys(("u1", "u2", "u4"), np.dtype(np.uint8)),
    **dict.fromkeys(("f4e2m1fn", "f6e2m3fn", "f6e3m2fn"), np.dtype(np.float32)),
}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy type of an element type of HLO.

    >>> numpy_dtype("s32")
    dtype('int32')
    """
    name = _NAMES[dtype]
    if hasattr(np, name):
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise HloError(f"arrays of {dtype} need the package ml_dtypes, which is not installed") from None
    if not hasattr(ml_dtypes, name):
        raise HloError(f"arrays of {dtype} need ml_dtypes.{name}, which ml_dtypes {ml_dtypes.__version__} lacks")
    known: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
    return known


def to_native(array: Any) -> tuple[str, list[int], bytes]:
    """An array, or what numpy takes for one, as element type, dims and bytes."""
    array = np.asarray(array)
    dtype = _OF_NUMPY.get(array.dtype.name)
    if dtype is None:
        raise HloError(f"expected an array of numbers, found the numpy type `{array.dtype}`")
    if dtype in _WIDENED:
        array = array.astype(_WIDENED[dtype])
    elif array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return dtype, list(array.shape), array.tobytes()


def from_native(dtype: str, dims: list[int], data: bytearray) -> np.ndarray[Any, Any]:
    """The inverse of `to_native`."""
    wanted = numpy_dtype(dtype)
    widened = _WIDENED.get(dtype)
    array = np.frombuffer(data, widened or wanted).reshape(dims)
    return array.astype(wanted) if widened else array
