"""Masks off their place, hidden context, and tails behind a stop, injected without the causes' own code."""

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes.conversation import conversation
from samepolicy.causes.making import toy, toy_run
from samepolicy.diagnose import Diagnosis, diagnose
from samepolicy.engines.toy import BOS, EOS
from samepolicy.records.run import Run

pytestmark = pytest.mark.full  # the core job has the laws


@pytest.fixture(scope="module")
def healthy() -> Run:
    return toy_run(np.random.default_rng(11))


@pytest.fixture(scope="module")
def talk() -> Run:
    return conversation(np.random.default_rng(3))


def told(run: Run) -> Diagnosis:
    return diagnose(run, trainer=toy())


def scored(run: Run, responses: list) -> Ragged:
    ids = Ragged.from_lists(responses, dtype=np.int64)
    return toy().score(run["prompt_ids"], ids, sampling=run.rollout.sampling).logp


def test_a_healthy_conversation_is_healthy(talk: Run):
    found = told(talk)
    assert (found.verdict, found.findings) == ("numerics", ())


@pytest.mark.parametrize(("move", "kind"), [(-1, "1 early"), (1, "1 late")])
def test_a_mask_a_token_early_or_late(talk: Run, move: int, kind: str):
    mask = []
    for row in talk.mask:
        line = np.zeros_like(row)
        for i in np.flatnonzero(row):
            if 0 <= i + move < len(row):
                line[i + move] = True
        mask.append(line)
    (finding,) = told(talk.with_columns(mask=Ragged.from_lists(mask, dtype=bool))).findings
    assert (finding.cause, finding.proof, finding.parameters["kind"]) == ("mask_misplaced", "structural", kind)


def test_tokens_of_a_tool_counted(talk: Run):
    (finding,) = told(talk.without("mask")).findings
    assert (finding.cause, finding.parameters["kind"]) == ("mask_misplaced", "counts a tool's answer")
    assert finding.parameters["tokens"] <= (~talk.mask.values).sum()


def test_the_end_of_the_prompt_counted(healthy: Run):
    prompts = [row[:-3] for row in healthy["prompt_ids"]]
    ids = [np.r_[p[-3:], r] for p, r in zip(healthy["prompt_ids"], healthy["response_ids"], strict=True)]
    ours = [np.r_[np.zeros(3, np.float32), row] for row in healthy["rollout_logp"]]
    run = Run.from_lists(
        prompt_ids=prompts, response_ids=ids, rollout_logp=ours, rollout=healthy.rollout, trainer=healthy.trainer
    )
    (finding,) = told(run.with_columns(trainer_logp=scored(run, ids))).findings
    assert (finding.cause, finding.parameters["kind"]) == ("mask_misplaced", "counts the prompt")


def test_padding_counted(healthy: Run):
    """Both sides hold zeros on the pads, so their difference shows nothing there."""
    ids = [np.r_[row, [BOS] * 3] for row in healthy["response_ids"]]
    columns = {n: [np.r_[row, np.zeros(3, np.float32)] for row in healthy[n]] for n in ("rollout_logp", "trainer_logp")}
    run = Run.from_lists(
        prompt_ids=healthy["prompt_ids"],
        response_ids=ids,
        **columns,
        rollout=healthy.rollout,
        trainer=healthy.trainer,
    )
    assert [(f.cause, f.parameters["kind"]) for f in told(run).findings] == [("mask_misplaced", "counts padding")]


def test_a_prompt_that_is_not_fed_to_the_model(healthy: Run):
    """Only the response is scored, behind a BOS."""
    alone = Ragged.from_lists([[int(row[-1])] for row in healthy["prompt_ids"]], dtype=np.int64)
    logp = toy().score(alone, healthy["response_ids"], sampling=healthy.rollout.sampling).logp
    (finding,) = told(healthy.with_columns(trainer_logp=logp)).findings
    assert (finding.cause, finding.parameters["positions"]) == ("context_hidden", "left out")


def test_answers_of_tools_left_out(talk: Run):
    kept = [row[mask] for row, mask in zip(talk["response_ids"], talk.mask, strict=True)]
    logp = scored(talk, kept)
    back = []
    for mask, row in zip(talk.mask, logp, strict=True):
        line = np.zeros(len(mask), np.float32)
        line[mask] = row
        back.append(line)
    (finding,) = told(talk.with_columns(trainer_logp=back)).findings
    assert (finding.cause, finding.parameters["hidden"]) == ("context_hidden", "tokens outside the mask")


def test_zeros_behind_a_stop_string(healthy: Run):
    """The trainer cuts the stop string and pads what it cut."""
    reasons = np.array(["stop" if i % 3 else "length" for i in range(len(healthy))], dtype=object)
    rows = []
    for i, row in enumerate(healthy["trainer_logp"]):
        line = row.copy()
        line[len(line) - (3 + i % 2) * (i % 3 > 0) :] = 0.0
        rows.append(line)
    (finding,) = told(healthy.with_columns(trainer_logp=rows, finish_reason=reasons)).findings
    assert (finding.cause, finding.side, finding.proof) == ("stop_handling", "trainer", "structural")
    assert finding.parameters["responses"] == (reasons == "stop").sum()


def test_an_end_token_is_no_stop_string(healthy: Run):
    ids = [np.r_[row, EOS] for row in healthy["response_ids"]]
    ours = [np.r_[row, -2.0].astype(np.float32) for row in healthy["rollout_logp"]]
    run = Run.from_lists(
        prompt_ids=healthy["prompt_ids"],
        response_ids=ids,
        rollout_logp=ours,
        trainer_response_ids=healthy["response_ids"],
        trainer_logp=healthy["trainer_logp"],
        finish_reason=["stop"] * len(ids),
        rollout=healthy.rollout,
        trainer=healthy.trainer,
    )
    assert [f.cause for f in told(run).findings] == ["end_token"]
