"""Bad input is one sentence, and says what to do."""

import json
import subprocess
import sys

import numpy as np
import pytest

from samepolicy import Band, Correction, Normalise, OffPolicyMask, Reject, SecondMoment, Truncate, Veto
from samepolicy.corrections.base import Step
from samepolicy.errors import InputError, MaskError, MissingColumnError, ShapeError
from tests.oracles.correction_batches import correction_batch

NAN = float("nan")
UNKNOWN_CHOICES = (
    "Truncate(2.0, over='word')",
    "Truncate(2.0, clamp_at='end')",
    "Truncate(2.0, among='lost')",
    "Band(0.5, 2.0, weight='geometric')",
    "Reject('k9', above=1.0)",
    "Reject('k3', above=1.0, over='geometric')",
    "Reject('k3', above=1.0, reduce='median')",
    "Veto(below=0.1, over='token')",
    "OffPolicyMask(0.1, old='current')",
    "OffPolicyMask(0.1, sign='turn')",
    "Normalise('turn')",
    "Correction(missing='fill')",
    "Truncate('2')",
    "Correction.from_skyrl(tis_ratio_type='geometric')",
    "Correction.from_slime(use_tis=True, tis_function='mis', tis_mode='drop')",
    "Correction.from_areal(agg='median')",
    "Correction.from_roll(weight_type='turn')",
    "Correction.from_verl(k1_bounds='both')",
    "samepolicy.kl.kl_values(current=0.0, reference=0.0, kind='k4')",
    "samepolicy.kl.average_loss(0.0, 0.0, 'mean')",
)
"""Refused where nobody checks types: the tests' own shape checks would be first."""


@pytest.fixture(scope="module")
def refusals():
    """The error of each unknown choice, in a fresh interpreter."""
    code = f"""
import json, samepolicy, samepolicy.kl
from samepolicy import *
found = {{}}
for call in {UNKNOWN_CHOICES!r}:
    try:
        found[call] = repr(eval(call))
    except samepolicy.errors.InputError as error:
        found[call] = "InputError: " + str(error)
print(json.dumps(found))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("call", UNKNOWN_CHOICES)
def test_unknown_choices_are_refused(refusals, call):
    assert refusals[call].startswith("InputError: ")
    assert "\n" not in refusals[call]
    assert refusals[call].endswith(".")


@pytest.mark.parametrize(
    "make",
    [
        lambda: Truncate(0.0),
        lambda: Truncate(-1.0),
        lambda: Truncate(NAN),
        lambda: Truncate(1.0, below=2.0),
        lambda: Truncate(1.0, clamp=0.0),
        lambda: Band(None, None),
        lambda: Band(2.0, 1.0),
        lambda: Band(0.0, 1.0),
        lambda: Reject("k3"),
        lambda: Reject("k3", above=0.0),
        lambda: Reject("k1", below=1.0, above=-1.0),
        lambda: Reject("k3", above=1.0, over="sequence", reduce="geometric"),
        lambda: Reject("k3", above=1.0, clamp=20.0, clamp_at="span"),
        Veto,
        lambda: Veto(below=-1.0),
        lambda: OffPolicyMask(NAN),
        lambda: SecondMoment(0.0),
        lambda: Correction(Truncate(2.0), Band(0.5, 2.0)),
        lambda: Correction(Normalise()),
        lambda: Correction(Normalise(), Truncate(2.0)),
        lambda: Correction(Truncate(2.0), Normalise(), Normalise("sequence")),
    ],
)
def test_steps_that_cannot_be_are_refused(make):
    with pytest.raises(InputError) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"mask": np.full((8, 12), 2)}, MaskError, "0 and 1"),
        ({"mask": np.full((8, 12), NAN)}, MaskError, "0 and 1"),
        ({"mask": np.ones((8, 1))}, ShapeError, "shape"),
        ({"trainer": np.zeros((8, 1))}, ShapeError, "trainer"),
        ({"rollout": np.zeros(8)}, ShapeError, "rollout"),
        ({"rollout": None}, MissingColumnError, "rollout"),
        ({"advantage": np.zeros((8, 1))}, ShapeError, "advantage"),
        ({"advantage": np.zeros(7)}, ShapeError, "7 values for 8 sequences"),
        ({"advantage": None}, MissingColumnError, "advantage"),
        ({"current": np.zeros((8, 11))}, ShapeError, "current"),
        ({"offsets": np.array([0, 96])}, ShapeError, "offsets"),
        ({"reward": np.zeros((8, 12))}, InputError, "current, advantage, turn"),
    ],
)
def test_batches_that_do_not_line_up_are_refused(change, error, said):
    batch = {k: v for k, v in {**correction_batch(0), **change}.items() if v is not None or k == "rollout"}
    with pytest.raises(error, match=said) as caught:
        Correction(Truncate(2.0), OffPolicyMask(0.1))(**batch)
    assert "\n" not in str(caught.value)


def test_a_step_over_turns_needs_the_turns():
    data = correction_batch(0)
    with pytest.raises(MissingColumnError, match="turn"):
        Correction(Veto(below=0.1, over="turn"))(**{n: data[n] for n in ("trainer", "rollout", "mask")})


def test_without_a_rollout_only_steps_that_do_not_read_it_run():
    data = correction_batch(0)
    batch = {n: data[n] for n in ("trainer", "current", "mask", "advantage")} | {"rollout": None}
    found = Correction(OffPolicyMask(0.05, old="trainer"))(**batch)
    assert found.stats.raw.tokens == 0  # no gap was measured: never a perfect match
    assert np.isnan(found.stats.raw.ess_token)
    gap = np.where(data["mask"], data["trainer"] - data["current"], 0).sum(1) / np.maximum(data["mask"].sum(1), 1)
    dropped = (gap > 0.05) & (data["advantage"] < 0)
    np.testing.assert_array_equal(found.keep, data["mask"] & ~dropped[:, None])


def test_statistics_of_different_corrections_do_not_add():
    data = {n: x for n, x in correction_batch(0).items() if n in ("trainer", "rollout", "mask")}
    with pytest.raises(InputError, match="different"):
        Correction()(**data).stats + Correction(Veto(below=0.1))(**data).stats


def test_a_correction_is_written_as_one_would_write_it():
    correction = Correction(Truncate(2.0, over="sequence"), Reject("k3", above=0.05, over="sequence"), missing="agree")
    assert eval(str(correction)) == correction
    assert correction.needs == ("rollout", "trainer")
    assert hash(correction) == hash(eval(str(correction)))


def test_every_step_documents_itself():
    from samepolicy.corrections import all_steps

    for name, step in all_steps().items():
        assert "Reference:" in step.__doc__, name
        assert ">>>" in step.__doc__, name
        assert issubclass(step, Step)
