"""The verdict on a real chat model: healthy in two dtypes, and three faults of a trainer."""

from dataclasses import replace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.diagnose import Diagnosis, check, diagnose
from samepolicy.engines.base import Capabilities, Engine, Scores, engine
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side
from samepolicy.testing import smollm2_path

pytestmark = pytest.mark.full

SAMPLING = Sampling(max_tokens=24)
PROMPTS = [
    "Name three colours.",
    "What is the capital of France?",
    "Write one sentence about rain.",
    "Why is the sky blue?",
    "Give me a rhyme for cat.",
    "What is 12 + 30?",
    "Tell me a joke.",
    "Who wrote Hamlet?",
]


class Trainer(Engine):
    """A trainer whose model is healthy and whose scoring code is not; it declares nothing of it."""

    capabilities = Capabilities(variants=True)

    def __init__(self, model: Engine):
        self.model = model

    def describe(self, sampling: Sampling) -> Side:
        return self.model.describe(sampling)

    def variant(self, *, dtype, weights_dtype=None):
        return self.model.variant(dtype=dtype, weights_dtype=weights_dtype)


class Cooled(Trainer):
    """Divides the logits by 0.7."""

    def score(self, prompts, responses, *, sampling=SAMPLING, entropy=False, top=0) -> Scores:
        return self.model.score(prompts, responses, sampling=replace(sampling, temperature=0.7))


class Sliced(Trainer):
    """Reads logits [m : m+n] instead of [m-1 : m-1+n]: token i is scored after it has been seen."""

    def score(self, prompts, responses, *, sampling=SAMPLING, entropy=False, top=0) -> Scores:
        pairs = list(zip(prompts, responses, strict=True))
        seen = [np.concatenate([p, r[: i + 1]]) for p, r in pairs for i in range(len(r))]
        ones = [r[i : i + 1] for _, r in pairs for i in range(len(r))]
        logp = self.model.score(Ragged.from_lists(seen), Ragged.from_lists(ones), sampling=sampling).logp
        return Scores(logp=responses.with_values(logp.values))


class Promptless(Trainer):
    """Gives the model only the last `keep` tokens of each prompt."""

    def __init__(self, model: Engine, keep: int):
        super().__init__(model)
        self.keep = keep

    def score(self, prompts, responses, *, sampling=SAMPLING, entropy=False, top=0) -> Scores:
        ends = Ragged.from_lists([p[len(p) - self.keep :] for p in prompts], dtype=np.int64)
        return self.model.score(ends, responses, sampling=sampling)


@pytest.fixture(scope="module")
def wide() -> Engine:
    return engine(f"hf:{smollm2_path()}", dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def narrow(wide: Engine) -> Engine:
    return wide.variant(dtype="bfloat16")


@pytest.fixture(scope="module")
def healthy(narrow: Engine) -> Diagnosis:
    return check(rollout=narrow, trainer=narrow, prompts=PROMPTS, sampling=SAMPLING)


@pytest.fixture(scope="module")
def rollouts(healthy: Diagnosis) -> Run:
    """What the bfloat16 engine sampled, and how a healthy bfloat16 trainer rounds, before any trainer saw it."""
    return replace(healthy.run.without("trainer_logp", "trainer_entropy"), trainer=Side())


def test_float32_on_both_sides_is_one_policy(wide: Engine):
    found = check(rollout=wide, trainer=wide, prompts=PROMPTS[:4], sampling=SAMPLING)
    assert found.verdict in {"same", "numerics"}
    assert found.exit_code == 0
    assert found.summary["logp_diff"]["mean"] < 1e-4


def test_bfloat16_on_both_sides_is_rounding(healthy: Diagnosis):
    assert (healthy.verdict, healthy.exit_code) == ("numerics", 0)
    assert not [rung for rung in healthy.ladder if rung.status == "failed"]
    assert not [side for side in healthy.sides if side.misses]
    assert healthy.floor is not None
    assert healthy.floor.rollout is not None
    assert 0.02 < healthy.floor.rollout.overall < 0.15  # bfloat16 on this model; other reports say 0.05


def test_bfloat16_against_float32_is_rounding(rollouts: Run, wide: Engine):
    found = diagnose(rollouts.without("trainer_reference_logp", "trainer_rounded_logp"), trainer=wide)
    assert found.verdict == "numerics"
    assert found.further == "rollout"


@pytest.mark.parametrize(
    ("fault", "further"),
    [
        (Cooled, "trainer"),
        (Sliced, "trainer"),
        (lambda model: Promptless(model, 0), None),  # nothing predicts the first token: structure has failed
        (lambda model: Promptless(model, 1), "trainer"),
    ],
)
def test_a_fault_of_the_trainer_makes_them_differ(rollouts: Run, narrow: Engine, fault, further):
    found = diagnose(rollouts.select(np.arange(4)), trainer=fault(narrow))
    assert (found.verdict, found.exit_code) == ("different", 1)
    assert [side.name for side in found.sides if side.misses] == ["trainer"]
    assert found.further == further


def test_a_trainer_that_declares_another_temperature_does_what_it_declares(rollouts: Run, narrow: Engine):
    declared = replace(rollouts, trainer=narrow.describe(Sampling(temperature=0.7)))
    found = diagnose(declared.without("trainer_reference_logp", "trainer_rounded_logp"), trainer=narrow)
    assert found.verdict == "different"
    assert not [side for side in found.sides if side.misses]
    assert "temperature 1.0 against 0.7" in found.sentence
