"""The toy engine: the laws, its rounding, and each of its faults against what the fault says."""

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import engine
from samepolicy.engines.toy import BOS, EOS, VOCABULARY, Toy
from samepolicy.engines.toy_model import Cache, Model, cast, to_bfloat16
from samepolicy.errors import InputError
from samepolicy.records.side import Sampling
from samepolicy.testing import engine_laws

PROMPTS = ("Hello there.", "What is two and two?", "a")


@pytest.fixture(scope="module")
def toy() -> Toy:
    return engine("toy:")


@pytest.fixture(scope="module")
def prompts(toy: Toy) -> Ragged:
    return Ragged.from_lists([toy.encode(p) for p in PROMPTS])


@pytest.fixture(scope="module")
def responses(toy: Toy) -> Ragged:
    return Ragged.from_lists([toy.encode(p)[1:] for p in ("fine thanks", "4", "b or c")])


@pytest.mark.parametrize("options", [{}, {"seed": 3}, {"stale": 0.02, "hide_prompt": True}], ids=str)
def test_the_laws_hold(options: dict, prompts: Ragged, responses: Ragged):
    engine_laws(engine("toy:", **options), prompts=prompts, responses=responses)


def test_scores_are_the_models_own_distribution(toy: Toy, prompts: Ragged, responses: Ragged):
    model = Model.random(VOCABULARY, seed=0)
    logp = toy.score(prompts, responses).logp
    for i in range(len(prompts)):
        context = list(prompts[i])
        for t, token in enumerate(responses[i]):
            logits = model.logits(np.array(context), Cache())[-1].astype(np.float64)
            assert logp[i][t] == pytest.approx(logits[token] - np.log(np.exp(logits).sum()), abs=2e-5)
            context.append(token)


def test_later_tokens_do_not_matter(toy: Toy, prompts: Ragged, responses: Ragged):
    changed = Ragged.from_lists([np.r_[row[:-1], EOS] for row in responses])
    one, two = toy.score(prompts, responses).logp, toy.score(prompts, changed).logp
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a[:-1], b[:-1])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_has_the_size_of_its_dtype(dtype: str, toy: Toy, prompts: Ragged):
    low, high = {"float32": (0, 5e-6), "bfloat16": (5e-3, 0.1), "float16": (6e-4, 0.01)}[dtype]
    rollout = engine("toy:", dtype=dtype)
    run = rollout.generate(prompts, Sampling(max_tokens=40), samples=2)
    for reference in (rollout, toy):
        d = reference.score(run["prompt_ids"], run["response_ids"]).logp.values - run["rollout_logp"].values
        assert low <= np.abs(d).mean() <= high


@pytest.mark.full
def test_bfloat16_is_torchs():
    import torch

    x = np.random.default_rng(0).normal(size=1000).astype(np.float32) * 100
    np.testing.assert_array_equal(to_bfloat16(x), torch.from_numpy(x).to(torch.bfloat16).float().numpy())


def test_weights_are_rounded_first(toy: Toy, prompts: Ragged, responses: Ragged):
    rounded = toy.variant(dtype="float32", weights_dtype="bfloat16")
    model = cast(cast(Model.random(VOCABULARY, seed=0), "bfloat16"), "float32")
    own = toy.score(prompts, responses).logp.values
    assert np.abs(rounded.score(prompts, responses).logp.values - own).mean() > 1e-3
    logits = model.logits(np.r_[prompts[0], responses[0][:-1]], Cache())[len(prompts[0]) - 1 :]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = rounded.score(prompts, responses).logp[0]
    np.testing.assert_allclose(found, expected[np.arange(len(found)), responses[0]], atol=1e-5)


def test_the_temperature_fault_is_a_temperature(toy: Toy, prompts: Ragged, responses: Ragged):
    faulty = engine("toy:", temperature=0.7).score(prompts, responses).logp.values
    meant = toy.score(prompts, responses, sampling=Sampling(temperature=0.7)).logp.values
    np.testing.assert_allclose(faulty, meant, atol=1e-6)


@pytest.mark.parametrize("shift", [1, -1, 2])
def test_the_shift_fault_is_a_roll(shift: int, toy: Toy, prompts: Ragged, responses: Ragged):
    faulty = engine("toy:", shift=shift)
    for a, b in zip(faulty.score(prompts, responses).logp, toy.score(prompts, responses).logp, strict=True):
        np.testing.assert_array_equal(a, np.roll(b, -shift))


def test_the_bos_fault_is_one_more_id(toy: Toy, prompts: Ragged, responses: Ragged):
    doubled = Ragged.from_lists([np.r_[BOS, row] for row in prompts])
    faulty = engine("toy:", extra_bos=1).score(prompts, responses).logp.values
    np.testing.assert_array_equal(faulty, toy.score(doubled, responses).logp.values)


def test_a_hidden_prompt_is_not_seen(prompts: Ragged, responses: Ragged):
    blind = engine("toy:", hide_prompt=True)
    other = Ragged.from_lists([np.r_[row[:-1][::-1], row[-1]] for row in prompts])
    a, b = (blind.score(p, responses).logp.values for p in (prompts, other))
    np.testing.assert_allclose(a, b, atol=1e-6)


def test_faults_show_and_are_not_declared(toy: Toy, prompts: Ragged, responses: Ragged):
    own = toy.score(prompts, responses).logp.values
    for fault in ({"temperature": 0.7}, {"shift": 1}, {"hide_prompt": True}, {"extra_bos": 1}, {"stale": 0.05}):
        faulty = engine("toy:", **fault)
        assert np.abs(faulty.score(prompts, responses).logp.values - own).mean() > 0.05
        assert faulty.describe(Sampling()) == toy.describe(Sampling())


def test_greedy_takes_the_most_likely(toy: Toy, prompts: Ragged):
    run = toy.generate(prompts, Sampling(temperature=0, max_tokens=6))
    best = toy.score(run["prompt_ids"], run["response_ids"], top=1)
    np.testing.assert_array_equal(best.top_ids.values[:, 0], run["response_ids"].values)
    np.testing.assert_allclose(best.logp.values, run["rollout_logp"].values, atol=1e-5)


def test_a_response_ends_with_its_end_token(toy: Toy, prompts: Ragged):
    run = toy.generate(prompts, Sampling(temperature=3, max_tokens=60), samples=20)
    reasons = run["finish_reason"]
    assert set(reasons) == {"stop", "length"}
    for ids, reason in zip(run["response_ids"], reasons, strict=True):
        assert (ids == EOS).sum() == (reason == "stop") == (ids[-1] == EOS)
        assert reason == "stop" or len(ids) == 60
    assert run.mask.values.all()


def test_text_goes_in_and_out(toy: Toy):
    assert toy.decode(toy.encode("Hi, you!\n")) == "<s>Hi, you!\n"
    assert toy.encode([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]) == toy.encode("a\nb")
    with pytest.raises(InputError, match="printable ASCII"):
        toy.encode("né")
