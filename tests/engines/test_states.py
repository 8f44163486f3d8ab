"""Biases, forbidden ids, penalties, temperature and kept sets behind the body, against their formulas written out."""

from collections import Counter

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.states import Forbidden, Shaping, States
from samepolicy.records.side import Sampling

VOCABULARY = 11
PROMPTS = Ragged.from_lists([[1, 4, 4], [], [7]], dtype=np.int64)
RESPONSES = Ragged.from_lists([[4, 2, 4, 4, 9], [3, 3, 3], [7]], dtype=np.int64)
LOGITS = np.random.default_rng(5).normal(0, 2, (9, VOCABULARY)).astype(np.float32)

either = pytest.mark.parametrize("kind", ["numpy", pytest.param("torch", marks=pytest.mark.full)])


def states(kind: str) -> States:
    """States whose logits are `LOGITS`, as NumPy or as torch."""
    logits = LOGITS
    if kind == "torch":
        import torch

        logits = torch.from_numpy(LOGITS)
    return States(PROMPTS, RESPONSES, VOCABULARY, lambda tokens: logits[tokens], np.arange(9))


def expected(shaping: Shaping) -> np.ndarray:
    """Log-probs of the response tokens, one place after another, in float64."""
    found, sampling = [], shaping.sampling
    for prompt, response in zip(PROMPTS, RESPONSES, strict=True):
        for place, token in enumerate(response):
            values = LOGITS[len(found)].astype(np.float64)
            before = Counter(response[:place].tolist())
            for identity, value in shaping.bias:
                values[identity] += value
            for identity, count in before.items():
                values[identity] -= shaping.presence_penalty + count * shaping.frequency_penalty
            for ban in shaping.forbidden:
                if ban.first <= place < (99 if ban.last is None else ban.last):
                    values[list(ban.ids)] = -np.inf
            for identity in {*prompt.tolist(), *before}:
                factor = sampling.repetition_penalty
                values[identity] = values[identity] / factor if values[identity] > 0 else values[identity] * factor
            values /= sampling.temperature
            if sampling.top_k:
                values[values < np.sort(values)[-sampling.top_k]] = -np.inf
            found.append(values[token] - np.log(np.exp(values).sum()))
    return np.array(found)


@either
@pytest.mark.parametrize(
    "shaping",
    [
        Shaping(),
        Shaping(sampling=Sampling(temperature=0.7)),
        Shaping(presence_penalty=0.8),
        Shaping(frequency_penalty=-0.4, presence_penalty=0.3),
        Shaping(sampling=Sampling(repetition_penalty=1.3)),
        Shaping(bias=((4, 1.5), (2, -3.0)), forbidden=(Forbidden((0, 5), 1, 3), Forbidden((6,)))),
        Shaping(
            sampling=Sampling(repetition_penalty=1.3, temperature=1.4, top_k=6),
            presence_penalty=0.2,
            frequency_penalty=0.1,
            bias=((3, 0.5),),
            forbidden=(Forbidden((8,), 2),),
        ),
    ],
)
def test_log_probs_are_those_of_the_formulas(shaping: Shaping, kind: str):
    one = states(kind)
    np.testing.assert_allclose(one.logp(shaping), expected(shaping), atol=2e-6)
    one.keep(np.array([1, 2, 3, 6]))
    for _ in range(2):  # kept logits are not changed by what is asked of them
        np.testing.assert_allclose(
            one.logp(shaping, np.array([1, 2, 3, 6])), expected(shaping)[[1, 2, 3, 6]], atol=2e-6
        )


def test_raw_log_probs_are_the_models_own_whatever_the_sampler_does():
    shaped = Shaping(sampling=Sampling(logprobs="raw", repetition_penalty=1.5, top_k=2), presence_penalty=1.0)
    np.testing.assert_array_equal(states("numpy").logp(shaped), states("numpy").logp(Shaping()))


@either
def test_nothing_is_asked_for(kind: str):
    nothing, penalised = np.zeros(0, np.int64), Shaping(presence_penalty=1.0)
    assert states(kind).logp(penalised, nothing).shape == (0,)
    assert states(kind).full(nothing, penalised).shape == (0, VOCABULARY)
