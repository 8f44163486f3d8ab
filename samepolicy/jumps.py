"""A clear jump between two levels of few values, and single values that stand out."""

import numpy as np
from jaxtyping import Float, Int

LEAST, EDGE = 6, 2
"""Fewer values than this show no jump; each of its two levels has at least `EDGE` values."""


def clear_jump(values: Float[np.ndarray, " steps"], errors: Float[np.ndarray, " steps"]) -> tuple[int, float]:
    """The most likely place of a jump that is far larger than the scatter within both levels, and its p.

    Ranks of six to nine values can prove nothing at 1 %, so sizes are taken. For every place k,
    t_k = |m_2 - m_1| / (s · √(1/k + 1/(n - k))), m the means of the two levels and s their pooled standard deviation,
    at least the root mean square of the errors; p is that of the largest t_k at n - 2 degrees of freedom, times the
    number of places. The two levels must also lie farther apart than either is wide.

    Args:
        values: the series in order, float [steps], without NaN.
        errors: the standard error of each value, in the unit of the values.

    Returns:
        The index of the first value of the new level, and p; (0, 1.0) with fewer than 6 values or no clear jump.

    Reference: Worsley, "On the likelihood ratio test for a shift in location of normal populations" (JASA 1979).

    >>> place, p = clear_jump(np.array([0.1, 0.2, 0.1, 0.9, 0.8, 1.0]), np.zeros(6))
    >>> place, round(p, 3)
    (3, 0.001)
    """
    n = len(values)
    if n < LEAST or np.ptp(values) == 0:
        return 0, 1.0
    t = [_t(values[:k], values[k:], errors) for k in range(EDGE, n - EDGE + 1)]
    place = EDGE + int(np.argmax(t))
    if not _apart(values[:place], values[place:]):
        return 0, 1.0
    return place, min(1.0, len(t) * 2 * _beyond(max(t), n - 2))


def stand_out(
    values: Float[np.ndarray, " steps"], errors: Float[np.ndarray, " steps"], *, by: float
) -> tuple[Int[np.ndarray, " few"], Float[np.ndarray, " few"]]:
    """The few values that lie far above the median, each with its p against the scatter of the others.

    t = (x - m) / √(s² (1 + 1/k) + e²), m and s the mean and standard deviation of the k others, s at least the root
    mean square of their errors, e the error of x; p is that of t at k - 1 degrees of freedom, times the number of
    values.

    Args:
        values: the series, float [steps], without NaN.
        errors: the standard error of each value, in the unit of the values.
        by: how far above the median they are at least, in the same unit.

    Returns:
        Their indices and p; none where more than a quarter are so far above, or with fewer than 6 values.

    Reference: Grubbs, "Procedures for detecting outlying observations in samples" (Technometrics 1969).

    >>> stand_out(np.array([0.1, 0.2, 5.0, 0.1, 0.2, 0.1]), np.zeros(6), by=1.0)[0]
    array([2])
    """
    n = len(values)
    far = values > np.median(values) + by
    few = np.flatnonzero(far)
    if n < LEAST or not 0 < len(few) <= n // 4:
        return few[:0], np.zeros(0)
    rest, k = values[~far], n - len(few)
    square = max(float(rest.var(ddof=1)), float(np.mean(errors[~far] ** 2)))
    scale = np.sqrt(square * (1 + 1 / k) + errors[few] ** 2)
    t = np.divide(values[few] - rest.mean(), scale, out=np.full(len(few), np.inf), where=scale > 0)
    return few, np.minimum(n * np.array([_beyond(float(x), k - 1) for x in t]), 1.0)


def _t(one: np.ndarray, other: np.ndarray, errors: np.ndarray) -> float:
    """The difference of two levels in standard errors."""
    square = (len(one) * one.var() + len(other) * other.var()) / (len(one) + len(other) - 2)
    scale = np.sqrt(max(float(square), float(np.mean(errors**2))) * (1 / len(one) + 1 / len(other)))
    apart = abs(float(other.mean() - one.mean()))
    return apart / float(scale) if scale > 0 else float("inf" if apart > 0 else 0)


def _apart(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two levels lie farther apart than either is wide."""
    gap = max(float(other.min() - one.max()), float(one.min() - other.max()))
    return gap > max(float(np.ptp(one)), float(np.ptp(other)))


def _beyond(t: float, freedom: int) -> float:
    """How often Student's t is larger than this by chance."""
    from scipy.stats import t as student

    return float(student.sf(t, freedom))
