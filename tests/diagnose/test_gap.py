"""The gap in multiples of the floor, and its interval over prompts."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from samepolicy.floor.gap import CAP, FEW, LIMIT, LIMIT_FEW, Gap, bootstrap_ratio, measure, pairs
from samepolicy.records.run import Run


def noise(rng, *, prompts, tokens, sd):
    prompt = np.repeat(np.arange(prompts), tokens)
    return rng.normal(0, sd, prompts * tokens), prompt


def test_ratio_and_tails_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    d, prompt = noise(rng, prompts=20, tokens=9, sd=0.1)
    floor_square = rng.uniform(1e-4, 1e-2, len(d))
    capped = [min(x * x, (CAP * f**0.5) ** 2) for x, f in zip(d, floor_square, strict=True)]
    found = measure(d, floor_square, prompt)
    assert found.ratio == pytest.approx(sum(capped) / sum(floor_square))
    assert found.tails == pytest.approx(
        sum(abs(x) > CAP * f**0.5 for x, f in zip(d, floor_square, strict=True)) / len(d)
    )
    assert found.mean_square == pytest.approx(sum(x * x for x in d) / len(d))
    assert found.mean_abs == pytest.approx(sum(abs(x) for x in d) / len(d))
    assert (found.tokens, found.prompts) == (180, 20)
    assert found.low < found.ratio < found.high


@given(st.floats(1e-3, 1e3), st.integers(0, 2**32 - 1))
def test_scaling_difference_and_floor_alike_changes_no_ratio(scale, seed):
    d, prompt = noise(np.random.default_rng(seed), prompts=5, tokens=4, sd=1.0)
    one, other = (measure(k * d, np.full(len(d), k * k), prompt) for k in (1.0, scale))
    assert other.ratio == pytest.approx(one.ratio)
    assert (other.low, other.high, other.tails) == pytest.approx((one.low, one.high, one.tails))


def test_the_interval_covers_the_truth_as_often_as_it_says():
    # d ~ N(0, s²) with one s per prompt, s² = 0.01 · uniform(0.5, 1.5): E d² / floor² is exactly 1 at floor² = 0.01.
    rng, covered, runs = np.random.default_rng(3), 0, 300
    for _ in range(runs):
        sd = np.sqrt(0.01 * np.repeat(rng.uniform(0.5, 1.5, 60), 12))
        prompt = np.repeat(np.arange(60), 12)
        found = measure(rng.normal(0, 1, len(sd)) * sd, np.full(len(sd), 0.01), prompt)
        covered += found.low <= 1.0 <= found.high
    # nominal 95 %, 3 standard errors of 300 draws, and the percentile bootstrap's known shortfall of about 1 %
    assert 0.90 <= covered / runs <= 0.985


def test_the_interval_agrees_with_scipy():
    rng = np.random.default_rng(1)
    numerator, denominator = rng.gamma(2, 1, 40), rng.uniform(1, 2, 40)
    low, high = bootstrap_ratio(numerator, denominator)
    theirs = scipy.stats.bootstrap(
        (numerator, denominator),
        lambda a, b, axis: a.sum(axis=axis) / b.sum(axis=axis),
        paired=True,
        vectorized=True,
        n_resamples=20000,
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    assert (low, high) == pytest.approx((theirs.low, theirs.high), rel=0.03)


def test_many_units_are_drawn_in_blocks_with_the_closed_form_spread():
    rng = np.random.default_rng(5)
    numerator = rng.normal(1, 1, 50_000)
    low, high = bootstrap_ratio(numerator, np.ones(50_000))
    se = numerator.std() / np.sqrt(50_000)
    assert (low, high) == pytest.approx((numerator.mean() - 1.96 * se, numerator.mean() + 1.96 * se), abs=0.3 * se)


def test_the_same_seed_gives_the_same_interval():
    d, prompt = noise(np.random.default_rng(0), prompts=6, tokens=5, sd=1.0)
    ones = np.ones(len(d))
    assert measure(d, ones, prompt) == measure(d, ones, prompt)
    assert measure(d, ones, prompt, seed=1) != measure(d, ones, prompt)


def test_one_prompt_gives_a_ratio_but_no_interval():
    found = measure(np.array([0.1, 0.2]), np.array([0.01, 0.01]), np.array([4, 4]))
    assert found.ratio == pytest.approx(2.5)
    assert np.isnan([found.low, found.high]).all()
    assert found.place == "unclear"
    assert found.as_dict()["low"] is None


def test_no_token_gives_no_number():
    found = measure(np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.int64))
    assert found.tokens == 0
    assert np.isnan([found.ratio, found.mean_abs, found.mean_square, found.tails]).all()


def test_tokens_without_a_finite_difference_or_floor_are_left_out():
    d, floor_square = np.array([0.1, np.nan, 0.1, np.inf]), np.array([0.01, 0.01, np.nan, 0.01])
    assert measure(d, floor_square, np.arange(4)).tokens == 1


@pytest.mark.parametrize(("prompts", "limit"), [(FEW - 1, LIMIT_FEW), (FEW, LIMIT)])
def test_few_prompts_have_a_wider_limit(prompts, limit):
    def gap(low: float, high: float) -> Gap:
        return Gap(ratio=1, low=low, high=high, tokens=1, prompts=prompts, mean_abs=1, mean_square=1, tails=0)

    assert gap(1, limit).place == "below"
    assert gap(limit, limit + 1).place == "unclear"
    assert gap(limit + 1e-9, limit + 1).place == "above"


def test_many_capped_tokens_are_no_rounding_whatever_a_few_large_floors_say():
    d = np.full(120, 0.1)
    floor_square = np.where(np.arange(120) % 10 == 0, 100.0, 1e-6)
    found = measure(d, floor_square, np.repeat(np.arange(12), 10))
    assert found.ratio < 0.01
    assert found.tails == 0.9
    assert found.place == "above"
    few = measure(np.where(np.arange(120) % 30 == 1, 0.1, 0.0), floor_square, np.repeat(np.arange(12), 10))
    assert (few.tails, few.place) == (pytest.approx(4 / 120), "below")


def test_pairs_are_tokens_that_both_sides_gave_a_log_prob_of():
    run = Run.from_lists(
        rollout_logp=[[-1.0, np.nan, -3.0], [], [-4.0, 0.1, -6.0, -7.0]],
        trainer_logp=[[-1.5, -2.0, -3.0], [], [-4.0, -5.0, -np.inf, -7.25]],
        mask=[[1, 1, 0], [], [1, 1, 1, 1]],
        group=["a", "a", "b"],
    )
    found = pairs(run)
    assert found is not None
    assert found.index.tolist() == [0, 3, 6]
    assert found.difference.tolist() == [-0.5, 0.0, -0.25]
    assert found.position.tolist() == [0, 0, 3]
    assert found.prompt.tolist() == [0, 1, 1]
    assert pairs(run.without("trainer_logp")) is None


def test_a_group_is_one_prompt_and_without_groups_a_response_is():
    run = Run.from_lists(rollout_logp=[[-1.0]] * 4, trainer_logp=[[-1.0]] * 4)
    alone, grouped = pairs(run), pairs(run.with_columns(group=[7, 7, 9, 7]))
    assert alone is not None
    assert grouped is not None
    assert alone.prompt.tolist() == [0, 1, 2, 3]
    assert grouped.prompt.tolist() == [0, 0, 1, 0]
