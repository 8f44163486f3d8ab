"""The figures of a page as JSON, each under the name of the place it is drawn in."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from samepolicy.report.figures import sketch_histogram
from samepolicy.report.page.causes import ledger
from samepolicy.report.plots import curves, distributions, verdict
from samepolicy.report.sketch import Sketch
from samepolicy.report.view import View
from samepolicy.trend import trend
from samepolicy.whatif import WhatIf


def charts(view: View, whatif: WhatIf | None, value: Mapping[str, Any], floor: float | None) -> dict[str, Any]:
    """Every figure that the run allows.

    Args:
        view: what is shown.
        whatif: the corrections; None where the run lacks a side.
        value: the JSON value of the diagnosis.
        floor: floor of the pair, nats; None where it is not known.

    Returns:
        Figures as plotly's JSON, arrays in base64, without a template; "curves" by what they run over and show.
    """
    made: dict[str, Sketch] = {}
    if len(view.d):
        made["log_ratio"] = distributions.sketch_log_ratio(view)
        made["abs_log_ratio"] = distributions.sketch_abs_log_ratio(view, floor)
        made["density"] = distributions.sketch_density(view)
    if ledger(value) is not None:
        made["ledger"] = verdict.sketch_ledger(value)
    if len(view.d) and "step" in view.run and len(np.unique(view.run["step"])) > 1:
        made["trend"] = curves.sketch_trend(trend(view.run))
    if len(view.d) and whatif is not None:
        made["ratios"] = sketch_histogram(whatif)
    found: dict[str, Any] = {name: sketch.as_dict() for name, sketch in made.items()}
    lines = curves.sketches(view)
    return found | {"curves": {by: {of: s.as_dict() for of, s in some.items()} for by, some in lines.items()}}
