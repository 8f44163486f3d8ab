"""Other ids than were sampled, and constants in place of log-probs, injected without the causes' own code."""

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes.conversation import conversation
from samepolicy.causes.making import toy, toy_run
from samepolicy.diagnose import Diagnosis, diagnose
from samepolicy.engines.toy import BOS, EOS
from samepolicy.floor import add_evidence
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

pytestmark = pytest.mark.full  # the core job has the laws

TEXT = {BOS: "<s>", EOS: "</s>"}


@pytest.fixture(scope="module")
def healthy() -> Run:
    return toy_run(np.random.default_rng(11))


@pytest.fixture(scope="module")
def hot() -> Run:
    """Hot enough for a BOS within many responses."""
    return toy_run(np.random.default_rng(11), sampling=Sampling(temperature=2.0, max_tokens=64))


@pytest.fixture(scope="module")
def talk() -> Run:
    return conversation(np.random.default_rng(3))


def told(run: Run) -> Diagnosis:
    return diagnose(run, trainer=toy())


def scored(prompts: list, rows: list[list[int]], sampling: Sampling) -> Ragged:
    prompts, rows = (Ragged.from_lists([*part], dtype=np.int64) for part in (prompts, rows))
    return toy().score(prompts, rows, sampling=sampling).logp


def expanded(row: np.ndarray) -> tuple[list[int], list[int]]:
    """The ids with every BOS and EOS spelled out, and for each old id its new place, -1 where it has none."""
    ids: list[int] = []
    place: list[int] = []
    for token in row.tolist():
        place.append(-1 if token in TEXT else len(ids))
        ids += toy().encode(TEXT[token])[1:] if token in TEXT else [token]
    return ids, place


def spelled(run: Run) -> tuple[list[list[int]], Ragged]:
    """The trainer's ids, and its log-probs at the old ids; NaN where an id is no more."""
    both = [expanded(row) for row in run["response_ids"]]
    logp = scored(run["prompt_ids"], [ids for ids, _ in both], run.rollout.sampling)
    values = [
        np.where(np.array(place) < 0, np.nan, row[np.array(place)]) for row, (_, place) in zip(logp, both, strict=True)
    ]
    return [ids for ids, _ in both], Ragged.from_lists(values, dtype=np.float32)


def test_text_encoded_again_is_found_without_the_trainers_ids(hot: Run):
    ids, values = spelled(hot)
    found = told(hot.with_columns(trainer_logp=values, mask=values.with_values(np.isfinite(values.values))))
    (finding,) = found.findings
    assert (finding.cause, finding.side, finding.proof) == ("retokenised", "trainer", "undone")
    assert finding.parameters["responses"] == sum(
        len(a) != len(b) for a, b in zip(ids, hot["response_ids"], strict=True)
    )
    assert finding.explained == pytest.approx(1.0, abs=0.1)


def test_values_of_other_ids_paired_by_position(hot: Run):
    ids = [expanded(row)[0] for row in hot["response_ids"]]
    logp = scored(hot["prompt_ids"], ids, hot.rollout.sampling)
    cut = [row[: len(old)] for row, old in zip(logp, hot["response_ids"], strict=True)]
    (finding,) = told(hot.with_columns(trainer_logp=Ragged.from_lists(cut, dtype=np.float32))).findings
    assert (finding.cause, finding.parameters["paired_by"]) == ("retokenised", "position")


def test_recorded_ids_prove_it_without_a_model(hot: Run):
    ids, _ = spelled(hot)
    logp = scored(hot["prompt_ids"], ids, hot.rollout.sampling)
    run = hot.without("trainer_logp").with_columns(trainer_response_ids=ids, trainer_logp=logp)
    findings = diagnose(run).findings
    assert [(f.cause, f.proof) for f in findings] == [("retokenised", "structural")]


def test_a_newline_behind_each_turn_is_missed(talk: Run):
    """Taken out on the trainer's side, whose ids are not recorded."""
    rows, values = [], []
    for ids, mask in zip(talk["response_ids"], talk.mask, strict=True):
        lost = np.array([i > 0 and mask[i - 1] and not mask[i] for i in range(len(ids))])
        rows.append(ids[~lost].tolist())
        values.append(lost)
    logp = scored(talk["prompt_ids"], rows, talk.rollout.sampling)
    back = []
    for lost, row in zip(values, logp, strict=True):
        line = np.full(len(lost), np.nan, np.float32)
        line[~lost] = row
        back.append(line)
    (finding,) = told(talk.with_columns(trainer_logp=back)).findings
    assert (finding.cause, finding.proof) == ("separator_lost", "undone")
    assert finding.parameters["id"] == toy().encode("\n")[1]
    assert finding.parameters["ids_per_turn"] == -1


def test_a_newline_too_many_behind_each_turn():
    talk = conversation(np.random.default_rng(4), separator="")
    rows, kept = [], []
    for ids, mask in zip(talk["response_ids"], talk.mask, strict=True):
        row, old = [], []
        for i, token in enumerate(ids.tolist()):
            if i and mask[i - 1] and not mask[i]:
                row.append(toy().encode("\n")[1])
            old.append(len(row))
            row.append(token)
        rows.append(row)
        kept.append(old)
    logp = scored(talk["prompt_ids"], rows, talk.rollout.sampling)
    back = Ragged.from_lists([row[old] for row, old in zip(logp, kept, strict=True)], dtype=np.float32)
    (finding,) = told(talk.with_columns(trainer_logp=back)).findings
    assert (finding.cause, finding.parameters["ids_per_turn"]) == ("separator_lost", 1)


@pytest.mark.parametrize(("side", "most"), [("left", 13), ("right", 15), ("middle", 12)])
def test_the_length_and_the_end_of_a_cut_prompt(healthy: Run, side: str, most: int):
    def cut(row: np.ndarray) -> np.ndarray:
        half = most // 2
        parts = {"left": row[-most:], "right": row[:most], "middle": np.r_[row[:half], row[len(row) - (most - half) :]]}
        return row if len(row) <= most else parts[side]

    short = [cut(row) for row in healthy["prompt_ids"]]
    run = healthy.with_columns(trainer_logp=scored(short, [*healthy["response_ids"]], healthy.rollout.sampling))
    (finding,) = told(run).findings
    assert (finding.cause, finding.parameters["cut"], finding.parameters["longest"]) == ("prompt_truncated", side, most)
    recorded = diagnose(run.with_columns(trainer_prompt_ids=Ragged.from_lists(short, dtype=np.int64)))
    assert ("prompt_truncated", "structural") in {(f.cause, f.proof) for f in recorded.findings}


@pytest.mark.parametrize("value", [0.0, -9999.0, 1.0])
@pytest.mark.parametrize("side", ["rollout", "trainer"])
def test_a_constant_in_place_of_some_log_probs(healthy: Run, side: str, value: float):
    column = healthy[f"{side}_logp"]
    values = column.values.copy()
    values[np.random.default_rng(8).random(len(values)) < 0.2] = value
    found = told(healthy.with_columns(**{f"{side}_logp": column.with_values(values)}))
    (finding,) = found.findings
    assert (finding.cause, finding.side, finding.proof) == ("placeholder_logp", side, "structural")
    assert finding.parameters["value"] == value
    assert finding.parameters["tokens"] <= (values == value).sum()
    assert finding.parameters["tokens"] >= 0.7 * (values == value).sum()


def test_whole_responses_without_log_probs(healthy: Run):
    rows = [np.zeros_like(row) if i in (2, 7, 9) else row for i, row in enumerate(healthy["rollout_logp"])]
    (finding,) = told(healthy.with_columns(rollout_logp=rows)).findings
    assert finding.cause == "placeholder_logp"
    assert "in all of" in finding.evidence or "exactly 0" in finding.evidence


def test_a_whole_column_of_a_constant_is_named_without_an_engine(healthy: Run):
    column = healthy["trainer_logp"]
    run = add_evidence(healthy, toy()).with_columns(trainer_logp=column.with_values(np.full(len(column.values), -1e30)))
    found = diagnose(run)
    assert (found.verdict, [finding.cause for finding in found.findings]) == ("different", ["placeholder_logp"])


def test_a_few_honest_zeros_are_no_placeholder(healthy: Run):
    values = healthy["rollout_logp"].values.copy()
    values[np.flatnonzero(healthy["trainer_logp"].values > -0.1)[:6]] = 0.0
    run = healthy.with_columns(rollout_logp=healthy["rollout_logp"].with_values(values))
    assert "placeholder_logp" not in {f.cause for f in told(run).findings}
