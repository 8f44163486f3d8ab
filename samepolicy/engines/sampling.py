"""From logits to the distribution a sampler draws from, the same code for NumPy and torch.

The order is that of Hugging Face's `generate`: repetition penalty, temperature, top-k, top-p, min-p, each on what the
one before has left. Greedy sampling (temperature 0) keeps the penalty only, as both `generate` and vLLM do. Tokens
that tie with the last one kept are kept too, so that the kept set does not depend on how a sort breaks ties.
"""

import numpy as np
from jaxtyping import Float, Int

from samepolicy.arrays import Array, array_namespace
from samepolicy.records.side import Sampling


def log_probs(logits: Float[Array, "rows vocab"], sampling: Sampling, seen: Array = None) -> Array:
    """Log-probs under the declared sampling: the model's own if raw, those of `processed_log_probs` if processed."""
    raw = sampling.logprobs == "raw"
    return log_softmax(logits) if raw else processed_log_probs(logits, sampling, seen)


def processed_log_probs(logits: Float[Array, "rows vocab"], sampling: Sampling, seen: Array = None) -> Array:
    """Log-probs of the distribution that a sampler with these settings draws from.

    Args:
        logits: the model's logits, float32 [rows, vocab].
        sampling: temperature, top-k, top-p, min-p and repetition penalty.
        seen: which ids stand before each row's token, bool [rows, vocab]; needed for the repetition penalty only.

    Returns:
        Nats, [rows, vocab]; they sum to probability 1 over the kept set and are -inf outside of it.

    >>> processed_log_probs(np.log([[0.6, 0.3, 0.1]]), Sampling(top_k=2)).round(3)
    array([[-0.405, -1.099,   -inf]])
    """
    xp = array_namespace(logits)
    if seen is not None and sampling.repetition_penalty != 1:
        logits = xp.where(seen, penalised(logits, sampling.repetition_penalty), logits)
    if sampling.temperature == 0:
        return log_softmax(logits)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    return _keep_likely(log_softmax(logits), sampling)


def penalised(logits: Float[Array, "*any"], penalty: float) -> Array:
    """The logits of ids that were seen before, under a repetition penalty.

    >>> penalised(np.array([3.0, -1.0]), 1.5)
    array([ 2. , -1.5])
    """
    return array_namespace(logits).where(logits > 0, logits / penalty, logits * penalty)


def log_softmax(logits: Float[Array, "*rows vocab"]) -> Array:
    """logits - log Σ exp(logits) along the last axis."""
    xp = array_namespace(logits)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def entropy(logp: Float[Array, "rows vocab"]) -> Array:
    """-Σ p log p of each row, nats; ids of probability 0 count nothing.

    >>> entropy(np.log([[0.5, 0.5]])).round(4)
    array([0.6931])
    """
    xp = array_namespace(logp)
    finite = xp.where(logp > -xp.inf, logp, xp.zeros_like(logp))
    return -xp.sum(xp.exp(logp) * finite, axis=-1)


def most_likely(logp: Float[Array, "rows vocab"], count: int) -> tuple[Array, Array]:
    """The `count` most likely ids of each row, most likely first, and their log-probs."""
    xp = array_namespace(logp)
    if hasattr(xp, "topk"):
        values, ids = xp.topk(logp, count, dim=-1)
        return ids, values
    ids = np.argsort(-logp, axis=-1, kind="stable")[:, :count]
    return ids, np.take_along_axis(logp, ids, axis=-1)


def first_seen(
    prompt: Int[np.ndarray, " prompt"], response: Int[np.ndarray, " response"], vocabulary: int
) -> np.ndarray:
    """From which response token on each id counts as seen: 0 if it is in the prompt, j + 1 if first at response j.

    Row i of the `seen` mask is `first_seen <= i`, so the mask of a whole response needs one [vocabulary] array.

    >>> first_seen(np.array([2]), np.array([0, 2, 0]), 4).tolist()[:3]
    [1, 9223372036854775807, 0]
    """
    first = np.full(vocabulary, np.iinfo(np.int64).max)
    np.minimum.at(first, response, np.arange(1, len(response) + 1))
    first[prompt] = 0
    return first


def draw(logp: Float[Array, "rows vocab"], uniform: Float[Array, " rows"]) -> Int[Array, " rows"]:
    """One id per row by inverting the cumulative distribution at `uniform` in [0, 1), in float64.

    >>> draw(np.log([[0.25, 0.75], [0.25, 0.75]]), np.array([0.2, 0.3], np.float32)).tolist()
    [0, 1]
    """
    xp = array_namespace(logp)
    mass = xp.cumulative_sum(xp.exp(xp.astype(logp, xp.float64)), axis=-1)
    target = xp.astype(uniform, xp.float64)[:, None] * mass[:, -1:]
    return xp.sum(xp.astype(mass <= target, xp.int64), axis=-1)


def uniforms(seed: int, group: int, sample: int, count: int) -> Float[np.ndarray, " count"]:
    """The random numbers of one response, float32 [count]; they depend on nothing but the four arguments."""
    return np.random.default_rng([seed, group, sample]).random(count, dtype=np.float32)


def _keep_likely(logp: Array, sampling: Sampling) -> Array:
    """Cut the distribution to top-k, top-p and min-p in that order, and renormalise it over what is left."""
    xp = array_namespace(logp)
    if 0 < sampling.top_k < logp.shape[-1]:
        logp = _cut(logp, most_likely(logp, sampling.top_k)[1][:, -1:])
    if sampling.top_p < 1:
        ordered = xp.sort(logp, axis=-1, descending=True)
        mass = xp.exp(ordered)
        needed = xp.sum(xp.astype(xp.cumulative_sum(mass, axis=-1) - mass < sampling.top_p, xp.int64), axis=-1)
        logp = _cut(logp, xp.take_along_axis(ordered, xp.clip(needed, 1, None)[:, None] - 1, axis=-1))
    if sampling.min_p > 0:
        logp = _cut(logp, xp.max(logp, axis=-1, keepdims=True) + float(np.log(sampling.min_p)))
    return logp


def _cut(logp: Array, lowest: Array) -> Array:
    """Keep the ids at or above `lowest` and renormalise."""
    xp = array_namespace(logp)
    return log_softmax(xp.where(logp >= lowest, logp, -xp.inf))
