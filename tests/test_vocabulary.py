"""Distributions over the vocabulary: SciPy's entropy as the oracle, and the lower bound as a law."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax
from scipy.stats import entropy

from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.records.run import Run
from samepolicy.vocabulary import coarse_kl, compare_distributions


def most_likely(logp: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    ids = np.argsort(-logp, axis=1)[:, :k]
    return ids, np.take_along_axis(logp, ids, axis=1)


def pair(seed: int, noise: float) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    logits = 3 * rng.standard_normal((20, 12))
    return log_softmax(logits, axis=1), log_softmax(logits + noise * rng.standard_normal(logits.shape), axis=1)


@pytest.mark.parametrize("noise", [0.0, 0.1, 3.0])
def test_with_the_whole_vocabulary_it_is_the_kl(noise: float):
    p, q = pair(0, noise)
    kl, kept = coarse_kl(*most_likely(p, 12), *most_likely(q, 12))
    np.testing.assert_allclose(kl, entropy(np.exp(p), np.exp(q), axis=1), atol=1e-12)
    np.testing.assert_allclose(kept, 1)


@given(seed=st.integers(0, 10**6), k=st.integers(1, 12), noise=st.floats(0, 3))
def test_with_a_part_of_it_it_is_a_lower_bound(seed: int, k: int, noise: float):
    p, q = pair(seed, noise)
    kl, kept = coarse_kl(*most_likely(p, k), *most_likely(q, k))
    assert (kl >= 0).all()
    assert (kl <= entropy(np.exp(p), np.exp(q), axis=1) + 1e-9).all()
    assert ((kept >= 0) & (kept <= 1 + 1e-9)).all()


def recorded(other: str = "bfloat16", top: int = 8) -> Run:
    rng = np.random.default_rng(1)
    ids = Ragged.from_lists([rng.integers(0, 96, n) for n in (5, 9, 30)])
    prompts = Ragged.from_lists([[96, 3], [96], [96, 7, 8]])
    sides = {"rollout": engine("toy:"), "trainer": engine("toy:", dtype=other)}
    scores = {side: one.score(prompts, ids, top=top) for side, one in sides.items()}
    columns = {f"{s}_{n}": getattr(found, n) for s, found in scores.items() for n in ("logp", "top_ids", "top_logp")}
    return Run.from_lists(response_ids=ids, **columns)


def test_two_engines_are_compared_by_position():
    found = compare_distributions(recorded())
    assert found.tokens == 44
    assert 0 < found.kl.low <= found.kl.mean <= found.kl.high < 0.01
    assert list(found.by_position) == [0, 1, 4, 16]
    assert found.top1.mean > 0.8
    assert json.dumps(found.as_dict())
    assert "KL from position 16" in str(found)


def test_one_engine_is_itself():
    found = compare_distributions(recorded("float32"))
    assert (found.kl.mean, found.top1.mean) == (0, 1)


def test_masked_and_missing_tokens_are_left_out():
    run = recorded()
    mask = run["response_ids"].with_values(np.arange(44) % 2)
    assert compare_distributions(run.with_columns(mask=mask)).tokens == 22
    with pytest.raises(InputError, match="No token"):
        compare_distributions(run.with_columns(mask=mask.with_values(np.zeros(44, int))))
    with pytest.raises(MissingColumnError, match="no trainer_top_ids; .* --top K --out RUN"):
        compare_distributions(run.without("trainer_top_ids"))
