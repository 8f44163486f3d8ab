"""What a correction does to the surrogate objective mean(w·A): bias and variance by a bootstrap over prompts."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

DRAWS, LEVEL = 2000, 0.95
"""Bootstrap draws over prompts, and the coverage of the intervals."""
MOST = 1000
"""Prompts that are drawn one by one; more are drawn in blocks."""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """An estimate with its 95 % interval; the ends are NaN with fewer than two prompts."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Surrogate:
    """The surrogate mean(w·A) under one correction, in units of the advantage.

    It is not a gradient, which no record holds; it is what the policy-gradient loss averages.

    Attributes:
        value: Σ w·A over the tokens, divided by what was asked for.
        standard_error: its bootstrap standard error over prompts.
        variance: the square of that.
        from_uncorrected: value minus that with weight 1 on every token.
        from_weighted: value minus the fully importance-weighted one, Σ ρ·A over all tokens divided by their number.
        error: estimated mean squared error of Σ w·A / Σ w against Σ ρ·A / Σ ρ: the variance, and the squared difference
            as far as it is more than its own noise. Weights are taken by their sum here, so that no rule gains by
            shrinking the loss.
        skew: mean weight of tokens with A > 0 minus that of tokens with A < 0, a dropped token counting 0; NaN where
            one of the two is missing.
    """

    value: float
    standard_error: float
    variance: float
    from_uncorrected: Interval
    from_weighted: Interval
    error: float
    skew: float


def surrogates(
    numerators: Float[np.ndarray, "prompts rules"],
    denominators: Float[np.ndarray, "prompts rules"],
    weights: Float[np.ndarray, "prompts rules"],
    skews: Sequence[float],
    *,
    seed: int = 0,
) -> tuple[Surrogate, ...]:
    """The surrogate of every rule, all on the same draws of prompts.

    Args:
        numerators: Σ w·A of each prompt, [prompts, 2 + rules]: uncorrected, fully importance-weighted, then each rule.
        denominators: the tokens to divide by, same shape.
        weights: Σ w, same shape.
        skews: of each rule.
        seed: seed of the draws.

    Returns:
        One for each rule.

    Reference: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.
    """
    units = len(numerators)
    times = _draws(min(units, MOST), seed)
    with np.errstate(all="ignore"):
        plain, scaled = (_Estimates(_blocks(numerators), _blocks(d), times) for d in (denominators, weights))
        return tuple(_surrogate(plain, scaled, 2 + i, skew) for i, skew in enumerate(skews))


def _draws(units: int, seed: int) -> np.ndarray:
    """How often each unit is drawn, [draws, units]; no draw of fewer than two units, which say nothing."""
    if units < 2:
        return np.zeros((0, units))
    return np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=DRAWS).astype(np.float64)


def _blocks(sums: np.ndarray) -> np.ndarray:
    """The sums of each prompt, or of `MOST` blocks of neighbours where there are more."""
    if len(sums) <= MOST:
        return sums
    found: np.ndarray = np.add.reduceat(sums, np.linspace(0, len(sums), MOST, endpoint=False).astype(np.int64))
    return found


class _Estimates:
    """Ratios of sums over all prompts, and over each draw of them; the first two columns are the references."""

    def __init__(self, numerators: np.ndarray, denominators: np.ndarray, times: np.ndarray) -> None:
        self.whole = numerators.sum(0) / denominators.sum(0)
        self.drawn = (times @ numerators) / (times @ denominators)

    def difference(self, i: int, reference: int) -> tuple[float, np.ndarray]:
        """A column minus a reference: of all prompts, and of each draw."""
        return float(self.whole[i] - self.whole[reference]), self.drawn[:, i] - self.drawn[:, reference]


def _surrogate(plain: _Estimates, scaled: _Estimates, i: int, skew: float) -> Surrogate:
    """One rule's."""
    variance = _variance(plain.drawn[:, i])
    return Surrogate(
        value=float(plain.whole[i]),
        standard_error=float(np.sqrt(variance)),
        variance=variance,
        from_uncorrected=_interval(*plain.difference(i, 0)),
        from_weighted=_interval(*plain.difference(i, 1)),
        error=_error(scaled, i),
        skew=skew,
    )


def _error(scaled: _Estimates, i: int) -> float:
    """Variance, and squared difference from full importance weights beyond its own noise."""
    bias, draws = scaled.difference(i, 1)
    found = _variance(scaled.drawn[:, i]) + np.maximum(0.0, bias * bias - _variance(draws))
    return float(found) if np.isfinite(bias) else np.nan


def _variance(draws: np.ndarray) -> float:
    """Variance of the draws; NaN where there are none, or where one does not exist."""
    return float(draws.var(ddof=1)) if len(draws) > 1 else np.nan


def _interval(value: float, draws: np.ndarray) -> Interval:
    """The percentile interval around a value."""
    if not len(draws) or not np.isfinite(draws).all():
        return Interval(value=value, low=np.nan, high=np.nan)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(value=value, low=float(low), high=float(high))
