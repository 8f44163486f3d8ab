"""The one JSON value: one shape, and exactly what the library returned."""

import json

import numpy as np

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.report import data


def test_every_value_has_one_shape_and_is_json():
    run = recorded()
    summary = sp.measure(run, names="verl")
    groups = sp.measure_by(run, "position")
    values = [
        data.of_diagnosis(sp.diagnose(run)),
        data.of_summary(summary),
        data.of_summary(summary, groups=groups, by="position", names="verl"),
        data.of_run(run),
    ]
    for value in values:
        assert value["schema"] == 1
        assert value["counts"]["tokens"] == run.tokens
        assert value["metrics"]["k3"]["mean"] == sp.measure(run)["k3"]["mean"]
        assert json.loads(json.dumps(value, allow_nan=False)) == value


def test_k3_is_that_of_a_plain_loop():
    run = recorded()
    d = [t - r for t, r in zip(run["trainer_logp"].values.tolist(), run["rollout_logp"].values.tolist(), strict=True)]
    loop = sum(np.exp(x) - 1 - x for x in d) / len(d)
    assert abs(data.of_summary(sp.measure(run))["metrics"]["k3"]["mean"] - loop) < 1e-12


def test_numbers_that_do_not_exist_are_null():
    value = data.of_run(sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]]))
    assert value["metrics"]["k3"]["std"] is None
    one_side = data.of_run(sp.Run.from_lists(rollout_logp=[[-1.0, -2.0]], mask=[[1, 0]]))
    assert (one_side["counts"]["tokens"], one_side["counts"]["sequences"], one_side["metrics"]) == (1, 1, {})
