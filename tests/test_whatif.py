"""What-if: every number against a plain loop or the correction itself, and parts against the whole."""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import samepolicy as sp
from samepolicy.corrections import PRESETS
from samepolicy.errors import InputError
from samepolicy.pareto import pareto_k
from samepolicy.whatif import Rule, preset
from samepolicy.whatif.surrogate import surrogates
from tests.whatif_runs import comparable, run_of, same


def by_loop(run: sp.Run, rule: Rule) -> dict[str, float]:
    """Shares and surrogate of one rule, response by response, from the correction's own weights."""
    columns = {"trainer": "trainer_logp", "rollout": "rollout_logp", "advantage": "advantage"}
    given = {n: run[c].values for n, c in columns.items() if n in {"trainer", "rollout", *rule.correction.needs}}
    weights, keep, _ = rule.correction(**given, mask=run.mask.values, offsets=run.offsets)
    tokens = carrying = zeroed = dropped = responses = filled = 0
    total = plain = full = 0.0
    for i in range(len(run)):
        lost_all = True
        for t in range(run.offsets[i], run.offsets[i + 1]):
            if not run.mask.values[t]:
                continue
            tokens += 1
            carrying += weights[t] > 0
            zeroed += bool(keep[t]) and weights[t] == 0
            dropped += not keep[t]
            lost_all &= weights[t] == 0
            a = run["advantage"].values[t]
            total, plain = total + weights[t] * a, plain + a
            full += math.exp(run["trainer_logp"].values[t] - run["rollout_logp"].values[t]) * a
        filled += run.mask[i].any()
        responses += run.mask[i].any() and not lost_all
    return {
        "kept": carrying / tokens,
        "zeroed": zeroed / tokens,
        "dropped": dropped / tokens,
        "kept_sequences": responses / filled,
        "value": total / tokens,
        "from_uncorrected": (total - plain) / tokens,
        "from_weighted": (total - full) / tokens,
    }


BATCH_WIDE = ("m2po",)  # by step; see below


@pytest.mark.parametrize("name", [n for n in PRESETS if n not in BATCH_WIDE])
def test_shares_and_surrogate_are_those_of_a_loop(name: str):
    run = run_of()
    found, expected = sp.whatif(run)[name], by_loop(run, preset(name))
    mine = {k: getattr(found, k) for k in ("kept", "zeroed", "dropped", "kept_sequences")}
    assert mine == pytest.approx({k: expected[k] for k in mine})
    assert found.kept + found.zeroed + found.dropped == pytest.approx(1)
    s = found.surrogate
    assert s.value == pytest.approx(expected["value"])
    assert s.from_uncorrected.value == pytest.approx(expected["from_uncorrected"])
    assert s.from_weighted.value == pytest.approx(expected["from_weighted"])


def test_weights_are_the_corrections_own_statistics():
    run = run_of()
    given = {"trainer": run["trainer_logp"].values, "rollout": run["rollout_logp"].values, "mask": run.mask.values}
    weights, _, stats = PRESETS["icepop"].correction(**given, offsets=run.offsets)
    found = sp.whatif(run)["icepop"]
    assert (found.ess_token, found.ess_sequence) == (stats.applied.ess_token, stats.applied.ess_sequence)
    assert (found.weight_mean, found.weight_max) == (stats.applied.weight_mean, stats.applied.weight_max)
    assert (found.clipped, found.clipped_sequences) == (stats.clipped, stats.clipped_sequences)
    logs = np.sort(np.log(weights[weights > 0]))[::-1]
    assert found.pareto_k == pytest.approx(pareto_k(logs, count=len(logs)))
    w = weights[run.mask.values]
    assert found.ess_token == pytest.approx(w.sum() ** 2 / (len(w) * (w**2).sum()))
    assert sp.whatif(run).summary.as_dict() == sp.measure(run).as_dict()


def test_dividing_by_what_is_kept():
    run = run_of()
    by_mask, by_kept = (sp.whatif(run, ["mult-error"], divide_by=d)["mult-error"] for d in ("mask", "kept"))
    assert by_kept.surrogate.value == pytest.approx(by_mask.surrogate.value / (1 - by_mask.dropped))


def test_the_skew_is_the_difference_of_mean_weights():
    run = run_of(lean=0.2)
    given = {"trainer": run["trainer_logp"].values, "rollout": run["rollout_logp"].values, "mask": run.mask.values}
    weights, *_ = PRESETS["tis"].correction(**given, offsets=run.offsets)
    a, m = run["advantage"].values, run.mask.values
    found = sp.whatif(run, ["tis"])["tis"].surrogate
    assert found.skew == pytest.approx(weights[m & (a > 0)].mean() - weights[m & (a < 0)].mean())
    assert found.skew > 0
    skew = sp.measure(run)["sign_skew"]["mean"]
    assert sp.whatif(run)["token-is"].surrogate.from_uncorrected.value == pytest.approx(-skew)


def test_the_bootstrap_is_that_of_the_formula():
    rng = np.random.default_rng(1)
    n = rng.integers(5, 30, 400).astype(float)
    sums = n[:, None] * (1 + 0.1 * rng.standard_normal((400, 3)))
    (found,) = surrogates(sums, np.repeat(n[:, None], 3, axis=1), np.repeat(n[:, None], 3, axis=1), [0.0])
    ratio = sums[:, 2].sum() / n.sum()
    delta = np.sqrt(np.sum((sums[:, 2] - ratio * n) ** 2)) / n.sum()  # the delta method for a ratio of sums
    assert (found.value, found.standard_error) == pytest.approx((ratio, delta), rel=0.06)
    assert found.variance == pytest.approx(found.standard_error**2)
    assert found.from_weighted.low < found.from_weighted.value < found.from_weighted.high


def test_one_prompt_has_no_interval():
    found = sp.whatif(run_of(group=["p"] * 24))
    s = found["tis"].surrogate
    assert found.prompts == 1
    assert math.isfinite(s.value)
    assert all(math.isnan(x) for x in (s.variance, s.from_weighted.low, s.error))
    assert json.loads(json.dumps(found.as_dict(), allow_nan=False))["outcomes"][2]["surrogate"]["variance"] is None


def test_the_responses_that_fall_first():
    run = run_of(40)
    found = sp.whatif(run, ["mult-error"])["mult-error"]
    mean_abs, error = [], []
    for i in range(len(run)):
        d = (run["trainer_logp"][i] - run["rollout_logp"][i])[run.mask[i]]
        mean_abs.append(np.abs(d).mean() if len(d) else 0.0)
        error.append(np.exp(np.abs(d)).mean() if len(d) else 1.0)
    falling = sorted((i for i in range(len(run)) if error[i] > 1.5), key=lambda i: -mean_abs[i])
    assert [x.sequence for x in found.first] == falling[:10]
    worst = found.first[0]
    assert (worst.lost, worst.tokens) == (1.0, int(run.mask[worst.sequence].sum()))
    assert (worst.group, worst.step) == (run["group"][worst.sequence], run["step"][worst.sequence])
    assert worst.advantage == pytest.approx(run["advantage"][worst.sequence][0])
    assert sp.whatif(run)["tis"].first == ()


# ------------------------------------------------------------------------------------------------------------- parts


@settings(max_examples=20)
@given(cuts=st.lists(st.integers(0, 24), max_size=4), seed=st.integers(0, 3))
def test_parts_give_what_the_whole_gives(cuts: list[int], seed: int):
    run = run_of(seed=seed)
    ends = sorted({0, 24, *cuts})
    parts = [run.select(np.arange(a, b)) for a, b in pairwise(ends)]
    rules = ["tis", "sequence-mis", "tis-veto", "off-policy-mask"]
    same(comparable(sp.whatif(iter(parts), rules)), comparable(sp.whatif(run, rules)))


def test_a_run_folder_is_read_part_by_part(tmp_path):
    run = run_of()
    for step in range(3):
        sp.write(run.select(run["step"] == step), tmp_path / "run")
    lengths = [len(part) for part in sp.stream(tmp_path / "run")]
    assert lengths == [8, 8, 8]
    same(comparable(sp.whatif(sp.stream(tmp_path / "run"))), comparable(sp.whatif(run)))


def test_a_part_without_advantages_has_none(tmp_path):
    run = run_of()
    sp.write(run.select(np.arange(12)), tmp_path / "run")
    sp.write(run.select(np.arange(12, 24)).without("advantage"), tmp_path / "run")
    found = sp.whatif(sp.stream(tmp_path / "run"))
    same(comparable(found), comparable(sp.whatif(sp.read(tmp_path / "run"))))
    assert found.prompts == 3
    assert [sorted(part.columns) for part in sp.stream(tmp_path / "run", columns=["reward", "step"])] == [
        ["mask", "step"]
    ] * 2


def test_a_batch_wide_step_takes_each_step_for_a_batch():
    run = run_of()
    whole = sp.whatif(run, ["m2po"])["m2po"]
    apart = sp.whatif((run.select(run["step"] == s) for s in range(3)), ["m2po"])["m2po"]
    same(whole.as_dict(), apart.as_dict())
    shuffled = run.select(np.random.default_rng(0).permutation(24))
    assert sp.whatif(shuffled, ["m2po"])["m2po"].dropped == whole.dropped > 0


def test_nothing_to_look_at():
    with pytest.raises(InputError, match="no run to look at"):
        sp.whatif([])
