"""Corrections built from ms-swift's flags, and numbers under its names, against what its own functions gave.

They cannot be installed beside this project, since they want another TRL: `record_swift.py` ran them, and
`make test-e2e` runs them again and compares.
"""

import json
import math
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest

from samepolicy import Correction, measure_batch
from samepolicy.names import FRAMEWORKS
from tests.oracles.correction_batches import correction_batch

BESIDE = ("torch==2.13.0", "msgspec==0.23.0")
"""What ms-swift imports without asking for it."""
HERE = Path(__file__).parent
RECORDED = HERE / "recorded" / "swift.json"
CASES = json.loads(RECORDED.read_text(encoding="utf-8"))["cases"]


def of(kind, *, finite=None):
    """The recorded cases of a kind; with `finite`, those without (or with) NaN outside the mask."""
    found = [c for c in CASES if c["kind"] == kind and (finite is None or math.isfinite(c["junk"]) is finite)]
    assert found
    return [pytest.param(c, id="-".join(str(v) for v in c.values() if not isinstance(v, list | dict))) for c in found]


def corrected(case, **flags):
    data = correction_batch(case["seed"], junk=case["junk"])
    del data["turn"]
    return data, Correction.from_swift(**flags)(**data)


def by_flags(case):
    return corrected(
        case,
        rollout_importance_sampling_mode=case["mode"],
        rollout_importance_sampling_threshold=case["threshold"],
    )


@pytest.mark.parametrize("case", of("weights", finite=True))
def test_weights_and_logged_numbers_are_those_of_swift(case):
    data, (weights, keep, stats) = by_flags(case)
    np.testing.assert_allclose(weights[data["mask"]], case["weights"], rtol=1e-6, atol=1e-12)
    assert (weights[~data["mask"]] == 0).all()
    assert (keep == data["mask"]).all()
    assert stats.clamped >= 2
    flat = stats.flat("swift")
    assert set(flat) == {f"rollout_correction/{k}" for k in case["logged"]}
    for key, value in case["logged"].items():
        assert flat[f"rollout_correction/{key}"] == pytest.approx(value, rel=1e-6), key


@pytest.mark.parametrize("case", of("weights", finite=False))
def test_exception_nan_outside_the_mask_reaches_swifts_numbers_and_not_ours(case):
    _, (weights, _, stats) = by_flags(case)
    clean, (expected, _, _) = by_flags({**case, "junk": 0.0})
    np.testing.assert_array_equal(weights, expected)
    assert all(math.isfinite(v) for v in stats.flat("swift").values())
    theirs = np.array(case["weights"])
    if case["mode"].startswith("token"):
        np.testing.assert_allclose(weights[clean["mask"]], theirs, rtol=1e-6)
    else:  # swift multiplies by the mask after the log, and NaN · 0 is NaN
        assert np.isnan(theirs).any() or (theirs == 0).any()
    assert math.isnan(case["logged"]["is_weight_mean"]) is (case["mode"] != "token_mask")  # NaN ≤ τ is false


@pytest.mark.parametrize("case", of("mask", finite=True))
def test_the_sequence_mask_is_that_of_swift(case):
    data, found = corrected(case, off_policy_sequence_mask_delta=case["delta"])
    np.testing.assert_array_equal(found.keep, data["mask"] & np.array(case["keep"])[:, None])


def test_the_recorded_sequence_masks_drop_something():
    assert any(not all(c["keep"]) for c in CASES if c["kind"] == "mask")


@pytest.mark.parametrize("case", of("metrics", finite=True))
def test_measured_numbers_under_swifts_names_are_those_of_swift(case):
    data = correction_batch(case["seed"], junk=case["junk"])
    found = measure_batch(**{n: data[n] for n in ("trainer", "rollout", "mask")}, names="swift").flat("swift")
    assert set(found) == set(FRAMEWORKS["swift"].keys)
    for key, value in case["logged"].items():
        assert found[f"rollout_correction/{key}"] == pytest.approx(value, rel=1e-6, abs=1e-12), key


@pytest.mark.e2e
def test_swift_itself_gives_what_was_recorded(tmp_path):
    """Installs ms-swift into an environment of its own, which takes minutes, and runs the recording again."""
    version = json.loads(RECORDED.read_text(encoding="utf-8"))["ms-swift"]
    venv.create(tmp_path / "swift", with_pip=True)
    python = tmp_path / "swift" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-qq", f"ms-swift=={version}", *BESIDE], check=True)
    again = tmp_path / "swift.json"
    subprocess.run([python, HERE / "record_swift.py", again], check=True, stdout=sys.stderr)
    for now, then in zip(json.loads(again.read_text())["cases"], CASES, strict=True):
        for key in now.keys() & {"weights", "keep"}:
            np.testing.assert_allclose(now[key], then[key], rtol=1e-9)
        for key, value in now.get("logged", {}).items():
            assert value == pytest.approx(then["logged"][key], rel=1e-9, nan_ok=True), key
