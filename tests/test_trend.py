"""Trends over steps: values against plain loops, known changes found, no change where there is none."""

import numpy as np
import pytest
from scipy import stats

import samepolicy as sp
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.jumps import clear_jump, stand_out
from samepolicy.trend import WATCHED, _ranks, _statistic, change_point

RNG = np.random.default_rng(7)


def run_of(steps: int, gap, *, advantage: bool = True, tokens: int = 400) -> sp.Run:
    """One response a step, whose log-ratios have the spread that `gap(step)` says."""
    rng = np.random.default_rng(3)
    rollout = [-rng.exponential(1.0, tokens) - 3 for _ in range(steps)]
    trainer = [r + gap(s) * rng.standard_normal(tokens) for s, r in enumerate(rollout)]
    more = {"advantage": [rng.standard_normal(tokens) for _ in range(steps)]} if advantage else {}
    return sp.Run.from_lists(rollout_logp=rollout, trainer_logp=trainer, step=list(range(steps)), **more)


def test_values_are_those_of_a_loop():
    run = run_of(5, lambda s: 0.1 + 0.2 * s)
    found = sp.trend(run)
    assert list(found) == list(WATCHED)
    for step in range(5):
        ratio = np.exp(run["trainer_logp"][step] - run["rollout_logp"][step])
        expected = {
            "sign_skew": np.mean(-(ratio - 1) * run["advantage"][step]),
            "tail_share": np.mean(np.maximum(ratio, 1 / ratio) > 2),
            "ess": ratio.sum() ** 2 / (len(ratio) * (ratio**2).sum()),
            "masked_share": np.mean(ratio > 2),
        }
        assert {n: t.values[step] for n, t in found.items()} == pytest.approx(expected, rel=1e-9)
    assert all(t.steps == (0, 1, 2, 3, 4) and t.change is None for t in found.values())


def test_a_change_is_found_at_its_step():
    found = sp.trend(run_of(24, lambda s: 0.05 if s < 15 else 0.5))
    for name in ("tail_share", "ess", "masked_share"):
        assert found[name].change.step == 15
        assert found[name].change.p <= 0.01
        assert f"before step 15, {found[name].change.after:.4g} from it on" in str(found[name])
    assert found["ess"].change.after < found["ess"].change.before
    values = np.array(found["ess"].values)
    assert (found["ess"].change.before, found["ess"].change.after) == (np.median(values[:15]), np.median(values[15:]))


@pytest.mark.parametrize("steps", [6, 7, 8, 9, 10])
def test_a_clear_change_is_found_in_few_steps(steps: int):
    found = sp.trend(run_of(steps, lambda s: 0.05 if s < steps // 2 else 0.5))
    for name in ("tail_share", "ess", "masked_share"):
        assert found[name].change.step == steps // 2
        assert found[name].change.p <= 0.01


@pytest.mark.parametrize("tail", [2.0, 100.0])
def test_few_healthy_steps_show_no_change(tail: float):
    rng, alarms = np.random.default_rng(1), 0
    for _ in range(40):
        shape = int(rng.integers(6, 12)), int(rng.integers(100, 1000))
        d = 0.2 * rng.standard_t(tail, shape)
        run = sp.Run.from_lists(rollout_logp=np.full(shape, -30.0), trainer_logp=d - 30, step=range(shape[0]))
        alarms += sum(t.change is not None for t in sp.trend(run).values())
    assert alarms <= 3  # of 120 series


def test_few_hits_are_no_change():
    """Two ratios beyond 2 in the last steps of six, none before: chance alone makes that."""
    run = run_of(6, lambda s: 0.0)
    far = run["trainer_logp"].values.copy()
    far[[4 * 400, 5 * 400]] += 1
    found = sp.trend(run.with_columns(trainer_logp=run["trainer_logp"].with_values(far)))
    assert found["tail_share"].values[-1] > 0
    assert all(t.change is None for t in found.values())


def test_parts_summaries_and_the_whole_run_give_the_same(tmp_path):
    run = run_of(12, lambda s: 0.1 if s < 6 else 0.6)
    for step in range(12):
        sp.write(run.select([step]), tmp_path / "run", step=step)
    whole = sp.trend(run)
    assert {n: t.as_dict() for n, t in sp.trend(sp.stream(tmp_path / "run")).items()} == {
        n: t.as_dict() for n, t in whole.items()
    }
    assert sp.trend(sp.measure_by(run, "step")) == whole


def test_a_step_without_a_value_is_left_out():
    run = run_of(10, lambda s: 0.1)
    masked = [np.ones(400) if s != 4 else np.zeros(400) for s in range(10)]
    found = sp.trend(run.with_columns(mask=masked))
    assert 4 not in found["ess"].steps
    assert "sign_skew" not in sp.trend(run_of(3, lambda s: 0.1, advantage=False))


def test_what_it_refuses():
    with pytest.raises(MissingColumnError, match="needs the column step"):
        sp.trend(run_of(3, lambda s: 0.1).without("step"))
    with pytest.raises(InputError, match="between 0 and 1"):
        sp.trend(run_of(3, lambda s: 0.1), false_alarms=0.0)


# ------------------------------------------------------------------------------------------------------ the statistic


@pytest.mark.parametrize("values", [RNG.standard_normal(15), RNG.integers(0, 3, 15).astype(float)])
def test_ranks_are_scipys(values: np.ndarray):
    assert _ranks(values) == pytest.approx(stats.rankdata(values) - (len(values) + 1) / 2)


def test_the_statistic_is_the_rank_sum_of_wilcoxon():
    values = RNG.standard_normal(20)
    ranks, n = stats.rankdata(values), 20
    for place, z in zip(range(2, 19), _statistic(_ranks(values)[None])[0], strict=True):
        rank_sum = ranks[:place].sum()
        expected = abs(rank_sum - place * (n + 1) / 2) * np.sqrt(n / (place * (n - place)))
        assert z == pytest.approx(expected)


@pytest.mark.parametrize("place", [4, 10, 17])
def test_a_known_change_is_placed(place: int):
    values = 0.1 * RNG.standard_normal(24) + (np.arange(24) >= place)
    found, p = change_point(values)
    assert found == place
    assert p <= 0.01
    assert change_point(-values)[0] == place
    assert change_point(np.exp(values)) == (found, p)  # ranks do not see a rising function


def test_a_spike_is_no_change():
    values = 0.1 * RNG.standard_normal(40)
    values[20] = 1e6
    assert change_point(values)[1] > 0.05


@pytest.mark.parametrize("values", [np.zeros(30), np.arange(7.0), np.zeros(0)])
def test_equal_and_few_values_show_nothing(values: np.ndarray):
    assert change_point(values) == (0, 1.0)


@pytest.mark.parametrize("steps", [12, 20, 60])
def test_false_alarms_are_as_rare_as_asked_for(steps: int):
    rng = np.random.default_rng(0)
    alarms = sum(change_point(rng.standard_normal(steps))[1] <= 0.05 for _ in range(200))
    assert stats.binomtest(alarms, 200, 0.05, alternative="greater").pvalue > 0.01


def test_neighbours_that_go_together_raise_few_alarms():
    rng, alarms = np.random.default_rng(0), 0
    for _ in range(100):
        noise = rng.standard_normal(110)
        values = np.zeros(110)
        for i in range(1, 110):
            values[i] = 0.5 * values[i - 1] + noise[i]
        alarms += change_point(values[50:])[1] <= 0.01
    assert alarms <= 6  # 2 % over many series of 60; without the allowance for neighbours about 30 %


@pytest.mark.parametrize("place", [2, 3, 4])
def test_a_clear_jump_is_students_t(place: int):
    values = 0.1 * RNG.standard_normal(7) + (np.arange(7) >= place)
    expected = 4 * stats.ttest_ind(values[:place], values[place:]).pvalue
    assert clear_jump(values, np.zeros(7)) == (place, pytest.approx(expected))
    assert clear_jump(values, np.full(7, 2.0))[1] > 0.05  # the scatter of each value alone would make it
    assert clear_jump(values[:5], np.zeros(5)) == clear_jump(np.ones(7), np.zeros(7)) == (0, 1.0)


def test_levels_that_are_wide_are_no_clear_jump():
    assert clear_jump(np.array([0.0, 0.9, 0.1, 1.5, 2.4, 1.6]), np.zeros(6)) == (0, 1.0)


def test_what_stands_out_is_students_t():
    values = np.array([0.1, -0.2, 4.0, 0.3, 0.0, -0.1])
    rest, e = np.delete(values, 2), 0.5
    t = (4 - rest.mean()) / np.sqrt(rest.var(ddof=1) * 1.2 + e**2)
    few, p = stand_out(values, np.where(values == 4, e, 0.0), by=1.0)
    assert few.tolist() == [2]
    assert p == pytest.approx([6 * stats.t.sf(t, 4)])
    for none in (values[:5], -values, np.array([4.0, 0, 4, 0, 0, 0])):
        assert len(stand_out(none, np.zeros(len(none)), by=1.0)[0]) == 0
