"""A run counted in the bins that figures are drawn from; parts of it are counted by themselves and added up."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np

from samepolicy.report.groups import Curve, curves
from samepolicy.report.sketch import place
from samepolicy.report.view import View

MOST_BINS, LEAST_BINS = 161, 41
"""Bins of the histogram of d."""
CELLS = 96
"""Cells of the density, either way."""
STEPS = 2048
"""Bins that a threshold is moved over."""
SMALLEST, LARGEST, FINE = 1e-7, 1e5, 2000
"""Sizes are told apart between these, in so many bins a decade: to 0.06 %."""


@dataclass(frozen=True)
class Ends:
    """How many values there are and how far they reach, which decides about the bins.

    Attributes:
        name: what the values are, see `View`.
        count: how many.
        size: the largest by size.
        depth: largest square root of a surprisal, of either side.
    """

    name: str = ""
    count: int = 0
    size: float = 0.0
    depth: float = 0.0

    @classmethod
    def of(cls, view: View) -> Self:
        """Those of one part."""
        depths = _depths(view) if view.name == "d" else ()
        depth = max((float(depth.max(initial=0.0)) for depth in depths), default=0.0)
        return cls(view.name, int(view.measured.sum()), float(view.size.max(initial=0.0)), depth)

    def __add__(self, other: Self) -> Self:
        """Those of both."""
        name = min({self.name, other.name} - {""}, default="")  # a part without log-probs has prob_diff, or nothing
        size, depth = max(self.size, other.size), max(self.depth, other.depth)
        return type(self)(name, self.count + other.count, size, depth)

    @property
    def spread(self) -> np.ndarray:
        """Edges of the histogram of d, in asinh(d / 0.01)."""
        end = max(float(place(np.asarray([self.size]))[0]) * 1.02, 1.0)
        bins = int(np.clip(4 * self.count ** (1 / 3), LEAST_BINS, MOST_BINS)) // 2 * 2 + 1
        return np.linspace(-end, end, bins + 1)

    @property
    def steps(self) -> np.ndarray:
        """Edges of the bins that a threshold is moved over, nats."""
        end = np.arcsinh(max(self.size, 1.0) / 0.01)
        return np.asarray(0.01 * np.sinh(np.linspace(-end, end, STEPS + 1)))

    @property
    def deep(self) -> float:
        """Where the density ends, in square roots of a surprisal."""
        return self.depth * 1.02 or 1.0


@dataclass(frozen=True, eq=False)
class Sizes:
    """Sizes in rising order, each with how many there are.

    Attributes:
        size: the sizes, float64 [n].
        count: how many of each, int64 [n].

    >>> Sizes.of(np.array([3.0, 1.0, 2.0])).quantile(np.array([0.5, 0.75])).tolist()
    [2.0, 2.5]
    """

    size: np.ndarray
    count: np.ndarray

    @classmethod
    def of(cls, size: np.ndarray) -> Self:
        """Every size by itself."""
        return cls(np.sort(np.maximum(size, SMALLEST)), np.ones(len(size), dtype=np.int64))

    @classmethod
    def binned(cls, size: np.ndarray) -> Self:
        """Sizes in bins that are even in their logarithm; those beyond are in the outer ones."""
        bins = round(FINE * np.log10(LARGEST / SMALLEST))
        at = FINE * np.log10(np.clip(size, SMALLEST, LARGEST) / SMALLEST)
        count = np.bincount(np.minimum(at.astype(np.int64), bins - 1), minlength=bins)
        return cls(SMALLEST * 10 ** ((np.arange(bins) + 0.5) / FINE), count)

    def __add__(self, other: Self) -> Self:
        """Those of both, which must be binned."""
        return type(self)(self.size, self.count + other.count)

    def __len__(self) -> int:
        """How many sizes there are."""
        return int(self.count.sum())

    def at(self, rank: np.ndarray) -> np.ndarray:
        """The sizes of these ranks, from 0."""
        found: np.ndarray = self.size[np.searchsorted(np.cumsum(self.count), rank, side="right")]
        return found

    def quantile(self, levels: np.ndarray) -> np.ndarray:
        """Quantiles, between two ranks in proportion."""
        rank = np.asarray(levels) * (len(self) - 1)
        low, high = (self.at(r.astype(np.int64)) for r in (np.floor(rank), np.ceil(rank)))
        found: np.ndarray = low + (high - low) * (rank - np.floor(rank))
        return found


@dataclass(frozen=True, eq=False)
class Bins:
    """A run in the bins of its figures; `+` is two parts of a run together, counted between the same ends.

    Attributes:
        ends: how far the whole run reaches.
        spread: tokens by d, see `Ends.spread`.
        density: tokens by both sides' surprisal, [trainer, rollout].
        steps: count of tokens, sum of their ratios and of the squares of these, by d, see `Ends.steps`, [3, STEPS].
        sizes: tokens by the size of their value.
        curves: means along the response, over probabilities, turns, versions and steps.
    """

    ends: Ends
    spread: np.ndarray
    density: np.ndarray
    steps: np.ndarray
    sizes: Sizes
    curves: Mapping[str, Curve]

    @classmethod
    def of(cls, view: View, ends: Ends | None = None) -> Self:
        """Count a run, or one part of a run that reaches so far.

        Args:
            view: the tokens.
            ends: those of the whole run; None if this is all of it, whose sizes are then kept one by one.
        """
        known = Ends.of(view) if ends is None else ends
        size = view.size[view.measured]
        return cls(
            ends=known,
            spread=np.histogram(place(view.d), known.spread)[0],
            density=_density(view, known),
            steps=_steps(view, known),
            sizes=Sizes.of(size) if ends is None else Sizes.binned(size),
            curves=curves(view),
        )

    def __add__(self, other: Self) -> Self:
        """Both together."""
        names = {**self.curves, **other.curves}
        merged = {n: c + other.curves[n] if n in other.curves else c for n, c in self.curves.items()}
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)[1:5]}
        return replace(self, **summed, curves={n: merged.get(n, names[n]) for n in names})


def _depths(view: View) -> tuple[np.ndarray, np.ndarray]:
    """Square roots of the surprisals of rollout and trainer, of the measured tokens."""
    rollout, trainer = (np.sqrt(-view.logp(name)[view.measured]) for name in ("rollout", "trainer"))
    return rollout, trainer


def _density(view: View, ends: Ends) -> np.ndarray:
    """Tokens in each cell, [trainer, rollout]."""
    if view.name != "d":
        return np.zeros((CELLS, CELLS), dtype=np.int64)
    rollout, trainer = (np.minimum((s * (CELLS / ends.deep)).astype(np.int64), CELLS - 1) for s in _depths(view))
    return np.bincount(trainer * CELLS + rollout, minlength=CELLS**2).reshape(CELLS, CELLS)


def _steps(view: View, ends: Ends) -> np.ndarray:
    """Count, Σ ratio and Σ ratio² of the tokens in each bin of d."""
    at = np.clip(np.searchsorted(ends.steps, view.d, side="right") - 1, 0, STEPS - 1)
    with np.errstate(over="ignore"):
        ratio = np.exp(view.d)
        return np.stack([np.bincount(at, weights=w, minlength=STEPS) for w in (np.ones(len(ratio)), ratio, ratio**2)])
