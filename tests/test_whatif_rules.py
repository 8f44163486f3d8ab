"""What-if: which rules are tried, at which thresholds, and what is advised."""

import json
import math

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.corrections import PRESETS
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.report.figures import page
from samepolicy.whatif import Rule, preset, sweep, with_threshold
from samepolicy.whatif.advice import advise
from tests.whatif_runs import run_of


def test_what_the_columns_do_not_allow_is_told():
    bare = run_of(advantage=None)
    found = sp.whatif(bare)
    assert found.untried == dict.fromkeys(("dppo-tv", "off-policy-mask", "m2po"), ("advantage",))
    assert all(o.surrogate is None for o in found.outcomes)
    with pytest.raises(MissingColumnError, match="m2po needs the column advantage"):
        sp.whatif(bare, ["m2po"])
    with pytest.raises(MissingColumnError, match="no trainer_logp; add it with `samepolicy score RUN"):
        sp.whatif(run_of(trainer_logp=None))


def test_unknown_names_list_the_valid_ones():
    with pytest.raises(InputError, match="no correction 'tiss'; choose none, token-is, tis"):
        sp.whatif(run_of(), ["tiss"])
    with pytest.raises(InputError, match="tried were none, token-is, tis"):
        sp.whatif(run_of())["tiss"]


@pytest.mark.parametrize(
    ("name", "threshold", "written"),
    [
        ("tis", 3.0, "Correction(Truncate(3.0))"),
        ("token-is", 3.0, "Correction(Truncate(3.0))"),
        ("icepop", 4.0, "Correction(Band(0.25, 4.0))"),
        ("mis", 4.0, "Correction(Band(None, 4.0))"),
        ("tis-veto", 4.0, "Correction(Truncate(4.0), Veto(below=0.0001))"),
        ("veto", 1e-3, "Correction(Veto(below=0.001))"),
        ("dppo-tv", 0.1, "Correction(Reject('prob_diff', below=-0.1, above=0.1, sided=True))"),
        ("off-policy-mask", 0.2, "Correction(OffPolicyMask(0.2))"),
        ("m2po", 0.1, "Correction(SecondMoment(0.1))"),
    ],
)
def test_a_preset_with_another_threshold(name: str, threshold: float, written: str):
    rule = preset(name, threshold)
    assert (str(rule.correction), rule.threshold) == (written, threshold)


@pytest.mark.parametrize(
    ("name", "threshold", "words"),
    [
        ("none", 2.0, "none has no threshold"),
        ("tis", -1.0, "must be above 0"),
        ("tis", math.nan, "must be numbers"),
        ("icepop", 0.5, "τ must be above 1, but it is 0.5"),
        ("m2po", 0.0, "must be above 0"),
    ],
)
def test_impossible_thresholds(name: str, threshold: float, words: str):
    with pytest.raises(InputError, match=words):
        preset(name, threshold)


@pytest.mark.parametrize("name", [n for n in PRESETS if n != "none"])
def test_every_preset_can_be_swept(name: str):
    rules = sweep(preset(name))
    thresholds = [r.threshold for r in rules]
    assert len(set(thresholds)) == 7
    assert thresholds == sorted(thresholds)
    assert thresholds[3] == pytest.approx(2.0 if name == "token-is" else preset(name).threshold)
    assert len(sp.whatif(run_of(), ["none"], sweeps=[name]).sweeps[name]) == 7


def test_a_sweep_of_a_mask_drops_less_and_less():
    swept = sp.whatif(run_of(), ["none"], sweeps=["mis"]).sweeps["mis"]
    kept = [o.kept for o in swept]
    assert kept == sorted(kept)
    assert kept[0] < kept[-1]


def test_rules_of_ones_own():
    correction = sp.Correction(sp.Truncate(1.5), sp.Normalise())
    found = sp.whatif(run_of(), [Rule("mine", correction), with_threshold(preset("tis"), 3.0), "tis"])
    assert [o.label for o in found.outcomes] == ["none", "token-is", "mine", "tis 3", "tis"]
    assert found["mine"].correction == correction


# ------------------------------------------------------------------------------------------------------------ advice


def test_no_correction_needed():
    assert sp.whatif(run_of(spread=0.01)).advice.rule == "none"
    same_policy = run_of()
    found = sp.whatif(same_policy.with_columns(trainer_logp=same_policy["rollout_logp"]))
    assert found.advice.sentence.startswith("No correction needed: the raw token ESS is 1.000")
    kept = {o.name: o.kept for o in found.outcomes if o.name != "off-policy-mask"}
    assert set(kept.values()) == {1.0}


def test_a_fault_is_to_be_found_first():
    advice = sp.whatif(run_of(spread=3.0)).advice
    assert advice.rule is None
    assert "samepolicy diagnose" in advice.sentence


def test_with_advantages_the_least_error_decides():
    found = sp.whatif(run_of(800, lean=0.2, spread=0.1))
    errors = {o.name: o.surrogate.error for o in found.outcomes if o.kept >= 0.9 and o.name != "token-is"}
    assert errors[found.advice.rule] <= 1.01 * min(errors.values())
    assert found.advice.rule != "none"
    assert errors["none"] > 1.01 * min(errors.values())


@pytest.mark.parametrize(
    ("where", "rule"), [("few", "tis-veto"), ("below", "icepop"), ("above", "tis")], ids=lambda x: x
)
def test_without_advantages_the_tail_decides(where: str, rule: str):
    rng = np.random.default_rng(0)
    d = 0.05 * rng.standard_normal((100, 50))
    rows = slice(0, 2) if where == "few" else slice(0, 100)
    d[rows, :: 7 if where == "few" else 25] = 1.0 if where == "above" else -1.0
    run = sp.Run.from_lists(rollout_logp=list(0 * d - 5), trainer_logp=list(d - 5))
    assert sp.whatif(run).advice.rule == rule


def test_nothing_measured_has_no_advice():
    run = run_of(mask=None)
    empty = sp.whatif(run.with_columns(mask=[np.zeros(n) for n in run.lengths]))
    assert (empty.advice.rule, empty.summary.counts.tokens) == (None, 0)
    assert math.isnan(empty["tis"].kept)
    json.dumps(empty.as_dict(), allow_nan=False)
    assert "nothing to correct" in str(empty)
    page(empty)


def test_values_that_are_no_number_are_dropped_and_counted():
    run = run_of(mask=None)
    logp = run["trainer_logp"].values.copy()
    logp[:3] = math.nan
    advantage = run["advantage"].values.copy()
    advantage[5] = math.nan
    odd = run.with_columns(
        trainer_logp=run["trainer_logp"].with_values(logp), advantage=run["advantage"].with_values(advantage)
    )
    found = sp.whatif(odd)
    assert found["none"].dropped == pytest.approx(3 / run.tokens)
    good = np.isfinite(advantage) & np.isfinite(logp)
    assert found["none"].surrogate.value == pytest.approx(advantage[good].mean())


def test_few_prompts_leave_the_decision_to_the_tail():
    found = sp.whatif(run_of(24, spread=0.2, lean=0.1))
    given = {"prompts": 100, "far": 5, "sequences_with_far": 1, "sequences": 100}
    assert advise(found.summary, found.outcomes, **given | {"prompts": 3}).rule == "tis-veto"
