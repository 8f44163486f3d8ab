"""Real verl training steps with real vLLM on the CPU, v1 and legacy trainer; `verl_run` puts them into the docs.

Builds an environment beside this one and trains one step a run, some minutes each. `SAMEPOLICY_VERL_RUN` names a folder
of runs that are there already, which are then checked instead of trained anew.
"""

import os
import re
from pathlib import Path

import numpy as np
import pytest

from samepolicy.records.store import read
from tests.integrations import verl_run

pytestmark = [pytest.mark.full, pytest.mark.e2e]
CELL = re.compile(r"training/rollout_probs_diff/s(\d+)_p(\d{4})$")
OURS = ("training/rollout_probs_diff/", "samepolicy/")
WITH = [name for name, run in verl_run.RUNS.items() if run["ours"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every run left behind."""
    if there := os.environ.get("SAMEPOLICY_VERL_RUN"):
        return Path(there)
    made = tmp_path_factory.mktemp("verl")
    python = verl_run.build(made)
    for name in verl_run.RUNS:
        status = verl_run.train(made / name, name, python)
        assert status == 0, (made / name / "log.txt").read_text(errors="replace")[-5000:]
    return made


def pair(folder, name):
    """The difference of every place, and the mask."""
    return tuple(np.load(folder / name / "prob_diff" / f"prob_{kind}_step_1.npy") for kind in ("diff", "mask"))


@pytest.mark.parametrize("name", WITH)
def test_the_grid_is_the_pair_of_files(folder, name):
    logged, (diff, mask) = verl_run.logged(folder / name), pair(folder, name)
    assert (diff.dtype, mask.dtype, diff.shape) == (np.float32, bool, (8, 32))
    cells = {(int(m[1]), int(m[2])): logged[key] for key in logged if (m := CELL.match(key))}
    assert set(cells) == {(s, p) for s in range(8) for p in range(10) if mask[s, p]}
    for place, value in cells.items():
        assert value == pytest.approx(float(diff[place]), rel=1e-6)
    assert (diff[~mask] == 0).all()


@pytest.mark.parametrize(("name", "tolerance"), [("legacy", 1e-4), ("v1", 0.05)])
def test_the_pair_of_files_agrees_with_verls_own_line(folder, name, tolerance):
    """verl takes the exponential of bfloat16 log-probs in bfloat16, hence the tolerance of v1."""
    logged, (diff, mask) = verl_run.logged(folder / name), pair(folder, name)
    assert logged["training/rollout_probs_diff_valid"] == 1
    assert logged["training/rollout_probs_diff_mean"] == pytest.approx(diff[mask].mean(), rel=tolerance)
    assert logged["training/rollout_probs_diff_max"] == pytest.approx(diff[mask].max(), rel=tolerance)
    assert logged["training/rollout_probs_diff_std"] == pytest.approx(diff[mask].std(ddof=1), rel=tolerance)


@pytest.mark.parametrize("name", WITH)
def test_the_run_folder_holds_the_same_tokens(folder, name):
    run, (diff, mask) = read(folder / name / "run"), pair(folder, name)
    trainer, rollout = (np.concatenate([*run[f"{side}_logp"]]).astype(float) for side in ("trainer", "rollout"))
    assert len(trainer) == mask.sum()
    np.testing.assert_allclose(np.sort(np.abs(np.exp(trainer) - np.exp(rollout))), np.sort(diff[mask]), atol=1e-6)


def test_float32_on_both_sides_differs_by_rounding_alone(folder):
    assert 0 < verl_run.logged(folder / "legacy")["training/rollout_probs_diff_max"] < 1e-4
    assert verl_run.logged(folder / "legacy")["samepolicy/monitor/alarms"] == 0


def test_a_bfloat16_actor_differs_as_bfloat16_does(folder):
    logged = verl_run.logged(folder / "v1")
    assert 0.01 < logged["training/rollout_probs_diff_max"] < 0.3
    assert 0.002 < logged["training/rollout_probs_diff_mean"] < 0.02


def test_the_correction_reached_the_actors_loss(folder):
    logged, run = verl_run.logged(folder / "v1"), read(folder / "v1" / "run")
    found = {name: logged[f"{verl_run.PREFIX}/{name}"] for name in verl_run.CORRECTION}
    assert (found["failed"], found["kept"]) == (0, 1)
    ratio = np.exp(np.concatenate([*run["trainer_logp"]]).astype(float) - np.concatenate([*run["rollout_logp"]]))
    assert found["ratio_mean"] == pytest.approx(ratio.mean(), abs=0.02)  # a mean of two micro-batches' means
    assert found["weight_mean"] == pytest.approx(np.minimum(ratio, 2.0).mean(), abs=0.02)
    assert found["ratio_mean"] != 1
    assert logged["rollout_corr/rollout_is_mean"] == pytest.approx(ratio.mean(), rel=1e-3)  # verl's, without a bound
    assert np.isfinite(logged["actor/grad_norm"])


def test_with_every_switch_off_verl_logs_what_it_logs_without_us(folder):
    on, off = (verl_run.logged(folder / name) for name in ("legacy", "off"))
    assert not [key for key in off if key.startswith(OURS)]
    assert {key for key in on if not key.startswith(OURS)} >= {*off}
