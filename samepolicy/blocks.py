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

from samepolicy.arrays import (
    Array,
    array_namespace,
    count_segments,
    count_true,
    on_host,
    to_bool,
    to_float,
    to_numpy,
    view,
)
from samepolicy.errors import ShapeError
from samepolicy.inputs import numbers, to_offsets

TOKENS_HOST, TOKENS_DEVICE = 1 << 17, 1 << 18
"""Tokens of a block. On the host one thread does them all: two wait for the interpreter more than they gain."""
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
        return _set_aside({name: view(c[rows])[mask] for name, c in self.columns.items()}, valid)

    def blocks(self) -> Iterator[Block]:
        """The valid tokens, cut by cut."""
        for cut in self.cuts():
            yield self.block(*cut)

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
    tokens = next(iter(sides.values())).shape[0]
    empty = int(count_true(valid == 0))
    counts = Counts(sequences=valid.shape[0], empty_sequences=empty, tokens=tokens, measured=tokens, **_zeros(sides))
    if tokens == 0:
        return Block(_floats(columns), valid, counts)
    good = [_within(v, *LIMITS[n]) for n, v in sides.items() if not _clean(v, *LIMITS[n])]
    if not good:
        return Block(_floats(columns), valid, counts)
    kept = functools.reduce(operator.and_, good)
    total = sum(sides.values())
    missing = int(count_true(array_namespace(total).isnan(total)))
    counts = replace(counts, measured=int(count_true(kept)), missing=missing, **_faults(sides))
    offsets = np.concatenate([[0], np.cumsum(to_numpy(valid))])
    return Block(_floats({n: c[kept] for n, c in columns.items()}), count_segments(kept, offsets), counts)


def _floats(columns: Mapping[str, Array]) -> dict[str, Array]:
    """The columns in the widest float that there is."""
    return {name: to_float(column) for name, column in columns.items()}


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
    return {f"zero_{side}": int(count_true(sides[n] == 0)) for n, side in names.items()}


def _faults(sides: Mapping[str, Array]) -> dict[str, int]:
    """Non-finite values of each side's log-probs, and values above 0."""
    found = {}
    for name in (n for n in SIDES if n in sides):
        side, values = name.removesuffix("_logp"), sides[name]
        finite = array_namespace(values).isfinite(values)
        found[f"nonfinite_{side}"] = values.shape[0] - int(count_true(finite))
        found[f"positive_{side}"] = int(count_true(finite & (values > 0)))
    return found
