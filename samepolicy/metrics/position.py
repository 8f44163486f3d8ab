"""Curves along the response: at each position, over the sequences that reach it."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from samepolicy.arrays import Ragged


@dataclass(frozen=True)
class Curve:
    """A quantity at each position of the response.

    Attributes:
        count: tokens that were valid at each position, int [longest].
        mean: mean over them, float [longest]; NaN where there is none.
        max: largest of them, float [longest]; NaN where there is none.
    """

    count: Int[np.ndarray, " longest"]
    mean: Float[np.ndarray, " longest"]
    max: Float[np.ndarray, " longest"]


def positions(offsets: Int[np.ndarray, " sequences_and_1"]) -> Int[np.ndarray, " tokens"]:
    """Position of each packed token in its own sequence, from 0.

    >>> positions(np.array([0, 2, 5])).tolist()
    [0, 1, 0, 1, 2]
    """
    found: np.ndarray = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
    return found


def position_curve(values: Ragged, mask: Ragged) -> Curve:
    """Mean and maximum of a per-token quantity at each position, across the batch.

    Args:
        values: the quantity, one value per token; non-finite values are left out.
        mask: which tokens count, bool, the same sequences.

    Returns:
        The Curve, as long as the longest sequence.

    >>> x, m = Ragged.from_lists([[1.0, 2.0], [3.0]]), Ragged.from_lists([[True, True], [True]])
    >>> position_curve(x, m).mean.tolist()
    [2.0, 2.0]
    """
    longest = int(values.lengths.max(initial=0))
    keep = mask.values & np.isfinite(values.values)
    place, kept = positions(values.offsets)[keep], values.values[keep].astype(np.float64)
    count = np.bincount(place, minlength=longest)
    highest = np.full(longest, -np.inf)
    np.maximum.at(highest, place, kept)
    with np.errstate(invalid="ignore"):
        mean = np.bincount(place, weights=kept, minlength=longest) / count
    return Curve(count, mean, np.where(count > 0, highest, np.nan))
