"""Rows in another order, injected without the cause's own code."""

import numpy as np
import pytest

from samepolicy.arrays import Ragged
from samepolicy.causes.making import toy, toy_run
from samepolicy.diagnose import diagnose
from samepolicy.records.run import Run

pytestmark = pytest.mark.full  # the core job has the laws


@pytest.fixture(scope="module")
def healthy() -> Run:
    return toy_run(np.random.default_rng(11))


def padded(run: Run, order: list[int]) -> Ragged:
    """The trainer's rows as a padded tensor, put in another order and cut by the mask again."""
    width = int(run.lengths.max())
    table = np.array([np.pad(row, (0, width - len(row))) for row in run["trainer_logp"]])
    rows = [table[source][: len(run["trainer_logp"][i])] for i, source in enumerate(order)]
    return Ragged.from_lists(rows, dtype=np.float32)


def test_a_padded_batch_in_another_order(healthy: Run):
    order = np.random.default_rng(5).permutation(len(healthy)).tolist()
    found = diagnose(healthy.with_columns(trainer_logp=padded(healthy, order)), trainer=toy())
    moved = sum(i != source for i, source in enumerate(order))
    first = found.findings[0]
    assert (first.cause, first.side, first.parameters) == ("row_order", "trainer", {"rows_moved": moved, "rows": 16})
    assert first.explained == pytest.approx(1.0, abs=0.05)


def test_what_stands_behind_a_shorter_row_is_left_out(healthy: Run):
    """Not zeros but whatever the trainer computed on padding: here, noise."""
    rng, lengths = np.random.default_rng(6), [10 + 2 * (i % 7) for i in range(len(healthy))]
    columns = ("response_ids", "rollout_logp", "trainer_logp")
    rows = {name: [row[:n] for row, n in zip(healthy[name], lengths, strict=True)] for name in columns}
    order = rng.permutation(len(healthy)).tolist()
    rows["trainer_logp"] = [
        np.append(rows["trainer_logp"][source], -5 * rng.random(64))[:n]
        for source, n in zip(order, lengths, strict=True)
    ]
    run = Run.from_lists(
        prompt_ids=list(healthy["prompt_ids"]), **rows, rollout=healthy.rollout, trainer=healthy.trainer
    )
    found = diagnose(run, trainer=toy())
    (finding,) = found.findings
    assert (finding.cause, finding.side) == ("row_order", "trainer")
    behind = sum(max(n - lengths[source], 0) for source, n in zip(order, lengths, strict=True))
    assert f"{behind} tokens behind the end of a shorter row" in finding.evidence
    assert finding.explained == pytest.approx(1.0, abs=0.05)
    assert found.ledger.residual.ratio < 1.5


def test_few_values_that_are_met_one_by_one_tell_though_most_are_of_no_token(healthy: Run):
    """Two short rows and two long ones change places: most of the long ones' tokens stand behind shorter rows."""
    rng, columns = np.random.default_rng(7), ("response_ids", "rollout_logp", "trainer_logp")
    longest = int(healthy.lengths.max())
    one, other = np.flatnonzero(healthy.lengths == longest)[:2]
    short = [i for i in range(len(healthy)) if i not in (one, other)][:2]
    cut = {short[0]: 8, short[1]: 6}
    rows = {name: [row[: cut.get(i, longest)] for i, row in enumerate(healthy[name])] for name in columns}
    trainer = rows["trainer_logp"]
    swapped = {one: short[0], short[0]: one, other: short[1], short[1]: other}
    rows["trainer_logp"] = [
        np.append(trainer[swapped.get(i, i)], -5 * rng.random(64))[: len(row)] for i, row in enumerate(trainer)
    ]
    run = Run.from_lists(
        prompt_ids=list(healthy["prompt_ids"]), **rows, rollout=healthy.rollout, trainer=healthy.trainer
    )
    (finding,) = diagnose(run, trainer=toy()).findings
    behind = 2 * longest - sum(cut.values())
    assert behind > 0.5 * sum(len(trainer[i]) for i in swapped)
    assert (finding.cause, finding.parameters) == ("row_order", {"rows_moved": 4, "rows": len(healthy)})
    assert f"{behind} tokens behind the end of a shorter row" in finding.evidence


def test_arrays_alone_name_rows_that_changed_places(healthy: Run):
    order = [*range(15, -1, -1)]
    run = healthy.with_columns(trainer_logp=padded(healthy, order)).without("prompt_ids", "response_ids")
    (finding,) = diagnose(run).findings
    assert (finding.cause, finding.side) == ("row_order", "unknown")


def test_two_rows_of_sixteen(healthy: Run):
    same = np.flatnonzero(healthy.lengths == healthy.lengths.max())[[0, 1, 2, 3]]
    order = [*range(len(healthy))]
    for one, other in ((same[0], same[1]), (same[2], same[3])):
        order[one], order[other] = order[other], order[one]
    found = diagnose(healthy.with_columns(trainer_logp=padded(healthy, order)), trainer=toy())
    assert {f.cause for f in found.findings} <= {"row_order"}
    assert found.verdict == "different"


def test_a_column_of_another_run_is_not_a_matter_of_order(healthy: Run):
    """Values that fit no row: pairing them up by their few likest tokens must not pass."""
    rng = np.random.default_rng(1)
    values = healthy["trainer_logp"].with_values(rng.permutation(healthy["trainer_logp"].values))
    found = diagnose(healthy.with_columns(trainer_logp=values), trainer=toy())
    assert "row_order" not in {f.cause for f in found.findings}


def test_single_tokens_cannot_be_put_in_order():
    rng = np.random.default_rng(2)
    rollout = -rng.exponential(size=200)
    run = Run.from_lists(
        rollout_logp=rollout[:, None].tolist(), trainer_logp=rng.permutation(rollout)[:, None].tolist()
    )
    assert "row_order" not in {f.cause for f in diagnose(run).findings}


def test_rows_that_differ_in_one_number_fit_each_other_by_chance():
    """Short answers of one form: how sure the model is times a profile, here drawn anew for the trainer."""
    rng, profile = np.random.default_rng(3), np.linspace(1, 0.3, 6)
    base, other = (-np.exp(rng.uniform(-3, 0.7, (64, 1))) * profile for _ in range(2))
    rollout, trainer = (values + rng.normal(0, 0.03, base.shape) for values in (base, other))
    run = Run.from_lists(rollout_logp=np.minimum(rollout, 0).tolist(), trainer_logp=np.minimum(trainer, 0).tolist())
    assert "row_order" not in {f.cause for f in diagnose(run).findings}
