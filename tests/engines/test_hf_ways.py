"""Padding and packing of the Hugging Face trainer: every way gives the same log-probs in float32."""

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines import hf_ways
from samepolicy.engines.base import engine

pytestmark = pytest.mark.full


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("way", ["padded left", "packed"])
def test_every_way_is_the_plain_one(tiny, ragged_ids: tuple[Ragged, Ragged], family: str, way: str):
    model = engine(f"hf:{tiny(family)}", dtype="float32", device="cpu")
    prompts, responses = ragged_ids
    found = hf_ways.ways(model)[way](prompts, responses)
    np.testing.assert_allclose(found.values, model.score(prompts, responses).logp.values, atol=1e-4)


def test_an_empty_prompt_leaves_the_first_token_unknown(tiny):
    model = engine(f"hf:{tiny('llama')}", dtype="float32", device="cpu")
    prompts, responses = Ragged.from_lists([[], [5]], dtype=np.int64), Ragged.from_lists([[7], [8, 9]])
    for way in hf_ways.ways(model).values():
        assert np.isnan(way(prompts, responses).values).tolist() == [True, False, False]
