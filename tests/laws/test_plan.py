"""A plan takes each statistic of a column once, keeps no derived column longer than needed, and changes nothing."""

import numpy as np
import pytest

from samepolicy import measure_batch
from samepolicy.errors import MaskError
from samepolicy.metrics import all_metrics
from samepolicy.plan import Task, missing_columns, tasks_of
from tests.oracles.batches import batch

SIDES = frozenset({"trainer_logp", "rollout_logp"})


def tasks(kept: frozenset[str] = frozenset()) -> dict[str, Task]:
    """The plan of every token metric of our own that two log-probs allow."""
    given = dict.fromkeys(SIDES)
    plain = (m for m in all_metrics().values() if m.span == "token" and not m.asked and not missing_columns(m, given))
    return {t.metric.name: t for t in tasks_of(tuple(plain), SIDES, kept)}


def test_a_statistic_of_the_same_columns_is_taken_once():
    found = tasks()
    assert found["chi2_token"].columns == found["ess_token"].columns == ("log_ratio", "ratio")
    assert sum(len(found[name].statistics) for name in ("chi2_token", "ess_token")) == 1
    taken = [(s, t.columns) for t in found.values() for s in t.statistics]
    assert len(taken) == len({*taken})
    wanted = {(s, t.columns) for t in found.values() for s in t.metric.statistics}
    assert {*taken} == wanted


def test_a_column_goes_after_its_last_use_unless_it_is_kept():
    freed = [name for t in tasks().values() for name in t.frees]
    assert len(freed) == len({*freed})
    assert {"log_ratio", "ratio", "trainer_prob", "mult_ratio"} <= {*freed}
    assert not SIDES & {*freed}
    assert "mult_ratio" not in {n for t in tasks(frozenset({"mult_ratio"})).values() for n in t.frees}


def test_a_fault_in_any_block_is_raised(monkeypatch):
    monkeypatch.setattr("samepolicy.blocks.TOKENS_HOST", 40)
    data = batch(0, rows=30)
    data["mask"] = data["mask"].astype(np.int64)
    data["mask"][-1, 0] = 7
    with pytest.raises(MaskError, match="only 0 and 1"):
        measure_batch(**data)
