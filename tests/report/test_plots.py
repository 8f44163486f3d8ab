"""The figures as functions: what they draw, against NumPy, and the same as pixels."""

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.errors import InputError
from samepolicy.report import plots
from samepolicy.report.groups import QUANTITIES, curves
from samepolicy.report.packed import unpacked
from samepolicy.report.plots.curves import sketches
from samepolicy.report.view import View
from tests.report.runs import faulty
from tests.whatif_runs import run_of


@pytest.fixture(scope="module")
def run() -> sp.Run:
    return run_of(40, spread=0.5)


def difference(run: sp.Run) -> np.ndarray:
    return (run["trainer_logp"].values - run["rollout_logp"].values)[run.mask.values]


def test_every_token_is_in_the_histogram_on_its_side(run: sp.Run):
    below, around, above = plots.log_ratio(run).data
    d = difference(run)
    assert sum(sum(bars.y) for bars in (below, around, above)) == len(d)
    width = 0.01 * np.sinh(below.width / 2)
    assert sum(above.y) == np.count_nonzero(d > width)
    assert sum(below.y) == np.count_nonzero(d < -width)


def test_quantiles_are_those_of_numpy(run: sp.Run):
    line, points = plots.abs_log_ratio(run, floor=0.01).data
    size = np.abs(difference(run))
    assert list(points.x) == pytest.approx(np.quantile(size, [0.5, 0.9, 0.99]), rel=1e-6)
    for x, y in list(zip(line.x, line.y, strict=True))[::40]:
        assert y == pytest.approx(np.count_nonzero(size >= x * (1 - 1e-6)) / len(size), abs=1.5 / len(size))


def test_the_density_counts_every_token(run: sp.Run):
    cells = np.asarray(plots.density(run).data[0].z)
    assert np.nansum(10**cells) == pytest.approx(run.tokens, rel=1e-5)


@pytest.mark.parametrize("of", QUANTITIES)
def test_a_curve_by_position_is_a_plain_loop(run: sp.Run, of: str):
    bars, line = plots.curve(run, "position", of=of).data
    for place in range(len(line.y)):
        values = []
        for t, r, m in zip(run["trainer_logp"], run["rollout_logp"], run.mask, strict=True):
            if place < len(t) and m[place]:
                d = t[place] - r[place]
                values.append({"abs_d": abs(d), "d": d, "prob_diff": abs(np.exp(t[place]) - np.exp(r[place])),
                               "k3": np.exp(d) - 1 - d}[of])  # fmt: skip
        mean = np.mean(values) if values else np.nan
        assert line.y[place] == pytest.approx(mean, rel=1e-4, abs=1e-9, nan_ok=True)
        assert bars.y[place] == len(values)


@pytest.mark.parametrize("by", ["end", "probability", "step"])
def test_every_grouping_holds_every_token(run: sp.Run, by: str):
    bars, line = plots.curve(run, by).data
    assert sum(bars.y) == run.tokens
    assert np.average(line.y, weights=bars.y) == pytest.approx(np.abs(difference(run)).mean(), rel=1e-5)


def test_long_responses_share_points():
    long = sp.Run.from_lists(rollout_logp=[[-1.0] * 1500], trainer_logp=[[-1.5] * 1500])
    bars, line = plots.curve(long).data
    assert len(line.y) == 500
    assert sum(bars.y) == 1500


def test_what_cannot_be_drawn_is_refused(run: sp.Run):
    for call in ({"by": "turn"}, {"by": "colour"}, {"of": "speed"}):
        with pytest.raises(InputError):
            plots.curve(run, **call)
    assert set(sketches(curves(View.of(run)))) == {"position", "end", "probability", "step"}


def test_the_trend_marks_where_a_series_changed():
    rng = np.random.default_rng(0)
    steps = 16
    rollout = [-rng.exponential(1.0, 200) for _ in range(steps)]
    trainer = [np.minimum(r + rng.normal(0, 0.05 if i < 8 else 0.9, 200), 0) for i, r in enumerate(rollout)]
    drifting = sp.Run.from_lists(rollout_logp=rollout, trainer_logp=trainer, step=list(range(steps)))
    made = plots.trend(drifting)
    assert 8 in {shape.x0 for shape in made.layout.shapes}
    assert [list(t.x) for t in made.data] == [list(range(steps))] * len(made.data)


def test_a_sketch_as_json_is_the_figure(run: sp.Run):
    for some in sketches(curves(View.of(run))).values():
        for sketch in some.values():
            for plain, drawn in zip(sketch.as_dict()["data"], sketch.figure().data, strict=True):
                assert np.array_equal(unpacked(plain["y"]), drawn.y, equal_nan=True)


@pytest.mark.full
def test_every_figure_is_drawn_without_a_browser(run: sp.Run):
    found, whatif = faulty(shift=1), sp.whatif(run, sweeps=["tis"])
    named = {**found.as_dict(), "ledger": [{"cause": "shift", "nats": 1.2}], "residual": 0.1}
    figures = [
        plots.log_ratio(run),
        plots.abs_log_ratio(run, floor=0.02),
        plots.density(run),
        plots.curve(run),
        plots.heat_map(run),
        plots.gap(found),
        plots.ledger(named),
        plots.ratios(whatif),
        plots.ess_by_threshold(whatif),
        plots.trend(run),
    ]
    for figure in figures:
        pixels = plots.image(figure, width=400, height=300)
        assert (pixels.shape, pixels.dtype) == ((300, 400, 3), np.uint8)
        assert pixels.std() > 5


@pytest.mark.full
def test_an_image_shows_the_data(run: sp.Run):
    """A heat map of one colour on the left and another on the right comes out so."""
    rollout, trainer = [[-5.0] * 8] * 4, [[-8.0] * 4 + [-2.0] * 4] * 4
    pixels = plots.image(plots.heat_map(sp.Run.from_lists(rollout_logp=rollout, trainer_logp=trainer)), width=400)
    middle = pixels[pixels.shape[0] // 2].astype(int)
    left, right = middle[120], middle[300]
    assert left[0] > left[2]
    assert right[2] > right[0]


def test_plots_of_the_recorded_run_are_public():
    assert sp.report is not None
    assert plots.gap(sp.diagnose(recorded())).data[0].x[0] == pytest.approx(0.733, abs=0.001)
