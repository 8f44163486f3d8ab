"""The layers in the report: the figure, the token behind a cell, and a click in a real browser."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.layers.compare import BINS
from samepolicy.layers.result import LayerComparison, Reading
from samepolicy.report.page.layers import worst_tokens
from samepolicy.report.view import View
from tests.report.conftest import Open, written
from tests.report.runs import value_of

TAPS = ("embedding", "layers.0.q", "layers.0.attention", "layers.0.residual", "final_norm", "logits")


def comparison(longest: int, *, first: str = "layers.0.attention") -> LayerComparison:
    """Two engines that part at a tap, further the later the position."""

    def reading(tap: str) -> Reading:
        size = 0.1 if TAPS.index(tap) >= TAPS.index(first) else 0.001
        positions = (*(size * (1 + b) for b in range(BINS - 1)), float("nan"))
        steps = {"step": size, "trainer": 0.001, "rollout": size, "floor": 0.001, "ratio": size / 0.001}
        plain = {"relative": size, "cosine": 1.0, "max_abs": size, "outliers": 0.0, "positions": positions}
        return Reading(tap=tap, **plain, **steps, trainer_repeat=0.0, rollout_repeat=float("nan"))

    more: dict[str, Any] = {"gap": float("nan"), "ledger": None, "grafts": (), "growth": 0.0, "reason": ""}
    return LayerComparison(
        verdict="different",
        first=first,
        confidence=1.0,
        readings=tuple(map(reading, TAPS)),
        dtypes=("float32", "float32"),
        phase="prefill",
        tokens=100,
        longest=longest,
        **more,
    )


def test_the_figure_has_a_row_a_tap_and_marks_the_first(recwarn: Any):
    figure = sp.plots.layer_map(comparison(80))
    (cells,) = figure.data
    assert list(cells.y) == list(TAPS)
    assert np.asarray(cells.z).shape == (len(TAPS), BINS)
    np.testing.assert_allclose(np.asarray(cells.z)[2, :3], np.log10([0.1, 0.2, 0.3]), rtol=1e-6)
    assert np.isnan(np.asarray(cells.z)[:, -1]).all()
    assert (figure.layout.shapes[0].y0, figure.layout.shapes[0].y1) == (1.5, 2.5)
    assert figure.layout.xaxis.ticktext[0] == "0–9"
    assert not recwarn.list


def test_the_token_of_a_column_is_the_worst_there():
    run = sp.Run.from_lists(
        prompt_ids=[[1] * 10, [1] * 20],
        response_ids=[[2] * 30, [2] * 10],
        rollout_logp=[[-3.0] * 30, [-3.0] * 10],
        trainer_logp=[[-3.0] * 7 + [-2.0] + [-3.0] * 22, [-2.9] * 10],
    )
    found = worst_tokens(View.of(run), comparison(40).as_dict())
    assert len(found) == BINS  # five positions each
    assert found[:2] == [None, None]  # prompts
    assert found[3] == [0, 7]  # the tenth token and seven more
    assert found[4] == [1, 0]
    assert worst_tokens(View.of(run), None) == []


@pytest.mark.full
@pytest.mark.xdist_group("browser")
def test_a_click_on_a_cell_opens_its_token(visit: Open, tmp_path: Path):
    run = recorded()
    seen = comparison(int((run.lengths + run["prompt_ids"].lengths).max()))
    value = value_of(sp.diagnose(replace(run, info={**run.info}), layers=seen))
    tab = visit(written(tmp_path, value))
    assert "part at layers.0.attention" in tab.text("#layers p")
    tab.page.locator("#layers .chart").scroll_into_view_if_needed()
    tab.until("document.querySelector('#layers .chart .main-svg')")
    box = tab.page.locator("#layers .chart .nsewdrag").bounding_box()
    column = 4
    tab.page.mouse.click(box["x"] + (column + 0.5) * box["width"] / BINS, box["y"] + box["height"] / 2)
    row, position = value["layer_tokens"][column]
    tab.until(f"location.hash.includes('{row}') && location.hash.includes('{position}')")
    tab.quiet()


@pytest.mark.full
def test_a_report_without_layers_has_no_such_section(demo: Path):
    assert 'id="layers"' not in demo.read_text(encoding="utf-8")
