"""Real TRL training with real vLLM, ten steps with each mode; see `trl_run`, which also puts the results into the docs.

`SAMEPOLICY_TRL_RUN` names a folder of a run that is there already, which is then checked instead of trained anew.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from samepolicy.records.store import read
from tests.integrations.trl_run import MODES, STEPS, THRESHOLD
from tests.integrations.trl_trainers import by_hand

pytestmark = [pytest.mark.full, pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one training with every mode left behind."""
    if there := os.environ.get("SAMEPOLICY_TRL_RUN"):
        return Path(there)
    made = tmp_path_factory.mktemp("trl")
    call = [sys.executable, "-m", "tests.integrations.trl_run", "train", str(made)]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return made


def result(folder, mode):
    return json.loads((folder / mode / "result.json").read_text())


@pytest.mark.parametrize("mode", MODES)
def test_the_loss_read_what_numpy_computes_from_the_recorded_run(folder, mode):
    found = result(folder, mode)
    assert (found["failed"], len(found["log"])) == (0, STEPS)
    run = read(folder / mode / "run")
    assert sorted(set(run["step"].tolist())) == list(range(1, STEPS + 1))
    wanted = {}
    for i, ids in enumerate(run["response_ids"]):
        weights = by_hand(mode, THRESHOLD, run["trainer_logp"][i], run["rollout_logp"][i])
        np.testing.assert_allclose(run["weight"][i], weights, rtol=1e-5)
        wanted[int(run["step"][i]), tuple(ids.tolist())] = weights
    bounded = 0
    for step, batch in enumerate(found["read_by_loss"], 1):
        rows = zip(batch["completion_ids"], batch["completion_mask"], batch["importance_sampling_ratio"], strict=True)
        for ids, mask, ratios in rows:
            length = sum(mask)
            weights = wanted[step, tuple(ids[:length])]
            np.testing.assert_allclose(ratios[:length], weights, rtol=1e-5)
            bounded += sum(w in (0.0, THRESHOLD) for w in weights)
    assert mode.startswith("sequence") or bounded, "no weight was bounded, so nothing was tested"


@pytest.mark.parametrize("mode", MODES)
def test_the_gap_does_not_grow_with_the_steps(folder, mode):
    """What a weight sync left out would add up step by step, as the trainer moves away from the engine."""
    gaps = [entry["sampling/sampling_logp_difference/mean"] for entry in result(folder, mode)["log"]]
    assert np.mean(gaps[5:]) < 1.5 * np.mean(gaps[:5])
    assert max(gaps) < 0.25


def test_a_wrong_temperature_raises_the_alarm_at_step_1(folder):
    wrong, right = result(folder, "temperature"), result(folder, MODES[0])
    assert right["log"][0]["samepolicy/monitor/alarms"] == 0
    assert wrong["log"][0]["samepolicy/monitor/alarms"] >= 1
    assert wrong["log"][0]["step"] == 1
    assert "temperature" in " ".join(wrong["said"])
