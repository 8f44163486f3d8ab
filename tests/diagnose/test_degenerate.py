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
