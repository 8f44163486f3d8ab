"""What comes in at the door: arrays of real numbers and offsets, taken as they are meant or refused in one sentence."""

from typing import Any

import numpy as np
from jaxtyping import Int

from samepolicy.arrays import Array, is_torch, to_numpy
from samepolicy.errors import InputError, ShapeError


def numbers(name: str, value: Array) -> Array:
    """A torch tensor or NumPy array of real numbers as it is, and nested lists of them as NumPy.

    Raises:
        ShapeError: lists of different lengths.
        InputError: text, dates, complex numbers and whatever else is no array of real numbers.

    >>> numbers("mask", [[1, 0]])
    array([[1, 0]])
    """
    if is_torch(value):
        real = not value.dtype.is_complex
    else:
        value = _as_numpy(name, value)
        bfloat16 = value.dtype.kind == "V" and value.dtype.type is not np.void
        real = value.dtype.kind in "biuf" or bfloat16
    if not real:
        raise InputError(f"{name} must hold real numbers, but it is of type {value.dtype}; give an array of floats.")
    return value


def _as_numpy(name: str, value: Any) -> np.ndarray:
    """NumPy for what is no tensor; a masked or missing (None) entry is NaN."""
    if isinstance(value, np.ma.MaskedArray):
        filled: np.ndarray = np.ma.filled(value.astype(np.float64), np.nan)
        return filled
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ShapeError(f"{name} is a list of lists of different lengths; pad it, or pack it.") from error
    try:
        return array.astype(np.float64) if array.dtype.kind == "O" else array
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must hold real numbers, one for each place ({error}); give an array.") from error


def to_offsets(offsets: Any, tokens: int) -> Int[np.ndarray, " sequences_and_1"]:
    """Offsets as int64 in host memory, checked to cut exactly `tokens` packed values.

    Raises:
        ShapeError: offsets that are no whole numbers, do not rise from 0, or do not end at `tokens`.

    >>> to_offsets([0, 2, 2, 3], 3).tolist()
    [0, 2, 2, 3]
    """
    found = to_numpy(numbers("offsets", offsets))
    whole = found.dtype.kind in "iuf" and bool((found == np.trunc(found)).all())
    good = whole and found.ndim == 1 and len(found) > 0 and found[0] == 0 and found[-1] == tokens
    if not good or (found[1:] < found[:-1]).any():
        shown = f"they are {found[:4]} … {found[-1:]}" if found.ndim == 1 else f"their shape is {list(found.shape)}"
        raise ShapeError(
            f"Offsets must be whole numbers that rise from 0 to the number of packed tokens ({tokens}), but {shown}; "
            "give where each sequence begins and the last ends (cu_seqlens)."
        )
    return found.astype(np.int64)
