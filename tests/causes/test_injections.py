"""Faults written here without the causes' own code: their parameters are found, alone, stacked, and on both sides."""

import json
from dataclasses import replace

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes.making import toy
from samepolicy.diagnose import Diagnosis, diagnose
from samepolicy.engines.toy import BOS, EOS, VOCABULARY
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

pytestmark = pytest.mark.full  # the core job has the laws

TEXTS = [
    f"{a} {b} {c}" for a in ("the cat", "one two", "rain", "jump") for b in ("in", "over") for c in ("spain", "it")
]
NEUTRAL = Sampling(max_tokens=24, seed=5)


@pytest.fixture(scope="module")
def healthy() -> Run:
    return sampled(NEUTRAL)


def sampled(sampling: Sampling, **rollout) -> Run:
    """A run of the bf16 toy, scored by the bf16 toy under the same sampling."""
    one = toy()
    prompts = Ragged.from_lists([one.encode(text) for text in TEXTS], dtype=np.int64)
    run = toy(**rollout).generate(prompts, sampling)
    logp = one.score(run["prompt_ids"], run["response_ids"], sampling=sampling).logp
    return replace(run.with_columns(trainer_logp=logp), trainer=one.describe(sampling))


def told(run: Run, **more) -> Diagnosis:
    return diagnose(run, trainer=toy(), **more)


def logits_of(run: Run, **options) -> list[np.ndarray]:
    """Log-probs of the whole vocabulary at every token, from the toy's own top list, in order of id."""
    scores = toy(**options).score(run["prompt_ids"], run["response_ids"], top=VOCABULARY)
    rows = []
    for ids, values in zip(scores.top_ids, scores.top_logp, strict=True):
        full = np.zeros_like(values, dtype=np.float64)
        np.put_along_axis(full, ids, values.astype(np.float64), axis=1)
        rows.append(full)
    return rows


def own(rows: list[np.ndarray], run: Run) -> Ragged:
    picked = [full[np.arange(len(ids)), ids] for full, ids in zip(rows, run["response_ids"], strict=True)]
    return Ragged.from_lists(picked, dtype=np.float32)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.exp(x - x.max(-1, keepdims=True)).sum(-1, keepdims=True)) - x.max(-1, keepdims=True)


@pytest.mark.parametrize("temperature", [0.6, 1.2])
@pytest.mark.parametrize("side", ["trainer", "rollout"])
def test_a_temperature_is_estimated_and_its_side_told(healthy: Run, temperature: float, side: str):
    warped = own([log_softmax(row / temperature) for row in logits_of(healthy)], healthy)
    found = told(healthy.with_columns(**{f"{side}_logp": warped}))
    (finding,) = found.findings
    assert (finding.cause, finding.side, finding.proof) == ("temperature", side, "undone")
    assert finding.parameters["temperature"] == pytest.approx(temperature, rel=0.02)
    assert finding.explained == pytest.approx(1.0, abs=0.05)
    assert finding.low >= 0.7
    assert found.ledger.residual.place == "below"
    alone = np.abs(warped.values - healthy[f"{side}_logp"].values).mean()
    assert finding.nats == pytest.approx(alone, rel=0.2)


def test_log_probs_divided_by_a_temperature(healthy: Run):
    divided = healthy["trainer_logp"].with_values(healthy["trainer_logp"].values / np.float32(0.7))
    (finding,) = told(healthy.with_columns(trainer_logp=divided)).findings
    assert finding.cause == "temperature"
    assert finding.parameters["log_probs_divided_by"] == pytest.approx(0.7, rel=0.02)


@pytest.mark.parametrize("lag", [1, -2])
def test_a_shift_is_counted(healthy: Run, lag: int):
    moved = Ragged.from_lists([np.roll(row, -lag) for row in healthy["trainer_logp"]], dtype=np.float32)
    (finding,) = told(healthy.with_columns(trainer_logp=moved)).findings
    assert (finding.cause, finding.parameters, finding.side) == ("shift", {"lag": lag}, "trainer")


def test_logits_read_one_place_late(healthy: Run):
    """Token i is scored by the logits at its own place, after the model has read it."""
    late = []
    for prompt, response in zip(healthy["prompt_ids"], healthy["response_ids"], strict=True):
        ones = Ragged.from_lists([[token] for token in response], dtype=np.int64)
        seen = Ragged.from_lists([np.r_[prompt, response[: i + 1]] for i in range(len(response))], dtype=np.int64)
        late.append(toy().score(seen, ones).logp.values)
    (finding,) = told(healthy.with_columns(trainer_logp=late)).findings
    assert (finding.cause, finding.parameters) == ("shift", {"logits_late_by": 1})


def test_shift_and_temperature_stacked_on_one_side(healthy: Run):
    warped = own([log_softmax(row / 0.6) for row in logits_of(healthy)], healthy)
    moved = Ragged.from_lists([np.roll(row, -1) for row in warped], dtype=np.float32)
    found = told(healthy.with_columns(trainer_logp=moved))
    assert {f.cause: f.side for f in found.findings} == {"shift": "trainer", "temperature": "trainer"}
    by = {f.cause: f for f in found.findings}
    assert by["temperature"].parameters["temperature"] == pytest.approx(0.6, rel=0.03)
    assert by["shift"].parameters == {"lag": 1}
    assert len(found.ledger.rows) == 2


def test_two_equal_faults_neither_of_which_closes_half():
    """A kept set and older weights, whose moves are of one size."""
    run = sampled(NEUTRAL, stale=0.05)
    rows = logits_of(run, stale=0.05)
    kept = []
    for row in rows:
        cut = np.where(row >= np.sort(row)[:, -6][:, None], row, -np.inf)
        kept.append(log_softmax(cut))
    values = own(kept, run)
    inside = np.isfinite(values.values)
    run = run.with_columns(rollout_logp=values, mask=values.with_values(inside))
    found = told(run, checkpoints=["stale=0.05"])
    assert {f.cause for f in found.findings} == {"truncated_support", "stale_weights"}
    assert {f.cause: f.parameters for f in found.findings}["truncated_support"] == {"top_k": 6}


def test_a_fault_on_each_side(healthy: Run):
    warped = own([log_softmax(row / 0.7) for row in logits_of(healthy)], healthy)
    moved = Ragged.from_lists([np.roll(row, -1) for row in healthy["rollout_logp"]], dtype=np.float32)
    found = told(healthy.with_columns(trainer_logp=warped, rollout_logp=moved))
    assert {(f.cause, f.side) for f in found.findings} == {("shift", "rollout"), ("temperature", "trainer")}


def test_declarations_that_differ_are_named(healthy: Run):
    other = Sampling(temperature=0.7, max_tokens=24)
    logp = toy().score(healthy["prompt_ids"], healthy["response_ids"], sampling=other).logp
    run = replace(healthy.with_columns(trainer_logp=logp), trainer=replace(healthy.trainer, sampling=other))
    (finding,) = told(run).findings
    assert (finding.cause, finding.side) == ("temperature", "trainer")
    assert finding.parameters["temperature"] == pytest.approx(0.7, rel=0.02)


def test_one_more_bos(healthy: Run):
    longer = Ragged.from_lists([np.r_[BOS, row] for row in healthy["prompt_ids"]], dtype=np.int64)
    logp = toy().score(longer, healthy["response_ids"]).logp
    (finding,) = told(healthy.with_columns(trainer_logp=logp)).findings
    assert (finding.cause, finding.parameters) == ("bos_doubled", {"id": BOS, "more": 1})


@pytest.mark.parametrize("setting", ["top_p", "top_k"])
def test_a_kept_set_is_estimated(setting: str):
    value = {"top_p": 0.85, "top_k": 7}[setting]
    run = sampled(Sampling(**{setting: value}, max_tokens=24))
    neutral = Sampling(max_tokens=24)
    logp = toy().score(run["prompt_ids"], run["response_ids"]).logp
    sides = {"rollout": replace(run.rollout, sampling=neutral), "trainer": replace(run.trainer, sampling=neutral)}
    (finding,) = told(replace(run.with_columns(trainer_logp=logp), **sides)).findings
    assert (finding.cause, finding.side) == ("truncated_support", "rollout")
    assert finding.parameters[setting] == pytest.approx(value, rel=0.03)


def test_ends_filled_with_zero(healthy: Run):
    ids = Ragged.from_lists([np.r_[row, EOS] for row in healthy["response_ids"]], dtype=np.int64)
    ours = Ragged.from_lists([np.r_[row, 0] for row in healthy["rollout_logp"]], dtype=np.float32)
    run = replace(healthy, columns={"prompt_ids": healthy["prompt_ids"], "response_ids": ids, "rollout_logp": ours})
    run = run.with_columns(trainer_logp=toy().score(run["prompt_ids"], ids).logp)
    (finding,) = told(run).findings
    assert (finding.cause, finding.side, finding.proof) == ("end_token", "rollout", "structural")


def test_the_right_one_of_several_checkpoints():
    run = sampled(NEUTRAL, stale=0.04)
    (finding,) = told(run, checkpoints=["stale=0.08", "stale=0.04", "stale=0.02"]).findings
    assert (finding.cause, finding.side) == ("stale_weights", "rollout")
    assert finding.parameters == {"checkpoint": "stale=0.04", "versions_behind": 2}


def test_a_coarser_format_is_named_by_its_size():
    run = sampled(NEUTRAL)
    logp = toy(dtype="float32").score(run["prompt_ids"], run["response_ids"]).logp
    wide = {"rollout": replace(run.rollout, dtype="float32"), "trainer": replace(run.trainer, dtype="float32")}
    found = diagnose(replace(run.with_columns(trainer_logp=logp), **wide), trainer=toy(dtype="float32"))
    (finding,) = found.findings
    assert (finding.cause, finding.proof, finding.explained) == ("precision", "size", None)
    assert finding.parameters["dtype"] == "bfloat16"


def test_a_hidden_sampler_makes_them_differ_though_the_gap_is_rounding():
    run = sampled(Sampling(top_k=3, max_tokens=48, logprobs="raw"))
    neutral = Sampling(max_tokens=48)
    run = replace(run, rollout=replace(run.rollout, sampling=neutral), trainer=replace(run.trainer, sampling=neutral))
    found = told(run)
    (finding,) = found.findings
    assert (finding.cause, finding.proof, finding.explained) == ("truncated_hidden", "surprisal", None)
    assert finding.parameters["top_k"] == 3
    assert (found.verdict, found.gap.place) == ("different", "below")


def test_an_unknown_fault_is_not_named(healthy: Run):
    rng = np.random.default_rng(0)
    values = healthy["trainer_logp"].values
    noisy = np.minimum(values + rng.normal(0.0, 0.4, len(values)), -1e-6).astype(np.float32)
    found = told(healthy.with_columns(trainer_logp=healthy["trainer_logp"].with_values(noisy)))
    assert (found.verdict, found.findings) == ("different", ())
    assert "cause unknown" in found.sentence
    assert "stale_weights" in {cause.name for cause in found.unchecked}


def test_arrays_alone_name_a_shift_and_list_what_a_model_would_add(healthy: Run):
    moved = Ragged.from_lists([np.roll(row, -1) for row in healthy["trainer_logp"]], dtype=np.float32)
    found = diagnose(Run({"rollout_logp": healthy["rollout_logp"], "trainer_logp": moved}))
    (finding,) = found.findings
    assert (finding.cause, finding.parameters, finding.side) == ("shift", {"lag": 1}, "unknown")
    assert found.verdict == "different"
    missing = {cause.name: cause.takes for cause in found.unchecked}
    assert "--trainer" in missing["temperature"]


def test_the_answer_is_json_with_all_its_parts(healthy: Run):
    warped = own([log_softmax(row / 0.6) for row in logits_of(healthy)], healthy)
    data = json.loads(json.dumps(told(healthy.with_columns(trainer_logp=warped)).as_dict(), allow_nan=False))
    (finding,) = data["findings"]
    assert {"cause", "rung", "parameters", "explained", "interval", "nats", "side", "proof", "evidence", "fix"} <= set(
        finding
    )
    assert data["ledger"]["rows"][0]["cause"] == "temperature"
    assert data["residual"]["place"] == "below"
    assert data["unchecked"] == []
