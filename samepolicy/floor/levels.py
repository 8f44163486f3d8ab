"""The size of a rounding error by surprisal: a sure token is rounded less than a surprising one."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

EDGES = (0.0, 1e-3, 1e-2, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Where the surprisal bins begin, nats; the last one is open."""

FEWEST = 32
"""Neighbouring bins are merged until each holds this many tokens."""

SMALLEST = 2e-5
"""No side's floor is put below this, nats: two float32 engines differ by up to about this much."""


@dataclass(frozen=True)
class Level:
    """The size of a rounding error by surprisal.

    Attributes:
        edges: where each bin begins, nats of surprisal; the last bin is open.
        tokens: tokens that each bin was measured on.
        rms: root mean square of the error in each bin, nats.
    """

    edges: tuple[float, ...]
    tokens: tuple[int, ...]
    rms: tuple[float, ...]

    def at(self, logp: Float[np.ndarray, " tokens"]) -> Float[np.ndarray, " tokens"]:
        """The level of each token by its reference log-prob, nats [tokens]; NaN where that is NaN.

        >>> Level(edges=(0.0, 1.0), tokens=(40, 40), rms=(0.01, 0.05)).at(np.array([-0.5, -3.0]))
        array([0.01, 0.05])
        """
        where = np.searchsorted(np.asarray(self.edges), -logp, side="right") - 1
        level: np.ndarray = np.asarray(self.rms)[np.clip(where, 0, None)]
        level[np.isnan(logp)] = np.nan
        return level

    @property
    def overall(self) -> float:
        """Root mean square over all tokens it was measured on, nats; NaN where there were none."""
        counts = np.asarray(self.tokens, dtype=np.float64)
        total = counts.sum()
        return float(np.sqrt((counts * np.square(self.rms)).sum() / total)) if total else float("nan")

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {"edges": list(self.edges), "tokens": list(self.tokens), "rms": list(self.rms)}


def level(
    error: Float[np.ndarray, " tokens"], logp: Float[np.ndarray, " tokens"], *, smallest: float = SMALLEST
) -> Level:
    """The rms of an error in bins of surprisal.

    Args:
        error: the error of each token, nats [tokens]; values that are not finite are left out.
        logp: the reference log-prob that a token is binned by, nats [tokens].
        smallest: no bin's rms is put below this, nats.

    Returns:
        Bins of at least `FEWEST` tokens each, or one bin where there are fewer.

    >>> level(np.array([3e-3, -4e-3]), np.array([-0.2, -0.3])).rms
    (0.0035355339059327377,)
    """
    good = np.isfinite(error) & np.isfinite(logp)
    error, surprisal = error[good], -logp[good]
    bins = np.clip(np.searchsorted(np.asarray(EDGES), surprisal, side="right") - 1, 0, None)
    counts = np.bincount(bins, minlength=len(EDGES))
    sums = np.bincount(bins, weights=error**2, minlength=len(EDGES))
    first = _merged(counts)
    tokens, squares = np.add.reduceat(counts, first), np.add.reduceat(sums, first)
    rms = np.maximum(np.sqrt(squares / np.maximum(tokens, 1)), smallest)
    return Level(tuple(EDGES[i] for i in first), tuple(tokens.tolist()), tuple(rms.tolist()))


def _merged(counts: np.ndarray) -> list[int]:
    """The first bin of each merged one: from the surest tokens on, a bin ends once it holds enough."""
    first, held = [0], 0
    for i, count in enumerate(counts):
        if held >= FEWEST and counts[i:].sum() >= FEWEST:
            first.append(i)
            held = 0
        held += int(count)
    return first
