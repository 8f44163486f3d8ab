"""What a ratio is taken over: one token, a sequence, a turn; for padded and for packed tokens, on any device.

A span cuts the tokens into groups. `pool` reduces each group to one value and `spread` lays a value per group back over
its tokens. Neither waits for the device.
"""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch

Over = Literal["token", "sequence", "geometric", "turn", "segment"]
"""`token`: ρ of each token. `sequence`: the product over the sequence. `geometric`: its geometric mean. `turn`: the
geometric mean over each run of equal numbers in the column `turn`. `segment`: that over each run of sampled tokens."""
Pool = Literal["sum", "max", "min"]
OVER = ("token", "sequence", "geometric", "turn", "segment")


@dataclass(frozen=True)
class Rows:
    """Each row of a padded array is a group."""

    def pool(self, values: Array, how: Pool = "sum") -> Array:
        """One value for each row, [rows]; a row without columns has sum 0."""
        if how == "sum":
            if is_torch(values):
                return values.sum(-1)
            return _count_rows(values) if values.dtype == bool else values.sum(-1)
        xp = array_namespace(values)
        if values.shape[-1] == 0:
            return xp.full(values.shape[:1], -xp.inf if how == "max" else xp.inf, dtype=values.dtype)
        return xp.max(values, axis=-1) if how == "max" else xp.min(values, axis=-1)

    def spread(self, pooled: Array) -> Array:
        """A value per row as a column that broadcasts over the row."""
        return pooled[:, None]


def _count_rows(flags: np.ndarray) -> np.ndarray:
    """True flags of each row; counted as bits, since NumPy adds booleans one by one."""
    bits = np.bitwise_count(np.packbits(flags, axis=-1))
    found: np.ndarray = bits.sum(-1, dtype=np.int64)
    return found


@dataclass(frozen=True, eq=False)
class Runs:
    """Groups of neighbouring tokens: which group each token is in, in rising order.

    Attributes:
        ids: the group of each token, int, the tokens' shape.
        count: how many groups there are; on a device perhaps more than are used, so as not to wait for it.
    """

    ids: Array
    count: int

    def pool(self, values: Array, how: Pool = "sum") -> Array:
        """One value for each group, [count]; a group without tokens has sum 0, max -inf and min inf."""
        flat, ids = values.reshape(-1), self.ids.reshape(-1)
        if not is_torch(values):
            if how == "sum":
                sums = np.bincount(ids, weights=flat, minlength=self.count)
                return sums if flat.dtype.kind == "f" else sums.astype(np.int64)
            found = np.full(self.count, -np.inf if how == "max" else np.inf, dtype=flat.dtype)
            (np.maximum if how == "max" else np.minimum).at(found, ids, flat)
            return found
        xp = array_namespace(values)
        if not values.dtype.is_floating_point:
            flat = flat.to(xp.int64)
        start = {"sum": 0, "max": -xp.inf, "min": xp.inf}[how]
        into = xp.full((self.count,), start, dtype=flat.dtype, device=flat.device)
        return into.scatter_reduce_(0, ids, flat, {"sum": "sum", "max": "amax", "min": "amin"}[how])

    def spread(self, pooled: Array) -> Array:
        """A value per group laid over its tokens."""
        return pooled[self.ids]


Groups: TypeAlias = Rows | Runs


def sequences_of(mask: Array, offsets: Any) -> Groups:
    """The sequences of a block: its rows, or what the offsets (from 0, on the host) cut."""
    if offsets is None:
        return Rows()
    count, tokens = len(offsets) - 1, mask.shape[0]
    if not is_torch(mask):
        return Runs(np.repeat(np.arange(count), np.diff(offsets)), count)
    xp = array_namespace(mask)
    ends = xp.asarray(offsets[1:], device=mask.device)
    return Runs(xp.searchsorted(ends, xp.arange(tokens, device=mask.device), side="right"), count)


def group_of(over: Over, sequences: Groups, mask: Array, turn: Array | None) -> Groups:
    """How a span of more than a token cuts a block."""
    if over in ("sequence", "geometric"):
        return sequences
    changing = mask if turn is None or over == "segment" else turn
    xp = array_namespace(changing)
    starts = xp.ones_like(changing, dtype=xp.bool)
    starts[..., 1:] = changing[..., 1:] != changing[..., :-1]
    if isinstance(sequences, Runs):
        starts[1:] |= sequences.ids[1:] != sequences.ids[:-1]
    flat = starts.reshape(-1)
    ids = xp.cumulative_sum(xp.astype(flat, xp.int64)) - 1
    count = flat.shape[0] if is_torch(flat) else int(ids[-1]) + 1 if len(ids) else 0
    return Runs(ids.reshape(changing.shape), count)
