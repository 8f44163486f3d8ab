"""The arithmetic of sampling against plain loops, and NumPy against torch."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax as scipy_log_softmax

from samepolicy.engines import sampling as arithmetic
from samepolicy.records.side import Sampling

settings_of = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5]),
    top_p=st.sampled_from([0.2, 0.5, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 3, 50]),
    min_p=st.sampled_from([0.0, 0.05, 0.3]),
    repetition_penalty=st.sampled_from([1.0, 1.2, 0.8]),
)


def by_hand(logits: np.ndarray, sampling: Sampling, seen: np.ndarray) -> np.ndarray:
    """One row, token by token, in float64."""
    scores: dict[int, float] = {}
    for token, value in enumerate(logits.astype(float)):
        if seen[token]:
            scores[token] = value / sampling.repetition_penalty if value > 0 else value * sampling.repetition_penalty
        scores[token] = scores.get(token, value) / (sampling.temperature or 1.0)
    kept = sorted(scores, key=lambda token: -scores[token])
    if sampling.temperature > 0:
        kept = kept[: sampling.top_k or None]
        total = sum(np.exp(scores[t]) for t in kept)
        nucleus, mass = [], 0.0
        for token in kept:
            if mass >= sampling.top_p and nucleus:
                break
            nucleus.append(token)
            mass += np.exp(scores[token]) / total
        kept = [t for t in nucleus if np.exp(scores[t] - scores[nucleus[0]]) >= sampling.min_p]
    total = sum(np.exp(scores[t]) for t in kept)
    return np.array([scores[t] - np.log(total) if t in kept else -np.inf for t in range(len(logits))])


@given(st.integers(0, 10_000), settings_of)
def test_processed_is_what_a_plain_loop_gives(seed: int, sampling: Sampling):
    rng = np.random.default_rng(seed)
    logits, seen = rng.normal(size=(3, 12)) * 2, rng.random((3, 12)) < 0.4
    ours = arithmetic.processed_log_probs(logits, sampling, seen)
    hand = np.array([by_hand(*row, sampling, s) for *row, s in zip(logits, seen, strict=True)])
    np.testing.assert_allclose(ours, hand, atol=1e-9)


@given(st.integers(0, 10_000), settings_of)
def test_processed_is_a_distribution(seed: int, sampling: Sampling):
    logits = np.random.default_rng(seed).normal(size=(4, 20)).astype(np.float32) * 3
    logp = arithmetic.processed_log_probs(logits, sampling)
    assert logp.dtype == np.float32
    np.testing.assert_allclose(np.exp(logp.astype(float)).sum(-1), 1, atol=1e-5)


def test_raw_leaves_the_distribution_alone():
    logits = np.random.default_rng(0).normal(size=(4, 20))
    raw = arithmetic.log_probs(logits, Sampling(temperature=0.5, top_k=2, logprobs="raw"))
    np.testing.assert_allclose(raw, scipy_log_softmax(logits, axis=-1), atol=1e-12)


def test_entropy_of_known_distributions():
    p = np.array([[0.25, 0.25, 0.25, 0.25], [1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0]])
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(arithmetic.entropy(np.log(p)), [np.log(4), 0, np.log(2)], atol=1e-12)


@given(st.lists(st.integers(0, 5), max_size=6), st.lists(st.integers(0, 5), max_size=6))
def test_first_seen_is_what_stands_before(prompt: list[int], response: list[int]):
    first = arithmetic.first_seen(np.array(prompt, dtype=int), np.array(response, dtype=int), 6)
    for i in range(len(response)):
        assert set(np.flatnonzero(first <= i)) == set(prompt) | set(response[:i])


def test_draw_follows_the_distribution():
    p = np.array([0.1, 0.0, 0.6, 0.3])
    uniform = np.random.default_rng(0).random(20_000, dtype=np.float32)
    with np.errstate(divide="ignore"):
        ids = arithmetic.draw(np.tile(np.log(p), (len(uniform), 1)), uniform)
    counts = np.bincount(ids, minlength=4)
    assert counts[1] == 0
    np.testing.assert_allclose(counts / len(uniform), p, atol=4 * np.sqrt(0.25 / len(uniform)))


def test_draw_at_the_edges_never_leaves_the_kept_set():
    with np.errstate(divide="ignore"):
        logp = np.log(np.array([[0.0, 0.5, 0.5, 0.0]] * 2, dtype=np.float32))
    assert arithmetic.draw(logp, np.array([0.0, 1 - 2**-24], dtype=np.float32)).tolist() == [1, 2]


def test_uniforms_depend_on_their_arguments_only():
    one = arithmetic.uniforms(3, 1, 2, 8)
    assert np.array_equal(one, arithmetic.uniforms(3, 1, 2, 16)[:8])
    for other in ((4, 1, 2), (3, 2, 2), (3, 1, 3), (3, 2, 1)):
        assert not np.array_equal(one, arithmetic.uniforms(*other, 8))


@pytest.mark.full
@settings(max_examples=30)
@given(st.integers(0, 10_000), settings_of)
def test_torch_and_numpy_agree(seed: int, sampling: Sampling):
    import torch

    rng = np.random.default_rng(seed)
    logits, seen = rng.normal(size=(3, 30)), rng.random((3, 30)) < 0.3
    ours = arithmetic.processed_log_probs(logits, sampling, seen)
    theirs = arithmetic.processed_log_probs(torch.from_numpy(logits), sampling, torch.from_numpy(seen))
    np.testing.assert_allclose(theirs.numpy(), ours, atol=1e-9)
    chance = rng.random(3, dtype=np.float32)
    assert arithmetic.draw(theirs, torch.from_numpy(chance)).tolist() == arithmetic.draw(ours, chance).tolist()
    best = arithmetic.most_likely(theirs, 3)[1].numpy()
    np.testing.assert_allclose(best, arithmetic.most_likely(ours, 3)[1], atol=1e-9)
    np.testing.assert_allclose(best, -np.sort(-ours, axis=-1)[:, :3], atol=1e-9)
    np.testing.assert_allclose(arithmetic.entropy(theirs).numpy(), arithmetic.entropy(ours), atol=1e-9)
