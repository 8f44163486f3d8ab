"""What SGLang's and llama.cpp's source answers, and answers that make no sense."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.errors import EngineError, InputError
from samepolicy.records.side import Sampling
from tests.fake_server import KINDS, PROMPTS, RESPONSES, TOY, changed, connected, serving

pytestmark = pytest.mark.full


def first(value: dict[str, Any]) -> dict[str, Any]:
    return value["choices"][0]


def put(place: str, item: Any) -> Callable[[dict[str, Any]], None]:
    """Replace the first id or log-prob of a sampled response, or all of them."""

    def change(value: dict[str, Any]) -> None:
        if place == "ids":
            first(value)["token_ids"][0] = item
        elif place == "logp":
            first(value)["logprobs"]["token_logprobs"][0] = item
        else:
            first(value)[place] = item

    return change


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (put("ids", -1), "no token id"),
        (put("ids", 2**70), "no token id"),
        (put("ids", "12"), "no token id"),
        (put("ids", 1.5), "no token id"),
        (put("ids", None), "no token id"),
        (put("logp", "-1.0"), "is no number"),
        (put("logp", True), "is no number"),
        (put("logp", [1]), "built otherwise"),
        (put("logp", {}), "built otherwise"),
        (put("logprobs", [1]), "built otherwise"),
        (put("token_ids", "abc"), "no token_ids"),
        (lambda value: value.update(choices=[7]), "empty choices"),
    ],
)
def test_a_sampled_answer_that_makes_no_sense_is_one_sentence(change: Any, sentence: str):
    with serving(changed(change)) as url, pytest.raises(EngineError, match=sentence):
        connected(url).generate(PROMPTS, Sampling(max_tokens=3))


@pytest.mark.parametrize("places", [[None, {"5": {}}], [None, {"x": {"logprob": -1}}], [None, 7], {}, "abc"])
def test_a_scored_answer_that_makes_no_sense_is_one_sentence(places: Any):
    def change(value: dict[str, Any]) -> None:
        first(value)["prompt_logprobs"] = places * 9 if isinstance(places, list) else places
        if isinstance(places, list):
            first(value)["prompt_logprobs"] = [None, *[places[1]] * (len(first(value)["prompt_token_ids"]) - 1)]

    with serving(changed(change)) as url, pytest.raises(EngineError, match="built otherwise|no prompt_logprobs"):
        connected(url).score(PROMPTS, RESPONSES)


def test_sglang_applies_the_temperature_but_says_so_only_where_it_is_not_greedy():
    with serving(lambda path, body, _: KINDS["sglang"](TOY, path, body)) as url:
        one = connected(url)
        assert one.describe(Sampling()).extra["logprobs_mode"] == "temperature"
        run = one.generate(PROMPTS, Sampling(temperature=0.6, max_tokens=5))
        with pytest.raises(InputError, match="records temperature log-probs"):
            one.generate(PROMPTS, Sampling(temperature=0.6, top_p=0.9))
    expected = TOY.engine.score(run["prompt_ids"], run["response_ids"], sampling=Sampling(temperature=0.6))
    np.testing.assert_allclose(run["rollout_logp"].values, expected.logp.values, atol=1e-5)


def test_sglangs_end_token_may_be_missing_among_its_ids_but_no_other():
    def drop(value: dict[str, Any]) -> None:
        value["output_ids"] = value["output_ids"][:-1]

    def swap(value: dict[str, Any]) -> None:
        value["output_ids"] = [97, *value["output_ids"][1:]]

    with serving(changed(drop, "sglang")) as url:
        assert connected(url).generate(PROMPTS, Sampling(max_tokens=4)).tokens
    with serving(changed(swap, "sglang")) as url, pytest.raises(EngineError, match="other ids than it says"):
        connected(url).generate(PROMPTS, Sampling(max_tokens=4))


def test_llamacpps_tokens_within_a_character_have_no_log_prob():
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        code, value = KINDS["llamacpp"](TOY, path, body)
        if path == "/completion" and body["n_predict"] == 3:
            entries = [{"id": i, "logprob": -float(i)} for i in (11, 33)]
            value = {"tokens": [11, 22, 33], "completion_probabilities": entries, "stop_type": "limit"}
        return code, value

    with serving(answer) as url:
        run = connected(url).generate(PROMPTS, Sampling(max_tokens=3))
    np.testing.assert_array_equal(run["rollout_logp"].values, [-11, np.nan, -33] * 2)


def test_where_llamacpp_could_mean_either_token_nothing_is_guessed():
    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        code, value = KINDS["llamacpp"](TOY, path, body)
        if path == "/completion":
            entries = [{"id": 11, "logprob": -1.0}]
            value = {"tokens": [11, 11], "completion_probabilities": entries, "stop_type": "limit"}
        return code, value

    with serving(answer) as url, pytest.raises(EngineError, match="1 log-probs for 2 tokens"):
        connected(url).generate(PROMPTS, Sampling(max_tokens=3))


def test_llamacpp_is_told_the_order_of_its_samplers():
    asked: list[dict[str, Any]] = []

    def answer(path: str, body: dict[str, Any], _: dict[str, str]) -> Any:
        asked.append(body)
        return KINDS["llamacpp"](TOY, path, body)

    with serving(answer) as url:
        one = connected(url)
        one.generate(PROMPTS, Sampling(max_tokens=2))
        sampled = next(body for body in asked if body.get("n_predict") == 2)
        with pytest.raises(InputError, match="takes 63 at most"):
            one.generate(Ragged.from_lists([[5] * 64]), Sampling())
    assert sampled["samplers"] == ["penalties", "temperature", "top_k", "top_p", "min_p"]
