"""Usual ranges: which of them apply, and where a value lies."""

import json

import numpy as np
import pytest

from samepolicy.health import THRESHOLDS, judge
from samepolicy.metrics import all_metrics
from samepolicy.summary import Summary, measure_batch


def measured(d: float) -> Summary:
    rollout = np.full((2, 5), -1.0)
    return measure_batch(trainer=rollout + d, rollout=rollout, mask=np.ones((2, 5)))


def readings(d: float, rollout: str | None = "bfloat16", trainer: str | None = "bfloat16"):
    return judge(measured(d), rollout_dtype=rollout, trainer_dtype=trainer)


def test_a_range_for_another_kind_of_model_is_left_out():
    def kinds(experts: int | None) -> set[str]:
        found = judge(measured(0.01), rollout_dtype="bfloat16", trainer_dtype="bfloat16", experts=experts)
        return {reading.threshold.models for reading in found if reading.threshold.metric == "k3"}

    assert (kinds(0), kinds(8), kinds(None)) == ({"dense"}, {"mixture of experts"}, {"dense", "mixture of experts"})


def test_every_threshold_names_a_metric_and_a_readout_that_exist():
    summary = measured(-0.01)
    for threshold in THRESHOLDS:
        assert threshold.metric in all_metrics()
        assert threshold.readout in summary[threshold.metric]
        assert threshold.low < threshold.high
        assert threshold.source


def test_every_value_of_the_summary_is_read_as_it_is():
    summary = measured(-0.01)
    for reading in judge(summary, rollout_dtype="float32", trainer_dtype="float32"):
        expected = summary[reading.threshold.metric][reading.threshold.readout]
        assert reading.value == expected or np.isnan([reading.value, expected]).all()


@pytest.mark.parametrize(
    ("rollout", "trainer", "dtypes"),
    [
        ("float32", "float32", {"float32"}),
        ("float32", "bfloat16", {"bfloat16"}),
        ("fp8_e4m3", "bfloat16", {"fp8"}),
        ("float16", "float32", set()),
        ("bfloat16", None, set()),
        ("int4", "bfloat16", set()),
    ],
)
def test_a_range_for_one_dtype_applies_to_the_coarser_side(rollout, trainer, dtypes):
    found = readings(-0.01, rollout, trainer)
    assert {name for reading in found for name in reading.threshold.dtypes} == dtypes
    assert {r.threshold.metric for r in found} >= {"prob_diff", "k1", "k3", "ess_token", "ratio", "chi2_token"}


@pytest.mark.parametrize(
    ("d", "metric", "state"),
    [
        (-0.001, "prob_diff", "normal"),  # e^-1 · 0.001 = 3.7e-4
        (-0.02, "prob_diff", "high"),  # e^-1 · 0.02 = 7.3e-3
        (-0.04, "mult_error", "normal"),  # e^0.04 = 1.041
        (-0.06, "mult_error", "high"),  # e^0.06 = 1.062
        (0.2, "k1", "low"),
        (-0.2, "k1", "high"),
        (-0.8, "ratio", "low"),  # e^-0.8 = 0.45
        (0.8, "ratio", "high"),  # e^0.8 = 2.2
    ],
)
def test_a_value_lies_inside_below_or_above_its_range(d, metric, state):
    assert state in {r.state for r in readings(d) if r.threshold.metric == metric}


def test_what_is_unusual_says_what_it_means():
    outside = [reading for reading in readings(-0.2) if reading.state in ("low", "high")]
    assert outside
    for reading in outside:
        assert str(reading).endswith(reading.threshold.meaning)
    assert {reading.state for reading in readings(-1e-6, "float32", "float32")} == {"normal"}


def test_readings_are_json():
    data = json.loads(json.dumps([r.as_dict() for r in readings(-0.01)], allow_nan=False))
    k1 = next(row for row in data if row["metric"] == "k1")
    assert (k1["low"], k1["high"], k1["value"]) == (None, 0.01, pytest.approx(0.01))


def test_nothing_measured_gives_no_reading():
    empty = measure_batch(trainer=np.zeros((1, 0)), rollout=np.zeros((1, 0)), mask=np.zeros((1, 0)))
    assert {r.state for r in judge(empty, rollout_dtype=None, trainer_dtype=None)} <= {"no value"}
