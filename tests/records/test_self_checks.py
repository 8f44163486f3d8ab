"""Distances of an engine from itself, as a run keeps them."""

import numpy as np
import pytest
from rich.console import Console

import samepolicy as sp
from samepolicy.records.self_checks import rms
from samepolicy.report.text import diagnosis


@pytest.fixture
def run() -> sp.Run:
    return sp.Run.from_lists(rollout_logp=[[-1.0, -0.5], [-2.0]])


def test_two_scorings_are_compared_token_by_token_and_kept(run: sp.Run, tmp_path):
    before = run["rollout_logp"]
    after = before.with_values(np.array([-1.3, -0.1, np.nan], dtype=np.float32))
    run = sp.self_check(run, "trainer_alone", first=before, second=before)
    sp.write(sp.self_check(run, "rollout_woken", first=before, second=after), tmp_path / "run")
    kept = sp.read(tmp_path / "run").info["self_checks"]
    assert kept["trainer_alone"] == {"tokens": 3, "mean_abs": 0.0, "rms": 0.0}
    assert kept["rollout_woken"]["tokens"] == 2
    assert kept["rollout_woken"]["mean_abs"] == pytest.approx(0.35)
    assert kept["rollout_woken"]["rms"] == pytest.approx(np.sqrt((0.3**2 + 0.4**2) / 2))


def test_what_cannot_be_compared_is_refused_in_a_sentence(run: sp.Run):
    with pytest.raises(sp.errors.InputError, match="no self-check 'asleep'; it can be trainer_alone, rollout_prefill"):
        sp.self_check(run, "asleep", first=run["rollout_logp"], second=run["rollout_logp"])
    with pytest.raises(sp.errors.ShapeError, match="hold 3 and 2"):
        sp.self_check(run, "rollout_woken", first=run["rollout_logp"], second=np.zeros(2))


def test_a_scoring_of_nothing_has_no_distance(run: sp.Run):
    found = sp.self_check(run, "rollout_woken", first=np.full(3, np.nan), second=np.zeros(3))
    assert found.info["self_checks"]["rollout_woken"] == {"tokens": 0, "mean_abs": None, "rms": None}


@pytest.mark.parametrize("scoring", [[[-1.0], [-1.0, -2.0]], ["a", "b"], object()], ids=["rows", "texts", "thing"])
def test_what_is_no_scoring_is_refused(run: sp.Run, scoring):
    with pytest.raises(sp.errors.InputError, match="a Ragged or an array of numbers"):
        sp.self_check(run, "rollout_woken", first=scoring, second=scoring)


def test_huge_values_have_a_finite_distance(run: sp.Run):
    found = sp.self_check(run, "rollout_woken", first=np.array([1e200]), second=np.array([-1e200]))
    assert found.info["self_checks"]["rollout_woken"]["rms"] == pytest.approx(2e200)


@pytest.mark.parametrize("kept", [[1], 5, "rms", None])
def test_what_a_run_keeps_under_that_name_may_be_anything(run: sp.Run, kept):
    odd = sp.Run(columns=run.columns, info={"self_checks": kept})
    assert sp.diagnose(odd.with_columns(trainer_logp=odd["rollout_logp"])).self_checks == {}


@pytest.mark.parametrize("kept", [{"rms": 0.1}, {"mean_abs": "x", "rms": 0.1}, {"mean_abs": 0.1, "rms": np.nan}, {}, 5])
def test_what_is_no_distance_is_not_shown(run: sp.Run, kept):
    good = {"tokens": 2, "mean_abs": 0.125, "rms": 0.25}
    odd = sp.Run(columns=run.columns, info={"self_checks": {"trainer_alone": kept, "rollout_woken": good}})
    found = sp.diagnose(odd.with_columns(trainer_logp=odd["rollout_logp"]))
    assert found.self_checks == {"rollout_woken": good}
    assert rms(odd, "trainer_alone") is None
    console = Console()
    with console.capture() as printed:
        console.print(diagnosis(found))
    assert "rollout–woken" in printed.get()
    assert "trainer–itself" not in printed.get()
