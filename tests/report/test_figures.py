"""Figures of a what-if: what they draw, and that the page needs no network."""

import math
import re

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.report.figures import ess_by_threshold, histogram, page
from samepolicy.whatif import preset
from samepolicy.whatif.ratios import Ratios
from tests.whatif_runs import run_of


def test_ratios_are_counted_in_their_bins():
    run = run_of()
    counted = sp.whatif(run).ratios
    d = (run["trainer_logp"].values - run["rollout_logp"].values)[run.mask.values]
    assert counted.tokens.tolist() == np.histogram(d, Ratios.edges())[0].tolist()
    assert counted.sequences.sum() == sum(m.any() for m in run.mask)


def test_the_histogram_draws_bands_where_the_rules_have_them():
    figure = histogram(sp.whatif(run_of(), ["tis", "icepop", "geometric-mis", preset("mis", 4.0)]))
    assert sum(sum(bar.y) for bar in figure.data if bar.type == "bar" and bar.xaxis == "x") == run_of().tokens
    lines = sorted(round(math.exp(0.01 * math.sinh(s.x0)), 3) for s in figure.layout.shapes)
    assert lines == [0.5, 2.0, 2.0, 4.0, 5.0]
    assert {t.name for t in figure.data if t.name} == {"tis", "icepop", "geometric-mis", "mis 4"}


def test_ess_is_drawn_against_the_threshold():
    found = sp.whatif(run_of(), ["none"], sweeps=["tis"])
    lines = {line.name: line for line in ess_by_threshold(found).data}
    assert list(lines["tis: ESS"].y) == [o.ess_token for o in found.sweeps["tis"]]
    assert list(lines["tis: ESS"].x) == [1.125, 1.25, 1.5, 2.0, 3.0, 5.0, 9.0]
    assert lines["ms-swift's ess is at least"].y[3] == pytest.approx(0.64)


def test_the_page_asks_nothing_of_a_network():
    text = page(sp.whatif(run_of(), sweeps=["tis"]))
    outside = re.sub(r"<script.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(src|href)=|<link|<img|@import", outside)
    assert re.findall(r"<script[^>]*\bsrc=", text) == []
    assert text.count("plotly-graph-div") == 2
    assert "https://plot.ly" not in text.rpartition("Plotly.newPlot")[2]
