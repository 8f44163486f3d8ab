"""One code for NumPy and torch, and one shape for ragged data: packed values with offsets.

Everything samepolicy computes per token works on packed tokens: the values of all sequences one after another,
with `offsets` saying where each begins. Padded `[batch, time]` arrays and a trainer's `cu_seqlens` layout both
become that at the door, so no formula ever meets padding.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Self, TypeAlias

import array_api_compat
import array_api_compat.numpy as _numpy
import numpy as np
from jaxtyping import Bool, Float, Int

from samepolicy.errors import MaskError, ShapeError

Array: TypeAlias = Any
"""A NumPy array or a torch tensor; shapes and dtypes are stated with jaxtyping around it."""

UNTHREADED = 8192
"""Length of a dot product that BLAS does not share among threads."""


def array_namespace(*arrays: Array) -> ModuleType:
    """The array-API namespace (NumPy's or torch's) that the arrays belong to."""
    if {*map(type, arrays)} == {np.ndarray}:
        return _numpy
    return array_api_compat.array_namespace(*arrays)


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths, packed: sequence i is `values[offsets[i]:offsets[i + 1]]`.

    Attributes:
        values: the tokens of all sequences one after another, [tokens] or [tokens, k].
        offsets: where each sequence begins, and the end of the last, int64 [sequences + 1].

    >>> r = Ragged.from_lists([[1, 2, 3], [], [4]])
    >>> len(r), r.lengths.tolist(), r[0].tolist()
    (3, [3, 0, 1], [1, 2, 3])
    """

    values: np.ndarray
    offsets: np.ndarray

    def __post_init__(self) -> None:
        """Refuse offsets that do not cut the values."""
        good = self.offsets.ndim == 1 and len(self.offsets) > 0 and self.offsets[0] == 0
        if not (good and self.offsets[-1] == len(self.values) and (np.diff(self.offsets) >= 0).all()):
            raise ShapeError(
                f"Offsets must rise from 0 to the number of values ({len(self.values)}), "
                f"but they are {self.offsets[:3]} … {self.offsets[-1:]}."
            )

    @classmethod
    def from_lists(cls, sequences: Iterable[Sequence[Any] | np.ndarray], dtype: Any = None) -> Self:
        """Pack a list of sequences; an empty list gives no sequence at all."""
        rows = [np.asarray(s, dtype=dtype) for s in sequences]
        offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])]).astype(np.int64)
        filled = [r for r in rows if len(r)]
        values = np.concatenate(filled) if filled else np.zeros(0, dtype=dtype or np.float64)
        return cls(values, offsets)

    @classmethod
    def concat(cls, parts: Sequence["Ragged"]) -> Self:
        """Put the sequences of several parts one after another."""
        lengths = np.concatenate([p.lengths for p in parts])
        return cls(np.concatenate([p.values for p in parts]), offsets_of(lengths))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each sequence, int64 [sequences]."""
        return np.diff(self.offsets)

    def __len__(self) -> int:
        """Number of sequences."""
        return len(self.offsets) - 1

    def __getitem__(self, index: int | np.integer) -> np.ndarray:
        """The tokens of one sequence, as a view."""
        i = range(len(self))[index]
        view: np.ndarray = self.values[self.offsets[i] : self.offsets[i + 1]]
        return view

    def __iter__(self) -> Iterator[np.ndarray]:
        """Each sequence in turn, as views."""
        return (self[i] for i in range(len(self)))

    def take(self, indices: np.ndarray) -> Self:
        """The sequences at these indices (or where a boolean array is true), in that order."""
        chosen = np.arange(len(self))[indices]
        lengths = self.lengths[chosen]
        offsets = offsets_of(lengths)
        inside = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
        source = np.repeat(self.offsets[:-1][chosen], lengths) + inside
        return replace(self, values=self.values[source], offsets=offsets)

    def with_values(self, values: np.ndarray) -> Self:
        """The same cuts around other values."""
        return replace(self, values=values)


def offsets_of(lengths: Int[np.ndarray, " sequences"]) -> Int[np.ndarray, " sequences_and_1"]:
    """Where each sequence begins in packed values, and the end of the last.

    >>> offsets_of(np.array([3, 0, 1])).tolist()
    [0, 3, 3, 4]
    """
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def is_torch(x: Array) -> bool:
    """Whether x is a torch tensor (torch is not imported to find out)."""
    return type(x) is not np.ndarray and array_api_compat.is_torch_array(x)


def on_host(x: Array) -> bool:
    """Whether x lies in host memory, so that NumPy can look at it without a copy."""
    return not is_torch(x) or x.device.type == "cpu"


def view(x: Array) -> Array:
    """x as NumPy if it lies in host memory (no copy, but for half precision), else the detached tensor where it is."""
    if not is_torch(x):
        return np.asarray(x)
    x = x.detach()
    if not on_host(x):
        return x
    return (x.float() if x.dtype.is_floating_point and x.dtype.itemsize < 4 else x).numpy()


def to_numpy(x: Array) -> np.ndarray:
    """x as NumPy, wherever it lies."""
    found: np.ndarray = view(x.cpu() if is_torch(x) else x)
    return found


def to_float(x: Array) -> Array:
    """x in the widest float its device has: float64, or float32 where there is none."""
    if is_torch(x):
        return x.float() if x.device.type in ("mps", "npu") else x.double()
    return x.astype(np.float64, copy=False)


def to_bool(mask: Array) -> Array:
    """A mask of any dtype as booleans.

    Raises:
        MaskError: the mask holds other values than 0 and 1.

    >>> to_bool(np.array([0.0, 1.0]))
    array([False,  True])
    """
    xp = array_namespace(mask)
    if mask.dtype == xp.bool:
        return mask
    flags = mask == 1
    if int(xp.count_nonzero(flags)) + int(xp.count_nonzero(mask == 0)) < math.prod(mask.shape):
        odd = mask[~flags & (mask != 0)]
        found = float(odd[0])
        raise MaskError(f"A mask may hold only 0 and 1, but this one holds {found:g}; mark sampled tokens with 1.")
    return flags


def vector(like: Array, scalars: Sequence[Any], tail: Array | None = None) -> Array:
    """Scalars, and a vector behind them, as one vector where `like` lives: float64, or the float of a device tensor."""
    if not is_torch(like):
        head = np.array(scalars, dtype=np.float64)
        return head if tail is None else np.concatenate([head, tail])
    xp = array_namespace(like)
    dtype = like.dtype if like.dtype.is_floating_point else xp.float32
    parts = [*scalars] if tail is None else [*scalars, tail]
    return xp.concat([xp.asarray(p, dtype=dtype, device=like.device).reshape(-1) for p in parts])


def dot(x: Float[Array, " values"], y: Float[Array, " values"]) -> Any:
    """Σ x·y, on the calling thread only: BLAS starts threads on long vectors, which costs more than it saves here."""
    if is_torch(x):
        return x @ y
    cut = len(x) - len(x) % UNTHREADED
    rows = np.vecdot(x[:cut].reshape(-1, UNTHREADED), y[:cut].reshape(-1, UNTHREADED))
    return rows.sum() + x[cut:] @ y[cut:]


def count_true(flags: Bool[Array, "..."]) -> Any:
    """How many flags are true."""
    return flags.count_nonzero() if is_torch(flags) else np.count_nonzero(flags)


def bincount(bins: Int[Array, " values"], size: int) -> Int[Array, " size"]:
    """How many values fall into each of `size` bins."""
    if is_torch(bins):
        return bins.bincount(minlength=size)
    return np.bincount(bins, minlength=size)


def largest(values: Float[Array, " values"], k: int, *, above: float = -np.inf) -> Float[Array, " k"]:
    """The k largest values in falling order, padded with -inf; values not above `above` may be left out.

    >>> largest(np.array([3.0, 1.0, 2.0]), 2).tolist()
    [3.0, 2.0]
    """
    if is_torch(values):
        top = values.topk(min(k, values.shape[0])).values
        return array_namespace(values).concat([top, top.new_full((k - top.shape[0],), -np.inf)])
    if above > -np.inf:
        values = values[values > above]
    if len(values) > k:
        values = np.partition(values, len(values) - k)[-k:]
    return np.concatenate([np.sort(values)[::-1], np.full(k - len(values), -np.inf)])


def count_segments(flags: Bool[Array, " tokens"], offsets: Any) -> Int[Array, " sequences"]:
    """How many flags are true in each of the sequences that the offsets cut.

    >>> count_segments(np.array([True, False, True]), np.array([0, 2, 2, 3])).tolist()
    [1, 0, 1]
    """
    xp = array_namespace(flags)
    ends = xp.asarray(offsets, device=flags.device) if is_torch(flags) else offsets
    running = xp.concat([xp.zeros_like(ends[:1]), xp.cumulative_sum(xp.astype(flags, ends.dtype))])
    return running[ends[1:]] - running[ends[:-1]]


class Segments:
    """Sequences that are packed one after another, to pool any number of columns over each of them.

    Args:
        lengths: tokens of each sequence, int [sequences].
    """

    def __init__(self, lengths: Int[Array, " sequences"]) -> None:
        self.lengths = lengths
        if is_torch(lengths):
            xp = array_namespace(lengths)
            self.rows = xp.repeat(xp.arange(lengths.shape[0], device=lengths.device), lengths)
        else:
            self.filled = lengths > 0
            self.starts = (np.cumsum(lengths) - lengths)[self.filled]

    def pool(self, values: Float[Array, " tokens"], reduce: str) -> Float[Array, " sequences"]:
        """Sum, mean or max of each sequence; NaN for one without tokens."""
        if is_torch(values):
            return self._pool_torch(values, reduce)
        pooled = (np.maximum if reduce == "max" else np.add).reduceat(values, self.starts)
        if len(pooled) < len(self.lengths):
            found, pooled = pooled, np.full(len(self.lengths), np.nan)
            pooled[self.filled] = found
        return pooled / np.maximum(self.lengths, 1) if reduce == "mean" else pooled

    def _pool_torch(self, values: Array, reduce: str) -> Array:
        """`pool` on a torch device."""
        xp = array_namespace(values)
        out = xp.zeros(self.lengths.shape[0], dtype=values.dtype, device=values.device)
        name = {"sum": "sum", "mean": "mean", "max": "amax"}[reduce]
        out.scatter_reduce_(0, self.rows, values, name, include_self=False)
        return xp.where(self.lengths > 0, out, xp.nan)


def segment(
    values: Float[Array, " tokens"], lengths: Int[Array, " sequences"], reduce: str
) -> Float[Array, " sequences"]:
    """Sum, mean or max of each of the sequences that are packed in `values`; NaN for a sequence without tokens.

    >>> segment(np.array([1.0, 2.0, 5.0]), np.array([2, 0, 1]), "mean").tolist()
    [1.5, nan, 5.0]
    """
    return Segments(lengths).pool(values, reduce)
