"""What settings explain of a gap, read on the prompts that nothing was fitted on, with intervals over prompts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool

from samepolicy.causes import Evidence, Settings
from samepolicy.causes.evidence import ROUNDING
from samepolicy.floor.gap import DRAWS, FEW, LEVEL, LIMIT, LIMIT_FEW, MOST

MOVED = 4.0
"""The slope is read on tokens that an undo moves by more than this many floors."""

NEEDED = 10
"""Tokens that a slope takes at least."""

HIT = 0.9
"""The share of moved tokens that must end within `ROUNDING` floors to be hit one by one."""


class Estimate(NamedTuple):
    """A number with its 95 % interval; NaN where there is none."""

    value: float
    low: float
    high: float


class Judge:
    """The gap of one piece of evidence under any settings.

    Attributes:
        evidence: with nothing known yet.
    """

    def __init__(self, evidence: Evidence) -> None:
        """Draw the bootstrap's prompts."""
        self.evidence = evidence
        unit = np.unique(evidence.prompt[evidence.read], return_inverse=True)[1]
        units = int(unit.max()) + 1 if len(unit) else 0
        self._unit = np.minimum(unit, unit * MOST // max(units, 1)) if units > MOST else unit
        units = min(units, MOST)
        self.prompts = units
        self._floor = self._sums(evidence.floor[evidence.read] ** 2)
        self._times = (
            np.random.default_rng(0).multinomial(units, np.full(units, 1 / units), size=DRAWS)
            if units > 1
            else np.zeros((0, units))
        )
        self._known: dict[Settings, np.ndarray] = {}

    def ratio(self, settings: Settings) -> Estimate:
        """G / floor² under settings."""
        return self._estimate(self.squares(settings), self._floor)

    def above(self, settings: Settings) -> bool:
        """Whether the gap is clearly more than rounding."""
        return self.ratio(settings).low > self.limit

    @property
    def limit(self) -> float:
        """The ratio up to which a gap is rounding."""
        return LIMIT if self.prompts >= FEW // 2 else LIMIT_FEW

    def explained(self, settings: Settings) -> Estimate:
        """1 - (G(c) - floor²) / (G(c0) - floor²); its interval is over draws of prompts that have a gap at all."""
        start = self.squares(Settings())
        return self._estimate(start - self.squares(settings), start - self._floor, least=self._gap)

    def reopened(self, whole: Settings, without: Settings) -> Estimate:
        """The share of the gap that opens again where one member is left out of a set."""
        start = self.squares(Settings())
        return self._estimate(self.squares(without) - self.squares(whole), start - self._floor, least=self._gap)

    @property
    def _gap(self) -> float:
        """What a draw's gap above the floor² must come to for a share of it to mean something."""
        return (self.limit - 1) * float(self._floor.sum())

    def slope(self, whole: Settings, without: Settings) -> float:
        """Median of (Y - S(without)) / (S(whole) - S(without)) over the tokens that are moved; NaN with few."""
        e, moved = self.evidence, self._moved(whole, without)
        if moved.sum() < NEEDED:
            return float("nan")
        before, after = e.predicted(without)[moved], e.predicted(whole)[moved]
        return float(np.median((e.recorded[moved] - before) / (after - before)))

    def exact(self, whole: Settings, without: Settings) -> bool:
        """Whether nearly all tokens that are moved, and enough of them, end within rounding of what was recorded.

        Few rows give wide intervals; values that are hit one by one need none.
        """
        e, moved = self.evidence, self._moved(whole, without)
        error = np.abs(e.recorded[moved] - e.predicted(whole)[moved])
        return bool(moved.sum() >= NEEDED and (error <= ROUNDING * e.floor[moved]).mean() >= HIT)

    def _moved(self, whole: Settings, without: Settings) -> Bool[np.ndarray, " tokens"]:
        """Tokens that are read and that leaving out a part of a set moves clearly."""
        e = self.evidence
        return np.asarray(e.read & (np.abs(e.predicted(whole) - e.predicted(without)) > MOVED * e.floor))

    def tied(self, one: Settings, other: Settings) -> bool:
        """Whether two settings leave gaps that cannot be told apart."""
        difference = self._estimate(self.squares(one) - self.squares(other), self._floor)
        return not (difference.low > 0 or difference.high < 0)

    def moved(self, settings: Settings) -> np.ndarray:
        """How far settings move each token's prediction, nats [tokens]; NaN where nothing is read or predicted."""
        e = self.evidence
        found = np.abs(e.predicted(settings) - e.base)
        return np.where(e.read & np.isfinite(found), found, np.nan)

    def squares(self, settings: Settings) -> np.ndarray:
        """Sum of the capped squares of each prompt."""
        if settings not in self._known:
            self._known[settings] = self._sums(self.evidence.squares(settings))
        return self._known[settings]

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Sums by prompt."""
        return np.bincount(self._unit, weights=values, minlength=int(self._unit.max()) + 1 if len(values) else 0)

    def _estimate(self, numerator: np.ndarray, denominator: np.ndarray, *, least: float = 0.0) -> Estimate:
        """A ratio of sums with its interval, over draws whose denominator is above the least."""
        total = denominator.sum()
        value = float(numerator.sum() / total) if total else float("nan")
        if not len(self._times):
            return Estimate(value, float("nan"), float("nan"))
        below = self._times @ denominator
        kept = below > least
        drawn = (self._times[kept] @ numerator) / below[kept]
        if not len(drawn):
            return Estimate(value, float("nan"), float("nan"))
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Estimate(value, float(low), float(high))
