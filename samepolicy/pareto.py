"""The tail of importance weights: the largest of them as a mergeable statistic, and the Pareto shape k fitted to it."""

import math

import numpy as np
from jaxtyping import Float

from samepolicy.arrays import Array, largest, vector
from samepolicy.stats import State, Statistic


class Tail(Statistic):
    """The largest log-weights, for the Pareto shape of the tail: [count, the 1025 largest in falling order].

    1024 of them are the most that the fit uses, and one more is where the tail begins, so the fit is the same however
    the values were split.
    """

    KEPT = 1025
    SIZE = KEPT + 1

    @staticmethod
    def reduce(values: Float[Array, " values"], prior: State | None = None) -> Array:
        """[count, largest values, -inf where there are fewer]."""
        above = -math.inf if prior is None else prior[-1]
        return vector(values, [values.shape[0]], largest(values, Tail.KEPT, above=above))

    @staticmethod
    def merge(states: Float[State, "parts size"]) -> Float[State, " size"]:
        """The largest of the largest."""
        pool = np.concatenate([states[:, 1:].ravel(), np.full(Tail.KEPT, -math.inf)])
        return np.concatenate([[states[:, 0].sum()], np.sort(pool)[::-1][: Tail.KEPT]])

    def readouts(self) -> dict[str, float]:
        """k (NaN where no tail can be fitted), the largest k to trust at this count, and the count."""
        n = self.count
        trusted = min(1 - 1 / math.log10(n), 0.7) if n > 1 else math.nan
        return {"k": pareto_k(self.state[1:], count=n), "trusted_below": trusted, "count": n}


def pareto_k(log_weights: Float[np.ndarray, " largest"], *, count: int) -> float:
    """How heavy the tail of importance weights is.

    A generalised Pareto distribution is fitted to the M = min(n/5, 3√n, len(log_weights) - 1) largest weights above the
    next one. Moments of the weights up to order 1/k exist: above 0.7 an average over them cannot be trusted.

    Args:
        log_weights: the largest of `count` log-weights in falling order, float [largest]; -inf pads.
        count: number of weights they were taken from.

    Returns:
        k; NaN where fewer than 5 weights make up the tail or all of them are equal.

    Reference: Vehtari, Simpson, Gelman, Yao and Gabry, "Pareto smoothed importance sampling" (JMLR 2024).
    """
    size = min(int(min(count / 5, 3 * math.sqrt(count))), len(log_weights) - 1)
    if size < 5 or not math.isfinite(log_weights[0]):
        return math.nan
    scaled = np.exp(log_weights[: size + 1] - log_weights[0])
    exceedances = (scaled[:size] - scaled[size])[::-1]
    return fit_shape(exceedances) if exceedances[0] > 0 or exceedances[-1] > 0 else math.nan


def fit_shape(exceedances: Float[np.ndarray, " tail"]) -> float:
    """Shape of a generalised Pareto distribution, by the quasi-Bayesian estimate with a weak prior at k = 0.5.

    Args:
        exceedances: values above the threshold in rising order, float [tail], not all zero.

    Returns:
        k, shrunk towards 0.5 with the weight of ten observations.

    Reference: Zhang and Stephens, "A new and efficient estimation method for the generalized Pareto distribution"
    (Technometrics 2009); the prior is that of PSIS.
    """
    n = len(exceedances)
    grid = 30 + int(math.sqrt(n))
    quartile = exceedances[int(n / 4 + 0.5) - 1] or exceedances[exceedances > 0][0]
    theta = 1 / exceedances[-1] + (1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))) / (3 * quartile)
    shapes = np.log1p(-theta[:, None] * exceedances).mean(axis=1)
    log_likelihood = n * (np.log(-theta / shapes) - shapes - 1)
    posterior = np.exp(log_likelihood - log_likelihood.max())
    best = float((theta * posterior).sum() / posterior.sum())
    shape = float(np.log1p(-best * exceedances).mean())
    return (n * shape + 10 * 0.5) / (n + 10)
