"""A batch cut into blocks of valid tokens: the one place where a mask is applied and bad values are set aside.

Padded `[batch, time]` arrays and packed ones with offsets come out alike: blocks of whole sequences that hold the
tokens under the mask, as floats, with the number of tokens that each sequence has left. Nothing the mask hides is ever
computed on.
"""

import functools
import math
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Int

from samepolicy.arrays import (
    Array,
    array_namespace,
    count_segments,
    is_torch,
    on_host,
    to_bool,
    to_float,
    to_numpy,
    view,
)
from samepolicy.errors import InputError, ShapeError

TOKENS_HOST, TOKENS_DEVICE = 1 << 17, 1 << 18
LIMITS = {"trainer_logp": (-math.inf, 0.0), "rollout_logp": (-math.inf, 0.0), "prob_diff": (0.0, 1.0)}
"""The smallest and the largest value that each of these columns can have."""
SIDES = ("trainer_logp", "rollout_logp")


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What was there, and what was left out of the means and why.

    Attributes:
        sequences: responses.
        empty_sequences: responses without a token under the mask.
        tokens: tokens under the mask.
        measured: those that enter the means: both log-probs finite and not above 0.
        nonfinite_trainer: trainer log-probs under the mask that are NaN or infinite.
        nonfinite_rollout: the same for the rollout.
        positive_trainer: trainer log-probs under the mask above 0, which no log-prob is.
        positive_rollout: the same for the rollout.
        zero_trainer: trainer log-probs of exactly 0; measured, but suspicious where the token is not certain.
        zero_rollout: the same for the rollout.
        missing: tokens under the mask without a value (NaN) on at least one side.
        unaligned: rollout tokens that have no partner among the trainer's ids.
        clamped: values that a framework's own definition clamped; 0 under our own names.
    """

    sequences: int = 0
    empty_sequences: int = 0
    tokens: int = 0
    measured: int = 0
    nonfinite_trainer: int = 0
    nonfinite_rollout: int = 0
    positive_trainer: int = 0
    positive_rollout: int = 0
    zero_trainer: int = 0
    zero_rollout: int = 0
    missing: int = 0
    unaligned: int = 0
    clamped: int = 0

    def __add__(self, other: Self) -> Self:
        """Counts of both together."""
        return type(self)(**{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)})


@dataclass(frozen=True)
class Block:
    """Valid tokens of some whole sequences.

    Attributes:
        columns: each column's values of the valid tokens, float [tokens].
        lengths: how many of them belong to each sequence, int [sequences].
        counts: what was seen on the way.
    """

    columns: dict[str, Array]
    lengths: Array
    counts: Counts


@dataclass(frozen=True)
class Batch:
    """Columns of one batch, padded or packed, checked for shape.

    Attributes:
        columns: each [batch, time], or [tokens] with offsets; `trainer_logp` and `rollout_logp` among them, or
            `prob_diff`.
        mask: 1 where the policy sampled the token, the columns' shape.
        offsets: where each sequence begins and the last ends, int [sequences + 1]; None where the columns are padded.
    """

    columns: Mapping[str, Array]
    mask: Array
    offsets: Any = None

    def __post_init__(self) -> None:
        """Refuse what is no number or cannot line up; nothing is ever broadcast."""
        columns = {name: numbers(name, column) for name, column in self.columns.items()}
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "mask", numbers("The mask", self.mask))
        shape = tuple(self.mask.shape)
        if len(shape) != (2 if self.offsets is None else 1):
            wanted = "[batch, time] without offsets" if self.offsets is None else "[tokens] with offsets"
            raise ShapeError(f"The mask must be {wanted}, but its shape is {list(shape)}; reshape it to match.")
        for name, column in self.columns.items():
            if tuple(column.shape) != shape:
                raise ShapeError(
                    f"Column {name!r} has shape {list(column.shape)}, but the mask has {list(shape)}; give both one "
                    "value per token (repeat a value per sequence over its tokens yourself)."
                )
        if self.offsets is not None:
            object.__setattr__(self, "offsets", to_offsets(self.offsets, shape[0]))

    def block(self, rows: slice, offsets: Any) -> Block:
        """The valid tokens of one cut."""
        mask = to_bool(view(self.mask[rows]))
        valid = mask.sum(-1) if offsets is None else count_segments(mask, offsets)
        return _set_aside({name: to_float(view(c[rows])[mask]) for name, c in self.columns.items()}, valid)

    def cuts(self) -> Iterator[tuple[slice, Any]]:
        """Where to cut blocks of whole sequences: rows or tokens, and the sequences' offsets (None where padded)."""
        size = TOKENS_HOST if on_host(self.mask) else TOKENS_DEVICE
        if self.offsets is None:
            batch, time = self.mask.shape
            step = max(1, size // max(time, 1))
            yield from ((slice(first, first + step), None) for first in range(0, batch, step))
            return
        offsets, first = self.offsets, 0
        while first < len(offsets) - 1:
            last = max(first + 1, int(np.searchsorted(offsets, offsets[first] + size, side="right")) - 1)
            yield slice(int(offsets[first]), int(offsets[last])), offsets[first : last + 1] - offsets[first]
            first = last


def _set_aside(columns: dict[str, Array], valid: Array) -> Block:
    """Count what is no log-prob and leave it out; the usual block has none and is passed on untouched."""
    sides = {name: columns[name] for name in SIDES if name in columns} or {"prob_diff": columns["prob_diff"]}
    xp = array_namespace(valid, *sides.values())
    tokens = next(iter(sides.values())).shape[0]
    empty = int(xp.count_nonzero(valid == 0))
    counts = Counts(sequences=valid.shape[0], empty_sequences=empty, tokens=tokens, measured=tokens)
    if tokens == 0:
        return Block(columns, valid, counts)
    counts = replace(counts, **_zeros(sides))
    good = [_within(v, *LIMITS[n]) for n, v in sides.items() if not _clean(v, *LIMITS[n])]
    if not good:
        return Block(columns, valid, counts)
    kept = functools.reduce(operator.and_, good)
    missing = int(xp.count_nonzero(xp.isnan(sum(sides.values()))))
    counts = replace(counts, measured=int(xp.count_nonzero(kept)), missing=missing, **_faults(sides))
    offsets = np.concatenate([[0], np.cumsum(to_numpy(valid))])
    return Block({n: c[kept] for n, c in columns.items()}, count_segments(kept, offsets), counts)


def _clean(values: Array, low: float, high: float) -> bool:
    """Whether every value is finite and within the limits; NaN fails both comparisons."""
    least = values.min()
    return bool(least > -math.inf) and bool(least >= low) and bool(values.max() <= high)


def _within(values: Array, low: float, high: float) -> Array:
    """Which values are finite and within the limits."""
    return array_namespace(values).isfinite(values) & (values >= low) & (values <= high)


def _zeros(sides: Mapping[str, Array]) -> dict[str, int]:
    """Exact zeros of each side's log-probs."""
    names = {n: n.removesuffix("_logp") for n in sides if n in SIDES}
    return {f"zero_{side}": int(array_namespace(sides[n]).count_nonzero(sides[n] == 0)) for n, side in names.items()}


def _faults(sides: Mapping[str, Array]) -> dict[str, int]:
    """Non-finite values of each side's log-probs, and values above 0."""
    found = {}
    for name in (n for n in SIDES if n in sides):
        side, values = name.removesuffix("_logp"), sides[name]
        xp = array_namespace(values)
        finite = xp.isfinite(values)
        found[f"nonfinite_{side}"] = values.shape[0] - int(xp.count_nonzero(finite))
        found[f"positive_{side}"] = int(xp.count_nonzero(finite & (values > 0)))
    return found


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
