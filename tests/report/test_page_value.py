"""The value that a page draws: every number in it against a plain loop, the corrections, or the what-if."""

import json
import math

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.corrections import PRESETS
from samepolicy.demo import recorded
from samepolicy.report import html
from samepolicy.report.bins import Bins
from samepolicy.report.packed import packed, unpacked
from samepolicy.report.page import heat, rows, rules, sides, tokens
from samepolicy.report.page.causes import causes, ledger
from samepolicy.report.view import View
from tests.report.runs import faulty, large, value_of
from tests.whatif_runs import run_of


@pytest.fixture(scope="module")
def view() -> View:
    return View.of(run_of(40, spread=0.5))


@pytest.mark.parametrize("dtype", ["f8", "f4", "i1", "u1", "u2", "i4", "u4"])
def test_an_array_survives_packing(dtype: str):
    for values in ([1, 2, 3], [7, 7, 7], [5], [], [[1, 2], [3, 4]]):
        assert unpacked(json.loads(json.dumps(packed(values, dtype)))).tolist() == values
    assert np.isnan(unpacked(packed([math.nan, math.nan]))).all()
    assert unpacked(packed([math.inf, math.inf])).tolist() == [math.inf, math.inf]
    assert unpacked(packed([1e300, -1.0])).tolist() == [math.inf, -1.0]
    assert unpacked(packed([1_700_000_000_001], "f8")).tolist() == [1_700_000_000_001]


def test_numbers_of_a_response_without_a_value_and_beyond_float64():
    enormous = sp.Run.from_lists(
        rollout_logp=[[-1.0, -2.0], [math.nan], [-1e30]], trainer_logp=[[-1.0, -2.0], [-1.0], [-1.0]], step=[2**40] * 3
    )
    columns = {name: unpacked(column) for name, column in rows.rows(View.of(enormous))["columns"].items()}
    assert columns["ess"][0] == 1
    assert np.isnan(columns["ess"][1:]).all()
    assert np.isnan(columns["k3"][1])
    assert columns["k3"][2] == math.inf
    assert columns["step"].tolist() == [2**40] * 3


def test_rows_are_those_of_a_plain_loop(view: View):
    found = rows.rows(view)
    columns = {name: unpacked(column) for name, column in found["columns"].items()}
    for i in range(len(view.run)):
        mask = view.run.mask[i]
        d = (view.run["trainer_logp"][i] - view.run["rollout_logp"][i])[mask]
        ratio = np.exp(d)
        expected = {
            "tokens": len(d),
            "mean_abs": np.abs(d).mean(),
            "max_abs": np.abs(d).max(),
            "worst": np.flatnonzero(mask)[np.abs(d).argmax()],
            "mean_d": d.mean(),
            "sum_d": d.sum(),
            "k3": (ratio - 1 - d).mean(),
            "ess": ratio.sum() ** 2 / (len(d) * (ratio**2).sum()),
            "advantage": view.run["advantage"][i][mask].mean(),
            "step": view.run["step"][i],
        }
        for name, number in expected.items():
            assert columns[name][i] == pytest.approx(number, rel=1e-5), name
    group = found["labels"]["group"]
    assert [group["values"][c] for c in unpacked(group["code"]).astype(int)] == view.run["group"].tolist()


def test_the_picture_of_the_batch(view: View):
    found = heat.heat(view)
    first, whole = unpacked(found["first"]), unpacked(found["whole"])
    marks, top = found["marks"], math.asinh(found["largest"] / found["scale"])
    for i in range(len(view.run)):
        d = view.run["trainer_logp"][i] - view.run["rollout_logp"][i]
        for j in range(whole.shape[1]):
            if j >= len(d):
                assert whole[i, j] == marks["nothing"]
            elif not view.run.mask[i][j]:
                assert whole[i, j] == marks["masked"]
            else:
                back = found["scale"] * math.sinh(int(whole[i, j]) / found["steps"] * top)
                assert back == pytest.approx(d[j], rel=0.04, abs=0.003)
                if i < 32:
                    assert first[i, j] == pytest.approx(d[j], rel=1e-5)


def test_a_cell_of_many_tokens_shows_the_largest(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(heat, "WIDEST", 4)
    monkeypatch.setattr(heat, "MOST", 8)
    rollout = [[-1.0] * 8 for _ in range(4)]
    trainer = [[-1.0] * 8 for _ in range(4)]
    trainer[3][5] = -3.0
    found = heat.heat(View.of(sp.Run.from_lists(rollout_logp=rollout, trainer_logp=trainer)))
    assert (found["tall"], found["wide"]) == (2, 2)
    assert unpacked(found["whole"]).tolist() == [[0, 0, 0, 0], [0, 0, -126, 0]]


def test_values_that_are_not_finite_are_marked():
    run = sp.Run.from_lists(rollout_logp=[[-1.0, -1.0, 0.5]], trainer_logp=[[math.nan, -1.5, -1.0]])
    found = heat.heat(View.of(run))
    assert unpacked(found["whole"]).tolist() == [[127, -126, 127]]


def test_all_tokens_are_kept_where_they_fit_and_the_worst_where_not(view: View):
    assert tokens.kept_tokens(view, 10_000).all()
    keep = tokens.kept_tokens(view, 120)
    assert 60 <= keep.sum() <= 250
    worst = view.mean(np.where(view.measured, view.size, np.nan)).argmax()
    assert keep[view.run.offsets[worst] : view.run.offsets[worst + 1]].all()
    assert keep[view.worst(1)].all()


def test_kept_tokens_carry_their_own_numbers(view: View):
    keep = tokens.kept_tokens(view, 120)
    found = tokens.tokens(view, keep, None)
    stretches = {name: unpacked(column).astype(int).tolist() for name, column in found["stretches"].items()}
    ends = [*stretches["first"][1:], found["kept"]]
    value, advantage = (unpacked(found["columns"][name]) for name in ("value", "advantage"))
    seen = 0
    for row, start, first, end in zip(stretches["row"], stretches["start"], stretches["first"], ends, strict=True):
        for k in range(end - first):
            mask = view.run.mask[row][start + k]
            d = view.run["trainer_logp"][row][start + k] - view.run["rollout_logp"][row][start + k]
            assert value[first + k] == pytest.approx(d, rel=1e-5) if mask else math.isnan(value[first + k])
            assert advantage[first + k] == pytest.approx(view.run["advantage"][row][start + k], rel=1e-6)
            seen += 1
    assert seen == keep.sum() == found["kept"]


def test_outliers_are_the_largest_values(view: View):
    found = tokens.outliers(view)
    d = view.run["trainer_logp"].values - view.run["rollout_logp"].values
    expected = np.sort(np.abs(d[view.run.mask.values]))[::-1][: tokens.OUTLIERS]
    assert np.abs(unpacked(found["value"])) == pytest.approx(expected, rel=1e-6)
    row, place = (unpacked(found[n]).astype(int) for n in ("row", "position"))
    assert abs(d[view.run.offsets[row[0]] + place[0]]) == pytest.approx(expected[0])


def test_a_token_says_what_each_correction_does_to_it(view: View):
    whatif = sp.whatif(view.run)
    keep = tokens.kept_tokens(view, 120)
    found = rules.of_tokens(view, keep, whatif)
    drops, clips = (unpacked(found[n]).astype(np.uint32) for n in ("drops", "clips"))
    run = view.run
    offsets = {"offsets": run.offsets}
    for bit, name in enumerate(found["names"]):
        correction = PRESETS[name].correction
        given = {n: run[c].values for n, c in (("trainer", "trainer_logp"), ("rollout", "rollout_logp"))}
        if name == "m2po":  # looks at each training step as a batch
            continue
        more = {"advantage": run["advantage"].values} if "advantage" in correction.needs else {}
        weights, kept, _ = correction(**given, mask=run.mask.values, **more, **offsets)
        lost = (run.mask.values & ~(kept & (weights > 0)))[keep]
        assert ((drops >> np.uint32(bit)) & 1).astype(bool).tolist() == lost.tolist(), name
    tis = found["names"].index("tis")
    ratio = np.exp(run["trainer_logp"].values - run["rollout_logp"].values)[keep]
    over = (ratio > 2.0) & run.mask.values[keep]
    assert ((clips >> np.uint32(tis)) & 1).astype(bool).tolist() == over.tolist()
    assert over.any()


def test_sums_over_bins_are_those_of_the_tokens(view: View):
    found = {name: unpacked(column) for name, column in rules.sums(Bins.of(view)).items()}
    ratio = np.exp(view.d)
    assert found["count"].sum() == len(ratio)
    assert found["w"].sum() == pytest.approx(ratio.sum(), rel=1e-5)
    assert found["w2"].sum() == pytest.approx((ratio**2).sum(), rel=1e-5)
    assert len(found["edges"]) == len(found["count"]) + 1


def test_both_declarations_stand_side_by_side():
    a = sp.Side(engine="vllm", dtype="bfloat16", sampling=sp.Sampling(temperature=0.7), extra={"x": {"y": 1}})
    b = sp.Side(engine="hf", dtype="float32", sampling=sp.Sampling(), weights="abc")
    found = {row["name"]: row for row in sides.sides(sp.Run(rollout=a, trainer=b))}
    assert found["dtype"] == {"name": "dtype", "rollout": "bfloat16", "trainer": "float32", "state": "differs"}
    assert found["sampling.temperature"]["state"] == "differs"
    assert found["engine"]["state"] == "free"
    assert found["sampling.top_p"]["state"] == "same"
    assert (found["weights"]["state"], found["extra.x.y"]["rollout"]) == ("alone", "1")


def test_findings_are_read_in_either_form():
    flat = {"cause": "shift", "explained": 0.9, "interval": [0.8, 1.0]}
    nested = {"cause": "shift", "explained": {"value": 0.9, "low": 0.8, "high": 1.0}}
    assert causes({"findings": [flat]}) == causes({"findings": [nested]})
    assert causes({"findings": [{"cause": "dtype", "explained": None, "interval": None}]})[0]["share"] is None
    assert ledger({"ledger": None}) is ledger({"ledger": [], "residual": None}) is None
    held = {"total": 1.0, "rows": [{"cause": "a", "nats": 0.7}, {"cause": "b", "nats": 0.6}]}
    found = ledger({"ledger": held, "residual": {"mean_abs": 0.1}})
    assert (found["total"], found["residual"]) == (1.0, 0.1)
    assert found["total"] - 0.7 - 0.6 + found["overlap"] == pytest.approx(found["residual"])


def test_the_value_is_json_and_of_one_shape():
    for found in (sp.diagnose(recorded()), faulty(shift=1)):
        value = value_of(found)
        assert json.loads(json.dumps(value, allow_nan=False)) == value
        assert value["report"]["schema"] == value["schema"] == 1
        assert value["rows"]["count"] == len(found.run)
        assert {k: value[k] for k in found.as_dict()} == found.as_dict()


@pytest.mark.parametrize(
    "run",
    [
        sp.Run.from_lists(rollout_logp=[[-1.0, -2.0], []]),
        sp.Run.from_lists(rollout_logp=[[-1.0]], trainer_logp=[[-1.0]], mask=[[0]]),
        sp.Run.from_lists(rollout_logp=[[math.nan, -math.inf]], trainer_logp=[[-1.0, 0.5]]),
        sp.Run.from_lists(prob_diff=[[0.1, 0.2], [0.3, 0.0]], mask=[[1, 1], [0, 1]]),
        sp.Run.from_lists(text=["only text"]),
        sp.Run.from_lists(response_ids=[[5, 6, 7]], rollout_logp=[[-1.0, -2.0, -3.0]],
                          trainer_response_ids=[[5, 7]], trainer_logp=[[-1.0, -3.5]]),
    ],
    ids=["one side", "all masked", "nothing finite", "prob_diff", "text", "other ids"],
)  # fmt: skip
def test_a_run_that_lacks_almost_everything_has_a_page(run: sp.Run):
    value = value_of(sp.diagnose(run))
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert "It cannot be told" in html.render(value) or value["verdict"] == "different"


def test_a_large_batch_stays_below_twelve_megabytes_and_says_what_it_leaves_out():
    value = value_of(sp.diagnose(large()))
    assert value["tokens"]["of"] == 256 * 4096
    assert 40_000 < value["tokens"]["kept"] <= tokens.BUDGET + 100
    assert len(html.render(value).encode()) < 12e6
    assert unpacked(value["heat"]["whole"]).shape == (256, 4096)
