"""From what a caller hands over (lists, NumPy, torch) to the packed columns of a run, checked at this one door."""

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from samepolicy.arrays import Ragged, offsets_of
from samepolicy.errors import InputError, MaskError, ShapeError
from samepolicy.records.schema import COLUMNS, Column, Dtype

Packed: TypeAlias = Ragged | np.ndarray
"""A column of a run: `Ragged` where each response has a list of values, an array [responses] where it has one."""


def to_numpy(value: Any, name: str = "an array") -> np.ndarray:
    """A NumPy array of a list, an array or a torch tensor on any device; half precision becomes float32.

    >>> to_numpy(np.ones(2, dtype=np.float16)).dtype
    dtype('float32')
    """
    if hasattr(value, "detach"):
        tensor = value.detach().cpu()
        half = tensor.is_floating_point() and tensor.element_size() < 4
        return np.asarray((tensor.float() if half else tensor).numpy())
    try:
        masked = isinstance(value, np.ma.MaskedArray)
        array = np.asarray(value.astype(float).filled(np.nan) if masked else value)
    except ValueError as error:
        raise ShapeError(
            f"A list in {name} has entries of different shapes; give one number for each place."
        ) from error
    half = array.dtype.kind in "fV" and array.dtype.itemsize < 4 and array.dtype.names is None
    return array.astype(np.float32) if half else array


def pack(name: str, value: Any) -> Packed:
    """One column as a run keeps it: packed, and of the dtype that the schema says.

    Args:
        name: the column's name; a name that the schema does not know is taken by its shape.
        value: `Ragged`, a list of sequences (lists, NumPy or torch), or one value per response.

    Returns:
        `Ragged` for a column of lists, an array [responses] for one value per response.

    Raises:
        ShapeError: lists where single values belong, or the reverse.
        MaskError: a mask with other values than 0 and 1.
        InputError: values that are not of the column's dtype.

    >>> pack("mask", [[1, 0], [1]]).values
    array([ True, False,  True])
    """
    nested = _is_nested(name, value)
    column = COLUMNS.get(name) or Column(name, "token" if nested else "response", "any", "")
    if column.spread and not nested:
        return _typed(name, _singles(name, value), column.dtype)
    if nested == (column.kind == "response") and len(value):
        needs = "one list of values" if column.kind != "response" else "one single value"
        raise ShapeError(f"Column {name} must hold {needs} for each response; give it in that form.")
    if column.kind == "response":
        return _typed(name, _singles(name, value), column.dtype)
    ragged = value if isinstance(value, Ragged) else _ragged(name, value)
    _check_width(column, ragged.values)
    return ragged.with_values(_typed(name, ragged.values, column.dtype))


def unpad(mask: Any, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Cut right padding: padded [batch, time] arrays become packed columns, `mask` among them.

    A row runs to its last position with mask 1. Masked positions before that are kept, with mask 0.

    Args:
        mask: 0 or 1, any dtype [batch, time].
        columns: [batch, time] or [batch, time, k] arrays per token, [batch] per response, and lists of own length.

    Returns:
        Columns for `pack`.

    Raises:
        ShapeError: arrays that are not shaped like the mask; [batch, 1] is never stretched to [batch, time].
        MaskError: a mask with other values than 0 and 1.
    """
    padded = to_numpy(mask)
    if padded.ndim != 2:
        raise ShapeError(f"The mask must be [batch, time], but its shape is {list(padded.shape)}.")
    valid = _typed("mask", padded, "bool")
    ends = np.where(valid.any(axis=1), valid.shape[1] - _first(valid[:, ::-1]), 0)
    keep = np.arange(valid.shape[1]) < ends[:, None]
    offsets = offsets_of(ends)
    cut = {name: _cut(name, value, keep, offsets) for name, value in columns.items()}
    return {**cut, "mask": Ragged(valid[keep], offsets)}


def _first(valid: np.ndarray) -> np.ndarray:
    """Position of the first true value of each row (0 where there is none)."""
    return valid.argmax(axis=1) if valid.shape[1] else np.zeros(len(valid), dtype=np.int64)


def _cut(name: str, value: Any, keep: np.ndarray, offsets: np.ndarray) -> Any:
    """One padded column, cut to the kept positions; a column of another kind as it is."""
    column = COLUMNS.get(name)
    if column is not None and column.kind == "own length":
        if getattr(value, "ndim", 1) != 1:
            raise ShapeError(
                f"Column {name} has lengths of its own that the mask does not tell; give it as a list without padding."
            )
        return value
    if isinstance(value, Ragged):
        return value
    array = to_numpy(value, name)
    if array.ndim < 2:
        return array
    if array.shape[:2] != keep.shape:
        raise ShapeError(
            f"Column {name} has shape {list(array.shape)}, but the mask has {list(keep.shape)}; "
            "shapes must be equal, since stretching one to the other would invent values."
        )
    return Ragged(array[keep], offsets)


def _is_nested(name: str, value: Any) -> bool:
    """Whether the value holds a list per response rather than a single value."""
    if isinstance(value, Ragged) or getattr(value, "ndim", 1) > 1:
        return True
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__") or getattr(value, "ndim", 1) == 0:
        raise ShapeError(
            f"Column {name} must be a list or an array with one entry per response; a lone value is neither."
        )
    first: Any = next(iter(value), 0)
    return isinstance(first, list | tuple) or np.ndim(first) > 0


def _singles(name: str, value: Any) -> np.ndarray:
    """One value per response as an array; None stays, as the mark of a missing value."""
    tensors = isinstance(value, list | tuple) and hasattr(next(iter(value), None), "detach")
    array = to_numpy([to_numpy(v)[()] for v in value] if tensors else [] if isinstance(value, Ragged) else value, name)
    if array.ndim != 1:
        raise ShapeError(f"Column {name} must hold one single value for each response, but its shape is {array.shape}.")
    return array


def _ragged(name: str, value: Any) -> Ragged:
    """A list of sequences, packed."""
    rows = [to_numpy(row, name) for row in value]
    model = next((row for row in rows if row.size), None)
    for i, row in enumerate(rows):
        if row.ndim == 0 or (model is not None and row.size and row.shape[1:] != model.shape[1:]):
            raise ShapeError(f"Sequence {i} of column {name} is not a list like the others; its shape is {row.shape}.")
    return Ragged.from_lists(rows)


def _check_width(column: Column, values: np.ndarray) -> None:
    """Refuse token values of other dimensions than the column has."""
    if not len(values):
        return
    allowed = (1, 2) if column.name not in COLUMNS else (2,) if column.wide else (1,)
    if values.ndim not in allowed or not values.size:
        form = "k values, k at least 1," if column.wide else "one value"
        raise ShapeError(f"Column {column.name} must hold {form} per token, but a token has {list(values.shape[1:])}.")


def _typed(name: str, values: np.ndarray, dtype: Dtype) -> np.ndarray:
    """The values in the column's dtype, or an error that names the column."""
    if dtype == "bool":
        return _booleans(name, values)
    if dtype == "str" or (dtype in ("label", "any") and values.dtype.kind in "UTO" and _all_text(values)):
        return _strings(name, values)
    if dtype in ("int", "label") or (dtype == "any" and values.dtype.kind in "iu"):
        return _integers(name, values)
    if dtype == "any" and values.dtype.kind == "b":
        return values
    return _floats(name, values)


def _booleans(name: str, values: np.ndarray) -> np.ndarray:
    """A mask of any dtype as booleans."""
    if values.dtype.kind == "b":
        return values
    good = (values == 0) | (values == 1)
    if not np.all(good):
        bad = values[np.logical_not(good)].ravel()[0]
        raise MaskError(
            f"{name} holds {bad}, but a mask holds only 0 and 1; give the weights as a column of their own."
        )
    return values.astype(bool)


def _integers(name: str, values: np.ndarray) -> np.ndarray:
    """Whole numbers of any dtype as int64."""
    if values.dtype.kind in "bi" or values.size == 0:
        return values.astype(np.int64, copy=False)
    if values.dtype.kind in "uf" and (np.trunc(values) == values).all() and (np.abs(values) < 2.0**63).all():
        return values.astype(np.int64)
    raise InputError(f"Column {name} must hold whole numbers below 2**63, one for each place, none of them missing.")


def _floats(name: str, values: np.ndarray) -> np.ndarray:
    """Numbers as float32 where they are, else as float64; None becomes NaN."""
    if values.dtype in (np.float32, np.float64):
        return values
    if values.dtype.kind in "biufO":
        try:
            return values.astype(np.float64)
        except (TypeError, ValueError, OverflowError):
            pass
    raise InputError(f"Column {name} must hold numbers, but its values are of type {values.dtype}.")


def _all_text(values: np.ndarray) -> bool:
    """Whether an array holds text (or missing values) only."""
    return values.dtype.kind in "UT" or (values.size > 0 and all(v is None or isinstance(v, str) for v in values.flat))


def _strings(name: str, values: np.ndarray) -> np.ndarray:
    """Text as an object array of str; None marks a missing value."""
    if not (_all_text(values) or values.size == 0):
        raise InputError(f"Column {name} must hold text, but its values are of type {values.dtype}.")
    strings = np.empty(values.size, dtype=object)
    strings[:] = [None if v is None else str(v) for v in values.flat]
    return strings.reshape(values.shape)
