"""What recorded log-probs are of, read off a toy's own samples: the oracle is the toy's declared sampler."""

from dataclasses import replace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine, engine
from samepolicy.engines.sampling import processed_log_probs
from samepolicy.records.declared import mark_scored
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling
from samepolicy.semantics import Known, infer, noted, predicted

FOUND = {
    "neutral": (Sampling(), {}),
    "raw": (Sampling(temperature=0.7, logprobs="raw"), {}),
    "greedy": (Sampling(temperature=0), {}),
    "temperature": (Sampling(temperature=0.7), {"temperature": 0.7}),
    "warm": (Sampling(temperature=1.5, top_k=12), {"temperature": 1.5, "top_k": 12}),
    "top-k": (Sampling(top_k=10), {"top_k": 10}),
    "top-p": (Sampling(top_p=0.8), {"top_p": 0.8}),
    "min-p": (Sampling(temperature=0.6, min_p=0.1), {"temperature": 0.6, "min_p": 0.1}),
}


@pytest.fixture(scope="module")
def rollout() -> Engine:
    return engine("toy:", dtype="bfloat16")


@pytest.fixture(scope="module")
def trainer() -> Engine:
    return engine("toy:")


@pytest.fixture(scope="module")
def prompts(trainer: Engine) -> Ragged:
    return Ragged.from_lists([trainer.encode(f"prompt {i}") for i in range(16)])


def silent(run: Run) -> Run:
    """The run, declared to be neutral."""
    return replace(run, rollout=replace(run.rollout, sampling=Sampling()))


@pytest.mark.parametrize(("sampling", "expected"), FOUND.values(), ids=FOUND)
def test_the_settings_are_found_whatever_is_declared(
    rollout: Engine, trainer: Engine, prompts: Ragged, sampling: Sampling, expected: dict[str, float]
):
    run = rollout.generate(prompts, sampling)
    honest, lie = infer(run, trainer=trainer), infer(silent(run), trainer=trainer)
    assert honest is not None
    assert lie is not None
    assert honest.status == "agrees"
    assert lie.status == ("disagrees" if expected else "agrees")
    assert lie.found.temperature == pytest.approx(expected.get("temperature", 1.0), rel=0.05)
    # two kinds of kept set may tie; the one that is named fits as well as the sampler's own
    assert bool(set(lie.found.changed) - {"temperature"}) == bool(set(expected) - {"temperature"})
    assert lie.rms <= 1.1 * honest.rms_declared


def test_raw_values_that_are_declared_processed_are_noticed(rollout: Engine, trainer: Engine, prompts: Ragged):
    run = rollout.generate(prompts, Sampling(temperature=0.6, logprobs="raw"))
    lie = replace(run, rollout=replace(run.rollout, sampling=Sampling(temperature=0.6)))
    found = infer(lie, trainer=trainer)
    assert found is not None
    assert (found.status, found.found) == ("disagrees", Sampling())
    assert "fit the model's own distribution" in str(found)


def test_a_temperature_that_nobody_declares_is_found(trainer: Engine, prompts: Ragged):
    hot = engine("toy:", dtype="bfloat16", temperature=1.2)
    found = infer(hot.generate(prompts, Sampling()), trainer=trainer)
    assert found is not None
    assert found.found.temperature == pytest.approx(1.2, rel=0.02)
    run = noted(hot.generate(prompts, Sampling()), trainer=trainer)
    assert run.info["semantics"]["found"] == {"temperature": pytest.approx(1.2, rel=0.02)}


def test_other_weights_are_not_taken_for_a_setting_nor_for_the_declared_one(trainer: Engine, prompts: Ragged):
    stale = engine("toy:", stale=0.3)
    found = infer(stale.generate(prompts, Sampling()), trainer=trainer)
    assert found is not None
    assert found.rms_declared > 0.25
    assert found.status == "unclear"
    little = infer(engine("toy:", stale=0.01).generate(prompts, Sampling()), trainer=trainer)
    assert little is not None
    assert little.status == "agrees"


def test_a_penalty_leaves_it_unclear(rollout: Engine, trainer: Engine, prompts: Ragged):
    found = infer(rollout.generate(prompts, Sampling(repetition_penalty=1.3)), trainer=trainer)
    assert found is not None
    assert found.status == "unclear"
    assert "cannot be told" in str(found)


def test_recorded_top_tokens_do_without_an_engine(rollout: Engine, trainer: Engine, prompts: Ragged):
    run = silent(rollout.generate(prompts, Sampling(temperature=0.7)))
    scores = trainer.score(run["prompt_ids"], run["response_ids"], top=64)
    columns = {"trainer_logp": scores.logp, "trainer_top_ids": scores.top_ids, "trainer_top_logp": scores.top_logp}
    whole = mark_scored(replace(run.with_columns(**columns), trainer=trainer.describe(Sampling())), *columns)
    found = infer(whole)
    assert found is not None
    assert found.found.temperature == pytest.approx(0.7, rel=0.05)
    assert infer(run) is None
    assert infer(replace(whole, trainer=trainer.describe(Sampling(temperature=0.7)))) is None


def test_the_prediction_is_that_of_the_sampler():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (40, 50))
    logp = processed_log_probs(logits, Sampling())
    head = -np.sort(-logp, axis=1)
    nothing = np.zeros((40, 0))
    for sampling in (Sampling(temperature=0.7, top_k=9, top_p=0.9), Sampling(min_p=0.05), Sampling(temperature=2.0)):
        full = processed_log_probs(logits, sampling)
        for id_ in (0, 7):
            known = Known(
                recorded=logp[:, id_], own=logp[:, id_], head=head, tail=nothing, counts=nothing, owner=np.arange(40)
            )
            np.testing.assert_allclose(predicted(known, sampling), full[:, id_], atol=1e-9)
