"""Runs at the edge: one prompt, one token, constants, no numbers, and what was never a prompt."""

import json
import re

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.errors import InputError
from samepolicy.report import text
from tests.report.test_text import shown

N = 40
CONSTANT = [[-1.0] * N] * 12
TOY = sp.engine("toy:", dtype="bfloat16")
SHORT = sp.Sampling(max_tokens=8)


def said(found: sp.Diagnosis) -> str:
    """Everything that a diagnosis says in words."""
    json.dumps(found.as_dict(), allow_nan=False)
    return "\n".join(map(str, (found, found.gap, *found.steps, *found.ladder, shown(text.diagnosis(found), 400))))


def one(prompt: object, **changes: object) -> sp.Diagnosis:
    """`check` of one toy with a single prompt."""
    return sp.check(rollout=TOY, trainer=TOY, prompts=[prompt], sampling=SHORT, **changes)


@pytest.mark.parametrize(
    "changes",
    [{}, {"samples": 2}, {"trainer_sampling": sp.Sampling(temperature=0.5)}],
    ids=["one response", "two responses", "another temperature"],
)
def test_one_prompt_gives_no_interval(changes: dict[str, object]):
    found = one("a b c", **changes)
    assert (found.verdict, found.gap.prompts) == ("inconclusive", 1)
    assert "no interval from one prompt" in found.steps[-1].why
    assert not re.search(r"\bnan\b", said(found))
    assert "1 prompt, kept as token ids" in said(found)


def test_a_broken_run_of_one_prompt_has_no_interval_either():
    run = one("a b c").run
    values = run["trainer_logp"].values.copy()
    values[0] = np.nan
    found = sp.diagnose(run.with_columns(trainer_logp=run["trainer_logp"].with_values(values)))
    assert found.verdict == "different"
    assert "no interval from one prompt" in found.sentence
    assert not re.search(r"\bnan\b", said(found))


def test_one_token_in_words():
    found = one("a b c", samples=1)
    run = found.run.select([0])
    first = run.with_columns(mask=run.mask.with_values(np.arange(len(run.mask.values)) == 0))
    page = said(sp.diagnose(first))
    assert "1 token of 1 response " in page
    assert not re.search(r"\b1 (tokens|prompts|responses)\b", page)


def test_two_silent_sides_declare_nothing():
    page = said(sp.diagnose(sp.Run.from_lists(rollout_logp=CONSTANT, trainer_logp=CONSTANT)))
    assert "the rollout and the trainer declare no sampling parameters" in page
    assert "the rollout and the trainer declare no fingerprint" in page
    trainer = sp.Side(sampling=sp.Sampling(), weights="w")
    page = said(sp.diagnose(sp.Run.from_lists(rollout_logp=CONSTANT, trainer_logp=CONSTANT, trainer=trainer)))
    assert "the rollout declares no sampling parameters" in page


def test_a_reference_without_a_number_is_no_floor():
    run = sp.check(rollout=TOY, trainer=TOY, prompts=["a", "b"], sampling=SHORT).run
    nothing = run["trainer_reference_logp"].with_values(np.full(run.tokens, np.nan))
    found = sp.diagnose(run.with_columns(trainer_reference_logp=nothing))
    assert (found.verdict, found.gap) == ("inconclusive", None)
    assert "no token under the mask has both reference log-probs of the trainer" in found.sentence
    assert not re.search(r"\bnan%?\b", said(found))


@pytest.mark.parametrize(
    ("rollout", "trainer", "verdict"),
    [
        (CONSTANT, CONSTANT, "inconclusive"),
        ([[0.0] * N], [[0.0] * N], "inconclusive"),
        ([[-1e300] * N], [[-1.0] * N], "different"),
        ([[-np.inf] * N], [[-np.inf] * N], "different"),
        ([[np.nan]], [[np.nan]], "different"),
        ([[], []], [[], []], "inconclusive"),
        ([], [], "inconclusive"),
    ],
    ids=["constants", "zeros", "huge", "infinite", "no number", "no token", "no response"],
)
def test_degenerate_columns(rollout: list, trainer: list, verdict: str):
    found = sp.diagnose(sp.Run.from_lists(rollout_logp=rollout, trainer_logp=trainer))
    assert found.verdict == verdict
    assert not re.search(r"\bnan\b", said(found))


@pytest.mark.parametrize(
    "prompt",
    [[True], [10**30], [1, {"role": "user", "content": "x"}], [{"role": "user"}]],
    ids=str,
)
def test_what_is_no_prompt(prompt: object):
    with pytest.raises(InputError, match=r"^Prompt 0 .*\.$"):
        one(prompt)


def test_one_text_is_no_list_of_prompts():
    with pytest.raises(InputError, match="prompts is one text"):
        sp.check(rollout=TOY, trainer=TOY, prompts="abc")


def test_what_is_a_prompt():
    for prompt in ([5, 6], np.array([5, 6]), [{"role": "user", "content": "a"}]):
        assert one(prompt).run.tokens == 8


def scored(prompts: list[list[int]], **rollout: object) -> sp.Run:
    """A run of a toy that is scored by the toy."""
    sampling = sp.Sampling(max_tokens=8, seed=1)
    run = sp.engine("toy:", dtype="bfloat16", **rollout).generate(sp.Ragged.from_lists(prompts, np.int64), sampling)
    logp = TOY.score(run["prompt_ids"], run["response_ids"], sampling=sampling).logp
    return sp.Run({**run.columns, "trainer_logp": logp}, rollout=run.rollout, trainer=TOY.describe(sampling))


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_placeholders_that_are_no_numbers_are_told_in_json(value: float):
    run = scored([TOY.encode(text) for text in ("a b", "c", "d e f", "g h")])
    values = run["rollout_logp"].values.copy()
    values[::3] = value
    found = sp.diagnose(run.with_columns(rollout_logp=run["rollout_logp"].with_values(values)), trainer=TOY)
    assert found.findings[0].cause == "placeholder_logp"
    assert found.findings[0].parameters["value"] == str(value)
    said(found)


def test_prompts_of_one_id():
    found = sp.diagnose(scored([[95], [95, 3], [95, 4, 5], [95, 6]], stale=0.2), trainer=TOY)
    assert found.verdict == "different"
    said(found)


def test_responses_that_are_encoded_otherwise_from_their_first_id_on():
    run = scored([TOY.encode(text) for text in ("a b", "c", "d e f", "g h")], stale=0.2)
    ids = run["response_ids"].with_values(np.arange(len(run["response_ids"].values)) % 2)
    said(sp.diagnose(run.with_columns(response_ids=ids).without("trainer_logp"), trainer=TOY))


def test_a_cause_that_too_few_tokens_show_is_told_and_not_named():
    prompts = sp.Ragged.from_lists([TOY.encode(f"number {i}") for i in range(16)], np.int64)
    hot = sp.engine("toy:", dtype="bfloat16", temperature=1.3)
    run = hot.generate(prompts, sp.Sampling(max_tokens=1, seed=1))
    found = sp.diagnose(run, trainer=TOY)
    assert (found.verdict, found.findings) == ("different", ())
    assert "too few tokens show it" in found.sentence
