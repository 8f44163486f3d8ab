"""Statistics that merge exactly: each is one short vector, a rule to merge such vectors, and what can be read from it.

A statistic of a whole is the merge of the statistics of its parts, whatever the parts: blocks of a batch,
micro-batches, ranks, steps or files. Counts, extremes and histogram bins merge exactly, sums to float64 rounding. `+`
is associative and commutative, and the statistic of no values is its identity.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from jaxtyping import Float

from samepolicy.arrays import Array, array_namespace, bincount, count_true, dot, is_torch, vector

State = np.ndarray
SAFE = 300.0
"""Largest size of a log-weight whose weight can be squared without over- or underflow."""
CANCELLED = 1e-6
"""A spread below this share of the plain sum of squares is taken again around the mean, since digits cancel."""


@dataclass(frozen=True, eq=False)
class Statistic:
    """A mergeable statistic: subclass it with a `reduce`, a `merge` and `readouts`.

    Attributes:
        state: everything that is known of the values, float64 [SIZE].
    """

    state: State
    SIZE: ClassVar[int]

    @staticmethod
    def reduce(values: Any, prior: State | None = None) -> Array:
        """The state of some values, computed where they live, [SIZE]; `prior` is what earlier values gave, if known."""
        raise NotImplementedError

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """The state of all values together from the states of the parts; no part gives the identity."""
        raise NotImplementedError

    def readouts(self) -> dict[str, float]:
        """Every number that can be read from the state, by name; NaN where it does not exist."""
        raise NotImplementedError

    @classmethod
    def of(cls, values: Any) -> Self:
        """The statistic of these values."""
        return cls(cls.merge(np.asarray(cls.reduce(values), dtype=np.float64)[None]))

    @classmethod
    def identity(cls) -> Self:
        """The statistic of no values."""
        return cls(cls.merge(np.zeros((0, cls.SIZE))))

    def __add__(self, other: Self) -> Self:
        """The statistic of both sets of values together."""
        return type(self)(self.merge(np.stack([self.state, other.state])))

    @property
    def count(self) -> int:
        """How many values went in."""
        return int(self.state[0])


class Moments(Statistic):
    """Mean, standard deviation and extremes of values: [count, sum, centred sum of squares, min, max].

    The squares are taken around each part's own mean and merged by Chan, Golub and LeVeque's rule (1979), so a small
    spread around a large mean keeps its digits.

    >>> (Moments.of(np.array([1.0, 2.0])) + Moments.of(np.array([6.0]))).readouts()["std"]
    2.6457513110645907
    """

    SIZE = 5

    @staticmethod
    def reduce(values: Float[Array, " values"], prior: State | None = None) -> Array:
        """[count, sum, Σ(x - mean)², min, max] of the values."""
        n = values.shape[0]
        if n == 0:
            return vector(values, [0.0, 0.0, 0.0, math.inf, -math.inf])
        total = values.sum()
        return vector(values, [n, total, _spread(values, total), values.min(), values.max()])

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """Sums add; centred squares add with each part's distance from the common mean."""
        states = states[states[:, 0] > 0]
        n, total, squares, low, high = states.T
        count = n.sum()
        shift = total / n - total.sum() / count if len(n) > 1 else 0.0
        spread = squares.sum() + (n * np.square(shift)).sum()
        return np.array([count, total.sum(), spread, low.min(initial=math.inf), high.max(initial=-math.inf)])

    def readouts(self) -> dict[str, float]:
        """mean, std (unbiased, NaN below two values), min, max, and the count."""
        n, total, squares, low, high = self.state.tolist()
        return {
            "mean": total / n if n else math.nan,
            "std": math.sqrt(squares / (n - 1)) if n > 1 else math.nan,
            "min": low if n else math.nan,
            "max": high if n else math.nan,
            "count": int(n),
        }


def _spread(values: Float[Array, " values"], total: Any) -> Any:
    """Σ (x - mean)²: from the plain sum of squares where that keeps enough digits, else around the mean."""
    return _cospread(values, total, values, total)


def _cospread(x: Float[Array, " values"], total_x: Any, y: Float[Array, " values"], total_y: Any) -> Any:
    """Σ (x - mean x)(y - mean y): from the plain sum of products where that keeps enough digits."""
    products, n = dot(x, y), x.shape[0]
    spread = products - total_x * total_y / n
    if not is_torch(x) and abs(spread) > CANCELLED * abs(products):
        return spread
    return dot(x - total_x / n, y - total_y / n)


class Mean(Statistic):
    """Mean of values, where their spread is of no use: [count, sum].

    >>> Mean.of(np.array([1.0, 2.0])).readouts()["mean"]
    1.5
    """

    SIZE = 2

    @staticmethod
    def reduce(values: Float[Array, " values"], prior: State | None = None) -> Array:
        """[count, sum of the values]."""
        return vector(values, [values.shape[0], values.sum()])

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """Sums add."""
        total: State = states.sum(axis=0)
        return total

    def readouts(self) -> dict[str, float]:
        """mean, and the count."""
        n, total = self.state.tolist()
        return {"mean": total / n if n else math.nan, "count": int(n)}


class Share(Statistic):
    """Share of values that are true: [count, hits].

    >>> Share.of(np.array([True, False, False, False])).readouts()["share"]
    0.25
    """

    SIZE = 2

    @staticmethod
    def reduce(values: Any, prior: State | None = None) -> Array:
        """[count, number of true values]."""
        return vector(values, [values.shape[0], count_true(values)])

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """Counts add."""
        total: State = states.sum(axis=0)
        return total

    def readouts(self) -> dict[str, float]:
        """share, and the count."""
        n, hits = self.state.tolist()
        return {"share": hits / n if n else math.nan, "count": int(n)}


class Comoments(Statistic):
    """Pearson correlation of two columns: [count, sum x, sum y, Σ(x-x̄)², Σ(y-ȳ)², Σ(x-x̄)(y-ȳ)].

    >>> x = np.array([1.0, 2.0, 4.0])
    >>> round(Comoments.of((x, x**2)).readouts()["pearson"], 4)
    0.9897
    """

    SIZE = 6

    @staticmethod
    def reduce(values: tuple[Array, Array], prior: State | None = None) -> Array:
        """The six sums of a pair of columns."""
        x, y = values
        n = x.shape[0]
        if n == 0:
            return vector(x, [0.0] * 6)
        total_x, total_y = x.sum(), y.sum()
        sums = [_spread(x, total_x), _spread(y, total_y), _cospread(x, total_x, y, total_y)]
        return vector(x, [n, total_x, total_y, *sums])

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """As for `Moments`, with the cross term."""
        states = states[states[:, 0] > 0]
        n, x, y, xx, yy, xy = states.T
        count, mean = n.sum(), n.sum() or 1.0
        dx, dy = (x / n - x.sum() / mean, y / n - y.sum() / mean) if len(n) > 1 else (n * 0.0, n * 0.0)
        squares = [(xx + n * dx * dx).sum(), (yy + n * dy * dy).sum(), (xy + n * dx * dy).sum()]
        return np.array([count, x.sum(), y.sum(), *squares])

    def readouts(self) -> dict[str, float]:
        """pearson (NaN where a column is constant), and the count."""
        n, _, _, xx, yy, xy = self.state.tolist()
        return {"pearson": xy / math.sqrt(xx * yy) if xx * yy > 0 else math.nan, "count": int(n)}


class LogWeights(Statistic):
    """Importance weights given by their logarithms: [count, largest log-weight, Σ w/w_max, Σ (w/w_max)²].

    Kept relative to the largest weight, so a product of thousands of ratios neither over- nor underflows on the way.

    >>> LogWeights.of(np.log([1.0, 1.0, 2.0])).readouts()["ess"]
    0.8888888888888888
    """

    SIZE = 4

    @staticmethod
    def reduce(values: Any, prior: State | None = None) -> Array:
        """[count, max, Σ exp(lw - max), Σ exp(2(lw - max))] of log-weights, or of a pair of log-weights and weights."""
        logs, weights = values if isinstance(values, tuple) else (values, None)
        if logs.shape[0] == 0:
            return vector(logs, [0.0, -math.inf, 0.0, 0.0])
        top = logs.max()
        if weights is None or is_torch(logs) or abs(top) > SAFE:
            weights, scale = array_namespace(logs).exp(logs - top), 1.0
        else:
            scale = math.exp(-top)
        return vector(logs, [logs.shape[0], top, scale * weights.sum(), scale * scale * dot(weights, weights)])

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """Sums are brought to the common largest weight, then add."""
        states = states[states[:, 0] > 0]
        n, top, first, second = states.T
        best = top.max(initial=-math.inf)
        scale = np.exp(top - best) if len(n) else n
        return np.array([n.sum(), best, (first * scale).sum(), (second * scale * scale).sum()])

    def readouts(self) -> dict[str, float]:
        """ess = (Σw)²/(n Σw²) in (0, 1], chi2 = mean(w²) - 1, mean weight, log of the mean weight, and the count."""
        n, top, first, second = self.state.tolist()
        if not n:
            return {"ess": math.nan, "chi2": math.nan, "mean": math.nan, "log_mean": math.nan, "count": 0}
        with np.errstate(over="ignore"):
            log_mean = top + math.log(first / n)
            return {
                "ess": first * first / (n * second),
                "chi2": float(np.expm1(2 * top + math.log(second / n))),
                "mean": float(np.exp(log_mean)),
                "log_mean": float(log_mean),
                "count": int(n),
            }


class Histogram(Statistic):
    """Quantiles of non-negative values from bins of equal relative width: 64 bins an octave, between 2⁻⁴⁰ and 2¹².

    A quantile is right to 0.8 % of its value (half a bin); values below the first edge read as 0, above the last as
    inf. State: [count, below, bins…, above].

    >>> h = Histogram.of(np.linspace(0.0, 1.0, 1001))
    >>> round(h.quantile(0.9), 2)
    0.9
    """

    LOW, HIGH, PER_OCTAVE = -40, 12, 64
    BINS = (HIGH - LOW) * PER_OCTAVE
    SIZE = BINS + 3

    @staticmethod
    def reduce(values: Float[Array, " values"], prior: State | None = None) -> Array:
        """[count, values below, in each bin, and above], cut from the bits of each value as float32.

        Its exponent and the first six bits of its mantissa, read as one whole number, are the bin that it falls into.
        """
        xp, bins = array_namespace(values), 256 * Histogram.PER_OCTAVE
        bits = xp.astype(values, xp.float32).view(xp.int32)
        bits >>= 23 - 6
        bits &= bins - 1  # without the sign
        counts = bincount(bits, bins)
        first = (127 + Histogram.LOW) * Histogram.PER_OCTAVE
        last = first + Histogram.BINS
        counts[first - 1], counts[last] = counts[:first].sum(), counts[last:].sum()
        return vector(values, [values.shape[0]], counts[first - 1 : last + 1])

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """Counts add."""
        total: State = states.sum(axis=0)
        return total

    def quantile(self, q: float) -> float:
        """The value below which a share q of the values lies, interpolated between neighbours; NaN without values."""
        if not self.count:
            return math.nan
        rank, running = q * (self.count - 1), np.cumsum(self.state[1:])
        low, high = (self._middle(int(np.searchsorted(running, r, side="right"))) for r in (int(rank), math.ceil(rank)))
        return low if low == high else low + (rank - int(rank)) * (high - low)

    def _middle(self, i: int) -> float:
        """The value that bin i stands for."""
        if i == 0 or i > self.BINS:
            return math.inf if i else 0.0
        octave, part = divmod(i - 1, self.PER_OCTAVE)
        return math.ldexp(1 + (part + 0.5) / self.PER_OCTAVE, self.LOW + octave)

    def readouts(self) -> dict[str, float]:
        """p50, p90, p99, p99.9."""
        return {f"p{100 * q:g}": self.quantile(q) for q in (0.5, 0.9, 0.99, 0.999)}
