"""The Pareto shape against arviz-stats and against tails of known shape."""

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from samepolicy.pareto import Tail, fit_shape

pytestmark = pytest.mark.full


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [60, 1000, 20_000])
def test_k_equals_arviz(seed, count):
    from arviz_stats.base import array_stats

    lw = np.random.default_rng(seed).standard_t(3, count) * 0.3
    _, k = array_stats.psislw(-lw)  # it takes log-likelihoods, whose negatives are the log-weights
    assert Tail.of(lw).readouts()["k"] == pytest.approx(float(k), rel=1e-6)


@pytest.mark.parametrize("shape", [0.1, 0.5, 0.9])
def test_a_pareto_tail_gives_its_own_shape(shape):
    x = np.sort(scipy_stats.genpareto.rvs(shape, size=20_000, random_state=0))
    assert fit_shape(x) == pytest.approx(shape, abs=0.03)


def test_no_tail_no_shape():
    assert math.isnan(Tail.of(np.zeros(1000)).readouts()["k"])
    assert math.isnan(Tail.of(np.zeros(3)).readouts()["k"])


def test_trust_threshold():
    assert Tail.of(np.arange(100.0)).readouts()["trusted_below"] == pytest.approx(0.5)
    assert Tail.of(np.arange(10_000.0)).readouts()["trusted_below"] == 0.7
