"""The worst tokens and responses, against a plain loop over the run."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import samepolicy as sp
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.records.worst import worst

NAN = float("nan")
VALUES = {
    "logp_diff": lambda t, r: abs(t - r),
    "k3": lambda t, r: np.expm1(t - r) - (t - r),
    "ratio": lambda t, r: np.exp(t - r),
    "prob_diff": lambda t, r: abs(np.exp(t) - np.exp(r)),
}
IDEAL = {"ratio": 1.0}


@st.composite
def scored(draw: st.DrawFn) -> dict[str, Any]:
    """Columns of a run, some of their values bad."""
    lengths = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    number = st.floats(-5, 0).map(lambda x: round(x, 2)) | st.sampled_from([NAN, 0.5])
    rows: Any = lambda values: [draw(st.lists(values, min_size=n, max_size=n)) for n in lengths]  # noqa: E731
    return {"rollout_logp": rows(number), "trainer_logp": rows(number), "mask": rows(st.integers(0, 1))}


def ranked(run: sp.Run, by: str) -> list[tuple[float, int, int, float]]:
    """Distance, row, position and value of every valid token, farthest first."""
    found = []
    for i in range(len(run)):
        for j in range(run.lengths[i]):
            t, r = float(run["trainer_logp"][i][j]), float(run["rollout_logp"][i][j])
            if run.mask[i][j] and t <= 0 and r <= 0:
                value = float(VALUES[by](t, r))
                found.append((abs(value - IDEAL.get(by, 0.0)), i, j, value))
    return sorted(found, key=lambda x: (-x[0], x[1], x[2]))


@given(scored(), st.sampled_from(sorted(VALUES)), st.integers(1, 4))
def test_tokens_are_those_of_a_loop(columns: dict[str, Any], by: str, n: int) -> None:
    run = sp.Run.from_lists(**columns)
    expected, found = ranked(run, by), worst(run, by=by, n=n)
    assert [o.value for o in found.found] == pytest.approx([v for *_, v in expected[:n]], rel=1e-12, abs=1e-15)
    for o in found.found:
        assert o.position is not None
        t, r = run["trainer_logp"][o.sequence][o.position], run["rollout_logp"][o.sequence][o.position]
        assert (o.trainer_logp, o.rollout_logp) == (t, r)
    assert (found.ranked, found.bad) == (len(expected), run.tokens - len(expected))
    halves = [run.select(range(len(run) // 2)), run.select(range(len(run) // 2, len(run)))]
    assert worst(iter(halves), by=by, n=n) == found


@given(scored(), st.sampled_from(sorted(VALUES)))
def test_responses_are_those_of_a_loop(columns: dict[str, Any], by: str) -> None:
    run = sp.Run.from_lists(**columns)
    means: dict[int, list[float]] = {}
    for _, i, _, value in ranked(run, by):
        means.setdefault(i, []).append(value)
    expected = sorted(-abs(np.mean(v) - IDEAL.get(by, 0.0)) for v in means.values())
    found = worst(run, by=by, n=20, over="response")
    assert [-abs(o.value - IDEAL.get(by, 0.0)) for o in found.found] == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert {o.sequence for o in found.found} == set(means)


def test_the_text_and_the_names_of_an_outlier() -> None:
    run = sp.Run.from_lists(
        response_ids=[[5, 6, 7], [8]], rollout_logp=[[-1.0, -1.0, -1.0], [-1.0]],
        trainer_logp=[[-1.0, -3.0, -1.0], [-1.5]], token_text=[["a ", "b", " c"], ["d"]], step=[4, 5], sample=[0, 9],
        group=["x", "y"], text=["a b c", "d"],
    )  # fmt: skip
    token, other = worst(run, n=2).found
    assert (token.before, token.text, token.after, token.id) == ("a ", "b", " c", 6)
    assert (token.step, token.sample, token.group, token.sequence, token.position) == (4, 0, "x", 0, 1)
    assert (other.before, other.text, other.after) == ("", "d", "")
    response = worst(run, over="response", by="log_ppl_diff", n=1).found[0]
    assert (response.text, response.position, response.id, response.tokens) == ("a b c", None, None, 3)
    assert response.value == pytest.approx(2 / 3)
    assert worst(run.without("text"), over="response", n=1).found[0].text == "ab c".replace("ab", "a b")


def test_a_monitor_folder_has_outliers_by_what_it_holds() -> None:
    run = sp.Run.from_lists(prob_diff=[[0.1, 0.5], [0.2]])
    assert [(o.value, o.trainer_logp) for o in worst(run, by="prob_diff", n=2).found] == [(0.5, None), (0.2, None)]
    with pytest.raises(MissingColumnError, match="k3 needs rollout_logp"):
        worst(run, by="k3")


def test_values_that_json_lacks_are_null() -> None:
    run = sp.Run.from_lists(rollout_logp=[[-800.0]], trainer_logp=[[0.0]])
    value = worst(run, by="ratio").as_dict()["worst"][0]
    assert (value["value"], value["rollout_logp"]) == (None, -800.0)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"by": "nothing"}, "no metric 'nothing'; choose one of"),
        ({"by": "ess_token"}, "ess_token is one number of a whole run"),
        ({"by": "prob_corr"}, "prob_corr is one number of a whole run"),
        ({"by": "ppl_ratio"}, "rank responses by it"),
        ({"n": 0}, "n must be 1 or more"),
    ],
)
def test_what_cannot_be_ranked(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        worst(sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]]), **asked)
