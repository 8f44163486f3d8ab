"""What holds for every step and every preset: layouts, namespaces, order, merging, identity, and what a mask hides."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samepolicy import Correction, Normalise, Reject, SecondMoment, Truncate
from samepolicy.corrections import all_steps
from samepolicy.corrections.base import MaskStep
from tests.corrections.cases import CORRECTIONS, apply, columns_of, named, packed, ragged, same_stats
from tests.oracles.correction_batches import correction_batch


def test_every_step_is_in_a_law():
    used = {type(s).__name__ for c in CORRECTIONS.values() for s in c.steps}
    assert used == set(all_steps())


@named
@settings(max_examples=8)
@given(seed=st.integers(0, 30))
def test_weights_are_zero_outside_and_nothing_is_unmasked(name, seed):
    data = correction_batch(seed)
    weights, keep, stats = apply(name, data)
    assert not (keep & ~data["mask"]).any()
    assert (weights[~keep] == 0).all()
    assert (weights >= 0).all()
    assert stats.applied.tokens == keep.sum()
    assert stats.kept == pytest.approx(keep.sum() / data["mask"].sum())


@named
@settings(max_examples=8)
@given(seed=st.integers(0, 30))
def test_padded_and_packed_are_corrected_alike(name, seed):
    data = correction_batch(seed)
    whole = apply(name, data)
    flat = packed(data)
    offsets = flat.pop("offsets")
    found = apply(name, flat, offsets=offsets)
    np.testing.assert_allclose(found.weights, whole.weights.reshape(-1), rtol=1e-12)
    np.testing.assert_array_equal(found.keep, whole.keep.reshape(-1))
    same_stats(found.stats, whole.stats)
    inside, flat = ragged(data)
    offsets = flat.pop("offsets")
    found = apply(name, flat, offsets=offsets)
    np.testing.assert_array_equal(found.keep, whole.keep[inside])
    np.testing.assert_allclose(found.weights, whole.weights[inside], rtol=1e-12)


@named
@settings(max_examples=8)
@given(seed=st.integers(0, 30))
def test_order_of_sequences_does_not_matter(name, seed):
    data = correction_batch(seed)
    order = np.random.default_rng(seed).permutation(len(data["mask"]))
    whole, found = apply(name, data), apply(name, {n: x[order] for n, x in data.items()})
    np.testing.assert_allclose(found.weights, whole.weights[order], rtol=1e-12)
    np.testing.assert_array_equal(found.keep, whole.keep[order])
    same_stats(found.stats, whole.stats)


@named
def test_blocks_and_threads_give_what_one_block_gives(name, monkeypatch):
    data = correction_batch(3, rows=40)
    whole = apply(name, data)
    monkeypatch.setattr("samepolicy.blocks.TOKENS_HOST", 30)
    monkeypatch.setattr("samepolicy.corrections.correction.THREADS", 3)
    for batch in (data, packed(data)):
        offsets = batch.pop("offsets", None)
        found = apply(name, batch, offsets=offsets)
        np.testing.assert_allclose(found.weights, whole.weights.reshape(found.weights.shape), rtol=1e-12)
        np.testing.assert_array_equal(found.keep, whole.keep.reshape(found.keep.shape))
        same_stats(found.stats, whole.stats)


@named
@settings(max_examples=8)
@given(seed=st.integers(0, 30), cut=st.integers(0, 8))
def test_statistics_of_micro_batches_add_up(name, seed, cut):
    correction = CORRECTIONS[name]
    if any(isinstance(s, Normalise | SecondMoment) for s in correction.steps):
        return  # these depend on the whole batch, and say so
    data = correction_batch(seed)
    parts = [apply(name, {n: x[rows] for n, x in data.items()}) for rows in (slice(cut), slice(cut, None))]
    whole = apply(name, data)
    same_stats(parts[0].stats + parts[1].stats, whole.stats)
    np.testing.assert_array_equal(np.concatenate([p.keep for p in parts]), whole.keep)


@named
def test_identity_where_the_policies_agree(name):
    data = correction_batch(1)
    data["trainer"] = data["current"] = data["rollout"]
    weights, keep, stats = apply(name, data)
    np.testing.assert_array_equal(keep, data["mask"])
    np.testing.assert_array_equal(weights, data["mask"])
    assert stats.raw.ess_token == stats.applied.ess_token == stats.applied.weight_mean == 1
    assert stats.clipped == stats.clamped == 0


@named
def test_what_the_mask_hides_changes_nothing(name):
    clean = correction_batch(2)
    whole = apply(name, clean)
    for junk in (np.nan, np.inf, 1e10):
        found = apply(name, correction_batch(2, junk=junk))
        np.testing.assert_array_equal(found.weights, whole.weights)
        same_stats(found.stats, whole.stats)


@named
@settings(max_examples=8)
@given(seed=st.integers(0, 20))
def test_a_mask_step_applied_again_drops_nothing_more(name, seed):
    correction = CORRECTIONS[name]
    data = correction_batch(seed)
    for step in (s for s in correction.steps if isinstance(s, MaskStep)):
        twice = Correction(step, step)
        assert twice(**columns_of(twice, data)).stats.dropped[1].tokens == 0


@named
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_bad_value_under_the_mask_is_counted_and_gets_no_weight(name, value):
    data = correction_batch(4)
    data["rollout"][0, 0] = value
    weights, keep, stats = apply(name, data)
    assert np.isfinite(weights).all()
    assert stats.nonfinite == 1
    assert stats.raw.tokens == data["mask"].sum() - 1
    if not (name == "agreeing" and math.isnan(value)):
        assert weights[0, 0] == 0
        assert not keep[0, 0]


def test_a_missing_value_that_counts_as_agreement_has_ratio_1():
    data = correction_batch(4)
    data["rollout"][0, 0] = np.nan
    batch = {n: data[n] for n in ("trainer", "rollout", "mask")}
    found = Correction(Truncate(2.0), missing="agree")(**batch)
    assert found.weights[0, 0] == 1
    assert found.keep[0, 0]


@given(seed=st.integers(0, 30), above=st.floats(0.5, 3.0))
def test_a_tighter_bound_never_keeps_more(seed, above):
    data = correction_batch(seed)
    batch = {n: data[n] for n in ("trainer", "rollout", "mask")}
    for over in ("token", "sequence"):
        loose, tight = (Correction(Reject("k2", above=b, over=over))(**batch).keep for b in (above, above / 2))
        assert not (tight & ~loose).any()


@given(seed=st.integers(0, 30))
def test_the_second_moment_is_within_its_budget(seed):
    data = correction_batch(seed)
    found = apply("m2po", data)
    d = data["trainer"] - data["rollout"]
    harmful = found.keep & (data["advantage"][:, None] * d > 0)
    assert not harmful.any() or np.mean(d[harmful] ** 2) <= 0.04 + 1e-12


def test_everything_rejected_leaves_zero_weights_and_statistics_that_do_not_exist():
    data = correction_batch(5)
    batch = {n: data[n] for n in ("trainer", "rollout", "mask")}
    weights, keep, stats = Correction(Truncate(2.0), Reject("ratio", above=1e-20), Normalise())(**batch)
    assert not keep.any()
    assert (weights == 0).all()
    assert (stats.applied.tokens, stats.applied.sequences) == (0, 0)
    numbers = dataclasses.asdict(stats.applied)
    assert all(math.isnan(v) for k, v in numbers.items() if k not in ("tokens", "sequences"))
    assert stats.kept == 0
    assert stats.raw.tokens == data["mask"].sum()


@named
@pytest.mark.parametrize("shape", [(0, 3), (2, 0), (2, 3)])
def test_batches_without_a_token(name, shape):
    empty = {n: np.zeros(shape) for n in ("trainer", "rollout", "current", "turn")}
    data = empty | {"mask": np.zeros(shape, bool), "advantage": np.zeros(shape[0])}
    weights, keep, stats = apply(name, data)
    assert weights.shape == keep.shape == shape
    assert not weights.any()
    assert stats.sequences == shape[0]
    assert math.isnan(stats.raw.ess_token)
    assert stats.tokens == 0


@given(seed=st.integers(0, 30))
def test_statistics_are_those_of_plain_loops(seed):
    data = correction_batch(seed)
    correct = Correction(Truncate(1.5), Reject("k3", above=0.3, over="sequence"))
    weights, keep, stats = correct(**{n: data[n] for n in ("trainer", "rollout", "mask")})
    rows = [np.exp((t - r)[m]) for t, r, m in zip(data["trainer"], data["rollout"], data["mask"], strict=True)]
    ratios = np.concatenate(rows)
    geometric = np.array([np.exp(np.log(r).mean()) for r in rows if len(r)])

    def ess(w):
        return w.sum() ** 2 / (len(w) * (w**2).sum())

    assert stats.raw.ess_token == pytest.approx(ess(ratios))
    assert stats.raw.ess_sequence == pytest.approx(ess(geometric))
    assert stats.raw.ratio_mean == pytest.approx(ratios.mean())
    assert (stats.raw.ratio_max, stats.raw.ratio_min) == pytest.approx((ratios.max(), ratios.min()))
    assert stats.clipped == pytest.approx((ratios > 1.5).mean())
    expected = [np.minimum(r, 1.5) * (np.mean(r - 1 - np.log(r)) <= 0.3) for r in rows if len(r)]
    np.testing.assert_allclose(weights[data["mask"]], np.concatenate(expected))
    assert stats.applied.ess_token == pytest.approx(ess(np.concatenate(expected)))
    assert stats.applied.ess_sequence == pytest.approx(ess(np.array([w.mean() for w in expected])))
    assert stats.applied.weight_mean == pytest.approx(weights[keep].mean())
    assert stats.dropped[0].sequences == sum(not w.any() for w in expected)


def test_a_ratio_that_overflows_is_counted_without_a_warning():
    batch = {"trainer": np.array([[-1.0, -1.0]]), "rollout": np.array([[-2000.0, -1.0]]), "mask": np.ones((1, 2))}
    found = Correction(Truncate(2.0))(**batch)
    assert found.weights.tolist() == [[2.0, 1.0]]
    assert found.stats.raw.ratio_max == math.inf
    assert found.stats.raw.ess_token == 0.5
