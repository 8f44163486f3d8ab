"""The figures of a page as JSON, each under the name of the place it is drawn in."""

from collections.abc import Mapping
from typing import Any

from samepolicy.report.bins import Bins
from samepolicy.report.figures import sketch_histogram
from samepolicy.report.page.causes import ledger
from samepolicy.report.plots import curves, distributions, layers, verdict
from samepolicy.report.sketch import Sketch
from samepolicy.trend import Trend
from samepolicy.whatif import WhatIf


def charts(
    bins: Bins, whatif: WhatIf | None, value: Mapping[str, Any], floor: float | None, trends: Mapping[str, Trend]
) -> dict[str, Any]:
    """Every figure that the run allows.

    Args:
        bins: the run in the bins of its figures.
        whatif: the corrections; None where the run lacks a side.
        value: the JSON value of the diagnosis.
        floor: floor of the pair, nats; None where it is not known.
        trends: what is watched over the steps; empty where there are none.

    Returns:
        Figures as plotly's JSON, arrays in base64, without a template; "curves" by what they run over and show.
    """
    made: dict[str, Sketch] = {}
    some = bins.ends.name == "d" and bins.ends.count > 0
    if some:
        made["log_ratio"] = distributions.sketch_log_ratio(bins)
        made["abs_log_ratio"] = distributions.sketch_abs_log_ratio(bins, floor)
        made["density"] = distributions.sketch_density(bins)
    if ledger(value) is not None:
        made["ledger"] = verdict.sketch_ledger(value)
    if value.get("layers"):
        made["layers"] = layers.sketch_layer_map(value["layers"])
    if some and trends:
        made["trend"] = curves.sketch_trend(trends)
    if some and whatif is not None:
        made["ratios"] = sketch_histogram(whatif)
    found: dict[str, Any] = {name: sketch.as_dict() for name, sketch in made.items()}
    lines = curves.sketches(bins.curves)
    return found | {"curves": {by: {of: s.as_dict() for of, s in drawn.items()} for by, drawn in lines.items()}}
