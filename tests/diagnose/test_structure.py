"""Structural tests: each on a run that passes, one that fails, and one that cannot be checked."""

from dataclasses import replace

import numpy as np
import pytest

from samepolicy.records.declared import mark_scored
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling, Side
from samepolicy.structure import Fact, check

EXTRA = {"eos_ids": [2], "bos_id": 1, "pad_id": 0, "vocab_size": 50, "experts": 0}
FULL = Side(
    engine="x",
    dtype="float32",
    tokenizer="t",
    template="m",
    weights="w",
    sampling=Sampling(),
    extra=EXTRA,
)


def healthy(**columns) -> Run:
    rng = np.random.default_rng(0)
    logp = [-rng.exponential(1.0, 10) - 1e-3 for _ in range(4)]
    given = {
        "prompt_ids": [[1, 7, 8]] * 4,
        "response_ids": [[*rng.integers(3, 50, 9), 2] for _ in range(4)],
        "rollout_logp": logp,
        "trainer_logp": [row - 1e-3 * rng.uniform(0.1, 1, 10) for row in logp],
        "mask": [np.ones(10, dtype=bool)] * 4,
        "finish_reason": ["stop"] * 4,
    }
    given = {name: value for name, value in (given | columns).items() if value is not None}
    run = Run.from_lists(rollout=FULL, trainer=FULL, **given)
    return mark_scored(run, "trainer_logp")


def fact(run: Run, name: str) -> Fact | None:
    found = [f for f in check(run) if f.name == name]
    assert len(found) <= 1
    return found[0] if found else None


def recorded(run: Run) -> Run:
    """The same run without the note that samepolicy scored it."""
    return replace(run, info={})


def test_a_healthy_run_passes_every_test():
    facts = check(healthy())
    assert {f.status for f in facts} == {"passed"}
    assert {f.rung for f in facts} == {
        "tokens",
        "template",
        "shift",
        "mask",
        "sampling",
        "weights",
        "routing",
        "numerics",
    }


def test_a_run_with_two_columns_only_fails_nothing():
    run = recorded(healthy())
    bare = Run({name: run[name] for name in ("rollout_logp", "trainer_logp")})
    assert not [f for f in check(bare) if f.status == "failed"]
    assert fact(bare, "same ids").status == "not checked"
    assert "record trainer_response_ids" in fact(bare, "same ids").sentence


def test_a_run_with_nothing_to_compare_is_checked_all_the_same():
    facts = check(Run.from_lists(prob_diff=[[0.1, 0.2]]))
    assert not [f for f in facts if f.status == "failed"]
    assert check(Run())


def test_other_ids_on_the_trainers_side_break_the_run():
    run = recorded(healthy())
    theirs = [row.tolist() for row in run["response_ids"]]
    same = run.with_columns(trainer_response_ids=theirs)
    assert fact(same, "same ids").status == "passed"
    theirs[2] = [*theirs[2][:3], 49, *theirs[2][4:-1]]
    other = run.with_columns(
        trainer_response_ids=theirs,
        trainer_logp=[row[: len(i)] for row, i in zip(run["trainer_logp"], theirs, strict=True)],
    )
    found = fact(other, "same ids")
    assert found.breaks
    assert "1 of 4 responses" in found.sentence
    assert "response 2, which has 10 sampled and 9 scored ids" in found.sentence


def test_other_prompt_ids_on_the_trainers_side_break_the_run():
    run = recorded(healthy(trainer_prompt_ids=[[1, 7, 8]] * 3 + [[1, 7]]))
    assert fact(run, "template").breaks
    assert fact(recorded(healthy(trainer_prompt_ids=[[1, 7, 8]] * 4)), "template").status == "passed"


@pytest.mark.parametrize(
    ("name", "field", "status"),
    [("tokenizer", "tokenizer", "failed"), ("weights", "weights", "failed"), ("template", "template", "failed")],
)
def test_declarations_that_differ_are_a_lead_and_no_proof(name, field, status):
    run = recorded(healthy())
    found = fact(replace(run, trainer=replace(FULL, **{field: "other"})), name)
    assert (found.status, found.breaks) == (status, False)


def test_fingerprints_of_two_dtypes_prove_nothing():
    run = replace(healthy(), trainer=replace(FULL, weights="other", dtype="bfloat16"))
    assert fact(run, "weights").status == "not checked"


def test_declared_sampling_is_compared_as_it_reaches_the_log_probs():
    warm = Sampling(temperature=0.7, max_tokens=9)
    cases = {
        "passed": [(warm, replace(warm, seed=5)), (replace(warm, logprobs="raw"), Sampling())],
        "failed": [(warm, Sampling())],
        "not checked": [(None, warm), (warm, None)],
    }
    for status, both in cases.items():
        for ours, theirs in both:
            run = replace(healthy(), rollout=replace(FULL, sampling=ours), trainer=replace(FULL, sampling=theirs))
            assert fact(run, "sampling").status == status
    run = replace(healthy(), trainer=replace(FULL, sampling=warm))
    assert "temperature 1.0 against 0.7" in fact(run, "sampling").sentence


def test_ids_outside_the_vocabulary_break_the_run():
    ids = healthy()["response_ids"].values.copy()
    ids[:2] = [50, -1]
    run = healthy()
    found = fact(run.with_columns(response_ids=run["response_ids"].with_values(ids)), "vocabulary")
    assert found.breaks
    assert found.sentence.startswith("2 of 52 ids")


def test_two_bos_tokens_are_a_lead():
    found = fact(healthy(prompt_ids=[[1, 1, 8]] * 2 + [[1, 8]] * 2), "bos twice")
    assert (found.status, found.breaks) == ("failed", False)
    assert "2 of 4 prompts" in found.sentence


def test_a_stopped_response_without_an_end_id_is_noted():
    found = fact(healthy(response_ids=[[5] * 10] * 4, finish_reason=["stop", "stop", "length", "length"]), "last token")
    assert found.status == "not checked"
    assert found.sentence.startswith("2 of 2 stopped")


def test_counted_padding_breaks_the_run():
    ids = [[5] * 7 + [2, 2, 2]] + [[5] * 9 + [2]] * 3
    assert fact(healthy(response_ids=ids), "padding counted").breaks
    mask = [[1] * 8 + [0, 0]] + [[1] * 10] * 3
    assert fact(healthy(response_ids=ids, mask=mask), "padding counted").status == "passed"
    assert fact(healthy(response_ids=ids, finish_reason=["length"] * 4), "padding counted").status == "passed"
    assert fact(healthy(response_ids=None, prompt_ids=None), "padding counted").status == "not checked"


def test_an_empty_mask_leaves_nothing_to_count():
    found = fact(healthy(mask=[[0] * 10] * 4), "tokens counted")
    assert (found.status, found.breaks) == ("failed", False)
    some = fact(healthy(mask=[[0] * 10] * 2 + [[1] * 10] * 2), "tokens counted")
    assert some.sentence == "20 of 40 tokens are under the mask, and none in 2 of 4 responses"


@pytest.mark.parametrize("side", ["rollout", "trainer"])
@pytest.mark.parametrize(
    ("value", "word"), [(np.nan, "NaN"), (-np.inf, "infinite"), (np.inf, "infinite"), (0.3, "above 0")]
)
def test_a_value_that_is_no_log_prob_breaks_the_run_under_the_mask_only(side, value, word):
    run = healthy()
    values = run[f"{side}_logp"].values.copy()
    values[13] = value
    bad = run.with_columns(**{f"{side}_logp": run[f"{side}_logp"].with_values(values)})
    found = fact(bad, "log-probs")
    assert found.breaks
    assert f"1 of 40 values of the {side} are {word}" in found.sentence
    mask = np.arange(40) != 13
    assert fact(bad.with_columns(mask=run["mask"].with_values(mask)), "log-probs").status == "passed"


def test_a_copy_is_a_copy_unless_it_was_scored_here_or_is_declared_aligned():
    run = recorded(healthy())
    copy = run.with_columns(trainer_logp=run["rollout_logp"])
    assert fact(copy, "copy").status == "failed"
    assert not fact(copy, "copy").breaks
    assert fact(mark_scored(copy, "trainer_logp"), "copy").status == "passed"
    aligned = replace(copy, trainer=replace(FULL, extra={"bitwise_aligned": True}))
    assert fact(aligned, "copy").status == "passed"
    assert fact(run, "copy") is None
    values = run["rollout_logp"].values.copy()
    values[0] = np.nan
    column = run["rollout_logp"].with_values(values)
    assert fact(run.with_columns(trainer_logp=column, rollout_logp=column), "copy").status == "failed"
    masked = copy.with_columns(trainer_logp=column, mask=run["mask"].with_values(np.arange(40) > 0))
    assert fact(masked, "copy").status == "failed"


def zeros(count: int, *, trainer: float = -1.0, reference: float | None = None, **declared) -> Run:
    """A run of 40 tokens of which the first `count` have R = 0."""
    run = recorded(healthy())
    values = {"rollout": run["rollout_logp"].values.copy(), "trainer": run["trainer_logp"].values.copy()}
    values["rollout"][:count] = 0.0
    values["trainer"][:count] = trainer
    columns = {f"{side}_logp": run["mask"].with_values(v) for side, v in values.items()}
    if reference is not None:
        columns["rollout_reference_logp"] = run["mask"].with_values(np.full(40, reference))
    return replace(run.with_columns(**columns), rollout=replace(FULL, sampling=Sampling(**declared)))


def test_zeros_count_only_where_the_token_is_not_certain():
    assert fact(zeros(1, reference=-1.0), "rollout zeros").breaks
    assert fact(zeros(40, reference=-0.01), "rollout zeros") is None
    assert fact(zeros(40, trainer=-0.01, reference=-1.0), "rollout zeros") is None


def test_zeros_without_a_reference_are_a_failure_only_if_many_and_not_explained():
    assert fact(zeros(2), "rollout zeros").status == "not checked"
    assert fact(zeros(3), "rollout zeros").breaks
    assert fact(zeros(30, top_p=0.5), "rollout zeros").status == "not checked"
    assert fact(zeros(30, trainer=-0.01), "rollout zeros") is None


def test_sentinels_are_no_log_probs():
    run = healthy()
    values = run["trainer_logp"].values.copy()
    values[[3, 4]] = [-9999, -1e10]
    found = fact(run.with_columns(trainer_logp=run["trainer_logp"].with_values(values)), "trainer placeholders")
    assert found.breaks
    assert found.sentence.startswith("2 of 40")


@pytest.mark.parametrize("lag", [-3, -1, 1, 2])
def test_a_shifted_column_shows_at_its_lag(lag):
    run = healthy()
    moved = [np.roll(row, -lag) for row in run["rollout_logp"]]
    found = fact(run.with_columns(trainer_logp=moved), "shift")
    assert found.breaks
    assert f"moved by {lag:+d}" in found.sentence


def test_unrelated_columns_are_no_shift():
    rng = np.random.default_rng(4)
    run = healthy(trainer_logp=[-rng.exponential(1.0, 10) for _ in range(4)])
    assert fact(run, "shift").status == "not checked"


def test_too_few_tokens_show_no_shift():
    run = Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.0, -2.1]])
    assert "too few" in fact(run, "shift").sentence
    flat = Run.from_lists(rollout_logp=[[-1.0] * 30], trainer_logp=[[-1.0] * 30])
    assert fact(flat, "shift").status == "not checked"


def test_experts_need_their_routes():
    for experts, status in ((0, "passed"), (8, "not checked"), (None, "not checked")):
        side = replace(FULL, extra={**EXTRA, "experts": experts})
        assert fact(replace(healthy(), rollout=side, trainer=side), "routing").status == status


def test_what_is_assumed_of_a_trainer_agrees_with_nobody():
    run = recorded(healthy())
    given = replace(run, info={**run.info, "trainer_assumed": True})
    assert "both sides declare" not in fact(given, "template").sentence
    for name in ("weights", "sampling"):
        assert (fact(run, name).status, fact(given, name).status) == ("passed", "not checked"), name
    assert fact(given, "weights").sentence == "the trainer declares no fingerprint of the weights"
