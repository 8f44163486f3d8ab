"""Every statistic is a monoid: parts merge to the whole, in any order and grouping, with an identity."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from samepolicy.pareto import Tail
from samepolicy.stats import Comoments, Histogram, LogWeights, Mean, Moments, Share, Statistic

values = st.lists(st.floats(-20, 5, allow_subnormal=False), min_size=0, max_size=40).map(np.array).map(np.float64)
SCALAR = [Moments, Mean, LogWeights, Histogram, Tail, Share]


def make(kind: type[Statistic], x: np.ndarray) -> Statistic:
    if kind is Share:
        return kind.of(x > 0)
    return kind.of(np.abs(x)) if kind is Histogram else kind.of(x)


def close(a: Statistic, b: Statistic) -> None:
    for name, value in a.readouts().items():
        assert value == pytest.approx(b.readouts()[name], rel=1e-9, abs=1e-9, nan_ok=True), name


@pytest.mark.parametrize("kind", SCALAR)
@given(a=values, b=values, c=values)
def test_merging_parts_equals_measuring_the_whole(kind, a, b, c):
    whole = make(kind, np.concatenate([a, b, c]))
    close((make(kind, a) + make(kind, b)) + make(kind, c), whole)
    close(make(kind, c) + (make(kind, a) + make(kind, b)), whole)
    close(whole + kind.identity(), whole)
    assert whole.count == len(a) + len(b) + len(c)


@pytest.mark.parametrize("kind", [Histogram, Tail, Share])
@given(a=values, b=values)
def test_counts_extremes_and_bins_merge_exactly(kind, a, b):
    assert np.array_equal((make(kind, a) + make(kind, b)).state, make(kind, np.concatenate([a, b])).state)


@given(a=values, b=values)
def test_pearson_merges(a, b):
    def pair(x):
        return x, np.sin(x) + 0.3 * x

    both = np.concatenate([a, b])
    merged = Comoments.of(pair(a)) + Comoments.of(pair(b))
    assert merged.readouts()["pearson"] == pytest.approx(
        Comoments.of(pair(both)).readouts()["pearson"], rel=1e-6, abs=1e-6, nan_ok=True
    )


def test_moments_against_numpy():
    x = np.random.default_rng(0).normal(-12, 0.001, 100_000)
    found = (Moments.of(x[:7]) + Moments.of(x[7:])).readouts()
    assert found["mean"] == pytest.approx(x.mean(), rel=1e-14)
    assert found["std"] == pytest.approx(x.std(ddof=1), rel=1e-9)
    assert (found["min"], found["max"]) == (x.min(), x.max())


def test_moments_of_none_and_one():
    assert math.isnan(Moments.identity().readouts()["mean"])
    one = Moments.of(np.array([3.0])).readouts()
    assert one["mean"] == 3
    assert math.isnan(one["std"])


def test_pearson_against_scipy():
    rng = np.random.default_rng(1)
    x = rng.random(1000)
    y = x + 0.1 * rng.random(1000)
    assert Comoments.of((x, y)).readouts()["pearson"] == pytest.approx(scipy_stats.pearsonr(x, y).statistic, rel=1e-12)
    assert math.isnan(Comoments.of((x, np.ones_like(x))).readouts()["pearson"])


def test_log_weights_of_huge_products_do_not_overflow():
    lw = np.array([5000.0, 4999.0, -5000.0])
    w = np.exp(lw - 5000)
    assert LogWeights.of(lw).readouts()["ess"] == pytest.approx(w.sum() ** 2 / (3 * (w**2).sum()))
    assert LogWeights.of(lw).readouts()["chi2"] == math.inf
    assert LogWeights.of(lw).readouts()["log_mean"] == pytest.approx(5000 + math.log(w.mean()))


def test_quantiles_are_right_to_half_a_bin():
    x = np.random.default_rng(2).lognormal(-4, 2, 50_000)
    h = Histogram.of(x)
    for q in (0.5, 0.9, 0.99, 0.999):
        assert h.quantile(q) == pytest.approx(np.quantile(x, q), rel=0.009)


def test_quantiles_outside_the_bins():
    assert Histogram.of(np.zeros(3)).quantile(0.5) == 0
    assert Histogram.of(np.full(3, 1e9)).quantile(0.5) == math.inf
    assert math.isnan(Histogram.identity().quantile(0.5))


def test_float32_values_fall_into_the_same_bins():
    import torch

    x = np.random.default_rng(3).lognormal(-4, 2, 1000).astype(np.float32)
    single = Histogram.of(torch.from_numpy(x)).state
    assert np.array_equal(single, Histogram.of(x.astype(np.float64)).state)


test_float32_values_fall_into_the_same_bins = pytest.mark.full(test_float32_values_fall_into_the_same_bins)
