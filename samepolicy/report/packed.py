"""Arrays inside a JSON value: base64 of their bytes, in the form that plotly reads, too."""

import base64
from typing import Any

import numpy as np

KINDS = {
    "f8": np.float64,
    "f4": np.float32,
    "i1": np.int8,
    "u1": np.uint8,
    "u2": np.uint16,
    "i4": np.int32,
    "u4": np.uint32,
}


def packed(values: Any, dtype: str = "f4", *, constants: bool = True) -> dict[str, Any]:
    """An array as JSON: {"dtype", "bdata"} with "shape" where it has two dimensions, or one value and how often.

    Args:
        values: numbers, any shape up to two dimensions; NaN stays NaN in f4.
        dtype: f8, f4, i1, u1, u2, i4 or u4, little-endian; numbers are rounded to it, and what f4 cannot
            hold becomes infinite.
        constants: whether an array of one value may be stored as that value.

    Returns:
        A mapping for `json.dumps`; {"constant", "count"} where all values of more than one are the same.

    >>> packed([1, 2, 258], "u2")
    {'dtype': 'u2', 'bdata': 'AQACAAIB'}
    >>> packed([5, 5, 5], "u1")
    {'constant': 5, 'count': 3}
    """
    array = np.asarray(values)
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(array, dtype=np.dtype(KINDS[dtype]).newbyteorder("<"))
    if (
        constants
        and array.ndim == 1
        and len(flat) > 1
        and not np.isinf(flat[0])
        and ((flat == flat[0]) | (np.isnan(flat) & np.isnan(flat[0]))).all()
    ):
        value = flat[0].item()
        return {"constant": None if np.isnan(value) else value, "count": len(flat)}
    found = {"dtype": dtype, "bdata": base64.b64encode(flat.tobytes()).decode("ascii")}
    return found if array.ndim < 2 else found | {"shape": ", ".join(map(str, array.shape))}


def unpacked(value: dict[str, Any]) -> np.ndarray:
    """The array that `packed` was given, in the dtype that it was packed in.

    >>> unpacked(packed([[1.5, 2.5]])).tolist()
    [[1.5, 2.5]]
    """
    if "constant" in value:
        constant = np.nan if value["constant"] is None else value["constant"]
        return np.full(value["count"], constant)
    dtype = np.dtype(KINDS[value["dtype"]]).newbyteorder("<")
    flat = np.frombuffer(base64.b64decode(value["bdata"]), dtype=dtype)
    return flat.reshape([int(n) for n in value["shape"].split(",")]) if "shape" in value else flat
