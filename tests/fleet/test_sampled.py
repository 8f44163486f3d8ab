"""A run that is streamed: what is counted is that of the run in memory, a draw is fair, and little is ever held."""

import gc
import json
import weakref
from functools import reduce
from itertools import pairwise
from operator import add
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import samepolicy as sp
from samepolicy.errors import InputError
from samepolicy.fleet import in_turn, plan_of, processes, sample, sampled
from samepolicy.fleet.chosen import Chosen, Draw, chance
from samepolicy.fleet.kept import pack, unpack
from samepolicy.records import arrow
from samepolicy.records.picked import pick
from samepolicy.records.source import Source, open_source
from samepolicy.records.where import Where
from samepolicy.report import data, whole
from samepolicy.report.bins import Bins, Ends
from samepolicy.report.packed import unpacked
from samepolicy.report.view import View
from samepolicy.whatif import prompts
from samepolicy.whatif.gathered import Gather
from samepolicy.whatif.prompts import Prompts
from tests.fleet.folders import part


def full(step: int, *, rows: int = 6) -> sp.Run:
    """A step with advantages, prompts, ids and turns."""
    run, rng = part(step, rows=rows, tokens=200), np.random.default_rng(step)
    return run.with_columns(
        response_ids=[rng.integers(0, 99, n) for n in run.lengths],
        advantage=[rng.normal(size=n) for n in run.lengths],
        turn=[np.arange(n) // 50 for n in run.lengths],
        group=[f"{step}-{i // 2}" for i in range(rows)],
        reward=rng.normal(size=rows),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Six steps, and one part of two steps whose row groups are apart."""
    for step in range(6):
        sp.write(full(step), tmp_path / "run", step=step)
    sp.write(sp.Run.concat([full(6), full(7)]), tmp_path / "run")
    return tmp_path / "run"


def agree(found: object, expected: object, rel: float = 1e-6, at: str = "") -> None:
    """Two JSON values must be the same but for rounding."""
    if isinstance(expected, dict):
        assert isinstance(found, dict), at
        assert found.keys() == expected.keys(), at
        for key in expected:
            agree(found[key], expected[key], rel, f"{at}.{key}")
    elif isinstance(expected, list):
        assert isinstance(found, list), at
        assert len(found) == len(expected), at
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            agree(a, b, rel, f"{at}[{i}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=rel, abs=1e-9, nan_ok=True), at
    else:
        assert found == expected, at


# ---------------------------------------------------------------------------------------------------- what is counted


@pytest.mark.parametrize("way", [in_turn, processes(2)])
def test_corrections_of_shards_are_those_of_the_run(folder: Path, way):
    found = plan_of(folder, also=(Gather(sweeps=("tis",)),)).run(way)
    whatif = found.also[0].result(found.summary).as_dict()
    agree(whatif, sp.whatif(sp.stream(folder), sweeps=["tis"]).as_dict())


def test_corrections_have_the_same_bits_for_any_number_of_workers(folder: Path):
    plan = plan_of(folder, also=(Gather(),))
    one, two = (plan.run(way) for way in (in_turn, processes(2)))
    values = [json.dumps(found.also[0].result(found.summary).as_dict()) for found in (one, two)]
    assert values[0] == values[1]


def test_gathered_parts_add_up_in_any_order(folder: Path):
    runs = [sp.read(folder, steps=[s]) for s in range(4)]
    parts = [Gather()(run, 6 * i) for i, run in enumerate(runs)]
    summary = sp.measure(sp.Run.concat(runs))
    orders = (reduce(add, parts), parts[0] + (parts[1] + (parts[2] + parts[3])), reduce(add, parts[::-1]))
    first, *others = (found.result(summary).as_dict() for found in orders)
    for other in others:
        agree(other, first)


def test_a_rule_that_one_part_cannot_try_is_untried(folder: Path):
    run = sp.read(folder, steps=[0])
    both = Gather()(run, 0) + Gather()(run.without("advantage"), 6)
    lacking = Gather()(run.without("advantage"), 0)
    assert both.untried == lacking.untried
    assert {*both.tallies} == {*lacking.tallies}
    assert both.prompts is not None
    assert both.prompts.sums.shape[2] == 2 + len(both.tallies)


def test_many_prompts_become_groups_with_the_same_sums(monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(0)
    parts = [
        Prompts(np.array([f"{p}" for p in range(i, i + 40)]), rng.normal(size=(40, 3, 2))) for i in range(0, 160, 20)
    ]
    apart = reduce(add, parts)
    monkeypatch.setattr(prompts, "MOST", 64)
    groups = [reduce(add, parts), reduce(add, parts[::-1]), parts[0] + reduce(add, parts[1:])]
    assert len(apart.sums) == 180
    for found in groups:
        assert found.labels is None
        assert len(found.sums) == 64
        assert np.allclose(found.sums, groups[0].sums)
        assert np.allclose(found.sums.sum(0), apart.sums.sum(0))


def test_an_interrupted_correction_goes_on_to_the_same_bits(folder: Path, tmp_path: Path):
    plan, kept = plan_of(folder, also=(Gather(), Draw(5, 999), *whole.asked(frozenset()))), tmp_path / "kept"
    straight = plan.run(in_turn)

    def half(task, numbered):
        yield from in_turn(task, numbered[:3])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        plan.run(half, resume=kept)
    with pytest.raises(InputError, match="another measurement"):
        plan_of(folder, also=(Gather(("tis",)),)).run(in_turn, resume=kept)
    begun: list[int] = []
    found = plan.run(lambda task, numbered: begun.append(len(numbered)) or in_turn(task, numbered), resume=kept)
    assert begun == [4]
    assert not kept.exists()
    values = [one.also[0].result(one.summary).as_dict() for one in (found, straight)]
    assert json.dumps(values[0]) == json.dumps(values[1])
    assert pack(found.also) == pack(straight.also)


@pytest.mark.parametrize(
    "value", [{"class": "os:system", "fields": {}}, {"class": "samepolicy.stats:np", "fields": {}}]
)
def test_a_kept_file_makes_nothing_of_elsewhere(value: dict):
    with pytest.raises(ValueError, match="no dataclass"):
        unpack(value)


# ----------------------------------------------------------------------------------------------------- what is drawn


def test_a_draw_is_the_same_however_the_run_is_cut():
    lengths = np.random.default_rng(0).integers(0, 50, 1000)
    run = sp.Run.from_lists(rollout_logp=[np.zeros(n) for n in lengths])
    draw = Draw(most=100, room=1500)
    at = [0, 1, 300, 301, 999, 1000]
    cut = [draw(run.select(np.arange(a, b)), a) for a, b in pairwise(at)]
    order = np.argsort(chance(np.arange(1000)))
    fits = order[: np.searchsorted(np.cumsum(lengths[order]), 1500, side="right")][:100]
    for found in (
        draw(run, 0),
        reduce(add, cut),
        reduce(add, cut[::-1]),
        cut[0] + (cut[1] + (cut[2] + cut[3])) + cut[4],
    ):
        assert found.number.tolist() == fits.tolist()
        assert found.looked == 1000


def test_chance_is_even_and_seeds_are_apart():
    a, b = chance(np.arange(100_000)), chance(np.arange(100_000), seed=1)
    assert stats.kstest(a, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.02
    assert abs(np.corrcoef(a[1:], a[:-1])[0, 1]) < 0.02


def test_the_first_is_drawn_even_where_there_is_no_room():
    found = Chosen.of(np.array([2.0, 1.0]), np.array([9, 9]), first=0, most=5, room=3)
    assert found.number.tolist() == [1]


def test_picked_responses_are_those_of_the_run(folder: Path):
    whole_run = sp.read(folder)
    for numbers in ([47, 0, 13], [5], list(range(48))):
        assert pick(open_source(folder), np.array(numbers)) == whole_run.select(sorted(numbers))
    chosen = Where.of(steps=None, samples=[1, 3], finish_reasons=None)
    assert pick(open_source(folder, where=chosen), np.array([3])) == sp.read(folder, samples=[1, 3]).select([3])


def test_a_sample_has_the_metrics_of_all(folder: Path):
    found = sample(plan_of(folder), in_turn, most=7)
    assert (len(found.run), found.drawn.responses, found.drawn.of) == (7, 7, 48)
    assert str(found.drawn) == "sampled 7 of 48 responses; metrics are of all"
    assert found.whole.summary.counts == sp.measure(sp.read(folder)).counts
    assert found.run.columns.keys() == sp.read(folder).columns.keys()
    expected = sp.read(folder).select(np.sort(found.numbers))
    assert np.array_equal(found.run["response_ids"].values, expected["response_ids"].values)
    assert found.run.info["drawn"] == {"responses": 7, "of": 48, "seed": 0, "metrics": "all"}
    diagnosis = data.of_all(sp.diagnose(found.run), found)
    assert diagnosis.summary.counts.tokens == sp.read(folder).tokens > found.run.tokens


def test_a_value_that_is_no_log_prob_is_not_missed(folder: Path):
    bad = full(9)
    bad["trainer_logp"].values[4] = np.nan
    sp.write(bad, folder, step=9)
    found = sample(plan_of(folder), in_turn, most=3)
    assert not np.isnan(found.run["trainer_logp"].values).any()
    diagnosis = data.of_all(sp.diagnose(found.run), found)
    assert diagnosis.verdict == "different"
    assert "1 values of the trainer are NaN" in diagnosis.sentence


def test_a_dump_is_not_drawn_from(tmp_path: Path):
    (tmp_path / "x.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match="import"):
        sample(plan_of(tmp_path / "x.csv"), in_turn)


# ---------------------------------------------------------------------------------------------------- what is shown


def test_bins_of_parts_are_those_of_the_run(folder: Path):
    run = sp.read(folder)
    ends = reduce(add, (Ends.of(View.of(run.select([i]))) for i in range(len(run))))
    assert ends == Ends.of(View.of(run))
    parts = [Bins.of(View.of(sp.read(folder, steps=[s])), ends) for s in range(8)]
    found, expected = reduce(add, parts), Bins.of(View.of(run))
    assert np.array_equal(found.spread, expected.spread)
    assert np.array_equal(found.density, expected.density)
    assert np.allclose(found.steps, expected.steps, rtol=1e-12)
    levels = np.array([0.0, 0.02, 0.5, 0.9, 0.99, 1.0])
    assert found.sizes.quantile(levels) == pytest.approx(expected.sizes.quantile(levels), rel=6e-4)
    assert found.curves.keys() == expected.curves.keys() == {"position", "end", "probability", "turn", "step"}
    for by, curve in expected.curves.items():
        assert np.array_equal(found.curves[by].key, curve.key)
        assert np.allclose(found.curves[by].sums, curve.sums, rtol=1e-12, atol=1e-12)


def test_quantiles_are_those_of_numpy():
    size = np.random.default_rng(0).exponential(size=1001)
    levels = np.array([0.0, 0.1, 0.5, 0.999, 1.0])
    assert View.of(sp.Run.from_lists(rollout_logp=[-size], trainer_logp=[-2 * size])).size.size == 1001
    from samepolicy.report.bins import Sizes

    assert Sizes.of(size).quantile(levels) == pytest.approx(np.quantile(size, levels), rel=1e-12)
    assert Sizes.binned(size).quantile(levels) == pytest.approx(np.quantile(size, levels), rel=6e-4)


def test_a_page_of_a_streamed_run_counts_all_and_shows_the_worst(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(whole, "WORST", 4)
    monkeypatch.setattr(whole, "MOST", 3)
    plan = plan_of(folder, by="step", also=whole.asked(open_source(folder).columns))
    drawn = sample(plan, in_turn, most=10)
    found = whole.whole(plan, in_turn, drawn)
    page = data.of_report(data.of_all(sp.diagnose(drawn.run), drawn), whole=found, drawn=drawn)
    run = sp.read(folder)
    plain = data.of_report(sp.diagnose(run))
    assert json.dumps(page, allow_nan=False)
    assert (page["run"]["responses"], page["run"]["shown"]) == (48, len(found.numbers))
    assert page["counts"] == plain["counts"]
    agree(page["metrics"], plain["metrics"])
    assert page["figures"].keys() == plain["figures"].keys()
    for name, figure in plain["figures"].items():
        if name != "ratios":
            agree(_arrays(page["figures"][name]), _arrays(figure), 2e-3 if name == "abs_log_ratio" else 1e-6, name)
    assert page["sample"] == {"responses": 10, "of": 48, "seed": 0, "metrics": "all"}
    sizes = np.array([np.abs(t - r)[m].mean() if m.any() else 0 for t, r, m in zip(
        run["trainer_logp"], run["rollout_logp"], run.mask, strict=True)])  # fmt: skip
    numbers = unpacked(page["rows"]["columns"]["number"]).astype(int).tolist()
    assert {*np.argsort(-sizes)[:4].tolist()} <= {*numbers}
    worst = unpacked(page["outliers"]["row"]).astype(int)[0]
    view = View.of(run)
    assert numbers[worst] == view.row[view.worst(1)[0]]


def _arrays(figure: object) -> object:
    """A figure with its arrays as lists."""
    if isinstance(figure, dict):
        if "bdata" in figure or "constant" in figure:
            return unpacked(figure).tolist()
        return {k: _arrays(v) for k, v in figure.items() if k != "layout"}
    return [_arrays(v) for v in figure] if isinstance(figure, list) else figure


# ------------------------------------------------------------------------------------------------------ what is held


def _many(folder: Path, steps: int) -> Path:
    for step in range(steps):
        sp.write(full(step), folder, step=step)
    return folder


@pytest.mark.parametrize("steps", [3, 20])
def test_two_parts_at_most_are_held_however_many_there_are(steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The part that is looked at, and the next one while it is read."""
    folder, read, alive, most = _many(tmp_path / "run", steps), Source.filled, [], []

    def filled(source: Source, run: sp.Run) -> sp.Run:
        found = read(source, run)
        alive.append(weakref.ref(found["rollout_logp"].values))
        gc.collect()
        most.append(sum(one() is not None for one in alive))
        return found

    monkeypatch.setattr(Source, "filled", filled)
    plan = plan_of(folder, by="step", also=whole.asked(open_source(folder).columns))
    drawn = sample(plan, in_turn, most=4)
    assert len(drawn.run) == 4
    assert max(most[:steps]) <= 2
    most.clear()
    alive.clear()
    plan.asking(whole.Count(Ends("d", 1, 1.0, 1.0)), measured=False).run(in_turn)
    assert max(most) <= 2


def test_what_a_shard_comes_to_does_not_grow_with_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import pickle

    monkeypatch.setattr(prompts, "MOST", 8)
    monkeypatch.setattr(whole, "WORST", 8)
    sizes = []
    for steps in (8, 32):
        folder = _many(tmp_path / str(steps), steps)
        also = (*whole.asked(frozenset({"trainer_logp", "rollout_logp"})), Draw(8, 1 << 20))
        sizes.append(len(pickle.dumps(plan_of(folder, also=also).run(in_turn))))
    assert sizes[1] <= sizes[0] * 1.02


def test_picking_holds_one_row_group_beside_what_it_picks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arrow, "GROUP_TOKENS", 200)
    sp.write(sp.Run.concat([full(s) for s in range(8)]), tmp_path / "run")
    source = open_source(tmp_path / "run")
    (piece,) = source.pieces
    runs = [len(run) for run in source.batches(piece, tokens=arrow.GROUP_TOKENS)]
    assert len(runs) > 8
    assert pick(source, np.array([0, 20, 47])) == sp.read(tmp_path / "run").select([0, 20, 47])


def test_large_is_by_what_the_longest_column_holds(folder: Path):
    assert open_source(folder).values == int(sp.read(folder).lengths.sum()) < sampled.ROOM
