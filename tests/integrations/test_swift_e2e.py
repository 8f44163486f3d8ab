"""ms-swift's real trainer on the CPU, attached to by its own callback mechanism; see `swift_run`.

Builds an environment with ms-swift, which takes minutes. `SAMEPOLICY_SWIFT_RUN` names a folder of runs that are there
already, which are then checked instead of trained anew.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from samepolicy import measure_batch
from samepolicy.records.store import read
from tests.integrations.swift_run import BESIDE, RUNS, STEPS, THRESHOLD, VERSION, correction

pytestmark = [pytest.mark.full, pytest.mark.e2e]
ROOT = Path(__file__).resolve().parents[2]
PREFIX = "rollout_correction/"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a training with every run left behind."""
    from samepolicy.testing import smollm2_folder

    if there := os.environ.get("SAMEPOLICY_SWIFT_RUN"):
        return Path(there)
    made = tmp_path_factory.mktemp("swift")
    venv.create(made / "venv", with_pip=True)
    python = made / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-qq", f"ms-swift=={VERSION}", *BESIDE], check=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"}
    call = [python, ROOT / "tests" / "integrations" / "swift_run.py", made, Path(smollm2_folder()).resolve()]
    done = subprocess.run(call, cwd=made, env=environment, stdout=sys.stderr, check=False)
    assert done.returncode == 0
    return made


def result(folder, name):
    return json.loads((folder / name / "result.json").read_text())


def columns(micro_batches):
    """Ragged rows as a padded batch."""
    rows = {n: [r for batch in micro_batches for r in batch[n]] for n in ("trainer", "rollout")}
    length = max(len(r) for r in rows["trainer"])
    found = {n: np.array([r + [0.0] * (length - len(r)) for r in held]) for n, held in rows.items()}
    found["mask"] = np.array([[True] * len(r) + [False] * (length - len(r)) for r in rows["trainer"]])
    return found


def steps(found):
    """The micro-batches of each step."""
    size = len(found["read"]) // STEPS
    return [found["read"][i * size : (i + 1) * size] for i in range(STEPS)]


def test_every_run_trained_and_nothing_of_ours_failed(folder):
    for name, run in RUNS.items():
        log = result(folder, name)["log"]
        assert len(log) == STEPS
        if "samepolicy" in run["callbacks"]:
            assert [entry["samepolicy/swift/failed"] for entry in log] == [0] * STEPS, name
            assert [entry["samepolicy/monitor/skipped"] for entry in log] == [0] * STEPS, name


@pytest.mark.parametrize("name", ["plain", "logged"])
def test_without_a_correction_the_loss_is_that_of_swift_bit_for_bit(folder, name):
    ours, theirs = (result(folder, n)["log"] for n in (name, "off"))
    for key in ("loss", "grad_norm", "reward"):
        assert [e[key] for e in ours] == [e[key] for e in theirs], key


def test_the_keys_are_swifts_and_the_numbers_those_of_the_whole_batch(folder):
    found = result(folder, "plain")
    for entry, batch in zip(found["log"], steps(found), strict=True):
        expected = measure_batch(**columns(batch), names="swift").flat("swift")
        held = {n: v for n, v in entry.items() if n.startswith(PREFIX)}
        assert held.keys() >= {f"{PREFIX}{n}" for n in ("kl", "k3_kl", "training_ppl", "ppl_ratio", "chi2_seq")}
        for name, value in held.items():
            assert value == pytest.approx(expected[name], rel=1e-4, abs=1e-6), name
        assert entry[f"{PREFIX}k3_kl"] > 1e-4, "no gap, so nothing was tested"


def test_the_records_are_what_the_loss_read(folder):
    found = result(folder, "plain")
    run = read(folder / "plain" / "run")
    assert sorted(set(run["step"].tolist())) == list(range(1, STEPS + 1))
    rows = [(tuple(t), tuple(r)) for b in found["read"] for t, r in zip(b["trainer"], b["rollout"], strict=True)]
    kept = [
        (tuple(t.tolist()), tuple(r.tolist())) for t, r in zip(run["trainer_logp"], run["rollout_logp"], strict=True)
    ]
    assert sorted(rows) == sorted(kept)


def test_swifts_own_keys_stay_its_own_which_are_means_over_micro_batches(folder):
    found = result(folder, "logged")
    for entry, batch in zip(found["log"], steps(found), strict=True):
        parts = [measure_batch(**columns([part]), names="swift").flat("swift") for part in batch]
        for name in (f"{PREFIX}{n}" for n in ("kl", "k3_kl", "training_ppl", "log_ppl_abs_diff", "chi2_token")):
            assert entry[name] == pytest.approx(np.mean([p[name] for p in parts]), rel=1e-4, abs=1e-6), name
        assert any(n.startswith("samepolicy/") for n in entry)


def test_the_loss_read_the_weights_of_the_correction(folder):
    found = result(folder, "corrected")
    dropped = bounded = 0
    for batch in found["read"]:
        for trainer, rollout, weight in zip(batch["trainer"], batch["rollout"], batch["weight"], strict=True):
            t, r = np.array(trainer), np.array(rollout)
            kept = np.abs(np.exp(t) - np.exp(r)) <= 0.02
            expected = np.where(kept, np.minimum(np.exp(t - r), THRESHOLD), 0.0)
            np.testing.assert_allclose(weight, expected, rtol=1e-5)
            dropped, bounded = dropped + (~kept).sum(), bounded + (np.array(weight) == np.float32(THRESHOLD)).sum()
    assert dropped
    assert bounded
    assert str(correction()).startswith("Correction(Truncate(1.05)")
    for entry, batch in zip(found["log"], steps(found), strict=True):
        means = [np.concatenate([np.array(w) for w in part["weight"]]).mean() for part in batch]
        assert entry[f"{PREFIX}is_weight_mean"] == pytest.approx(np.mean(means), rel=1e-4)
        assert 0 < entry["samepolicy/correction/kept"] < 1
