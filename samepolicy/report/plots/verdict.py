"""The verdict in pictures: the gap beside its limit, the ledger, and the first cells of the batch."""

from collections.abc import Mapping
from math import isfinite, log10
from typing import Any

import numpy as np

from samepolicy.diagnose import Diagnosis
from samepolicy.records.run import Run
from samepolicy.report.page.causes import ledger as of_value
from samepolicy.report.page.heat import first_cells
from samepolicy.report.sketch import DIVERGING, HIGH, LOW, PLAIN, Sketch, f4
from samepolicy.report.view import View


def gap(found: Diagnosis) -> Any:
    """The gap in multiples of the floor², with its interval and the limit up to which it is rounding.

    Args:
        found: the diagnosis.

    Returns:
        A plotly figure; empty where the gap is not known.
    """
    made = Sketch(height=150)
    if found.gap is None or not isfinite(found.gap.ratio):
        return made.figure()
    low, high = (x if isfinite(x) else found.gap.ratio for x in (found.gap.low, found.gap.high))
    band = {"type": "rect", "x0": 0.001, "x1": found.gap.limit, "yref": "paper", "y0": 0, "y1": 1}
    made.layout["shapes"] = [{**band, "fillcolor": "rgba(47,111,176,0.12)", "line": {"width": 0}}]
    made.add(
        "scatter",
        x=[found.gap.ratio],
        y=[0],
        mode="markers",
        error_x={
            "type": "data",
            "array": [high - found.gap.ratio],
            "arrayminus": [found.gap.ratio - low],
            "thickness": 3,
        },
        marker={"size": 14, "color": {"below": HIGH, "above": LOW, "unclear": PLAIN}[found.gap.place]},
        hovertemplate="G/floor² %{x:.3g}<extra></extra>",
    )
    ends = [log10(min(0.1, low)), log10(max(10.0, high * 1.5))]
    made.axis("x", "gap in multiples of the floor² (shaded: rounding)", type="log", range=ends)
    return made.axis("y", visible=False, range=[-1, 1]).figure()


def ledger(found: Diagnosis | Mapping[str, Any]) -> Any:
    """What each named cause takes off the gap, and what is left, as a waterfall in nats per token.

    Args:
        found: the diagnosis, or the JSON value of one.

    Returns:
        A plotly figure; empty where there is no ledger. Sizes of several causes do not add up, since errors add in
        squares; the step "overlap" makes up for that and is drawn as its own.
    """
    return sketch_ledger(found.as_dict() if isinstance(found, Diagnosis) else found).figure()


def sketch_ledger(value: Mapping[str, Any]) -> Sketch:
    """See `ledger`."""
    read, made = of_value(value), Sketch(height=300)
    if read is None:
        return made
    steps = [("gap", read["total"], "absolute")]
    steps += [(str(r["cause"]).replace("_", " "), -r["nats"], "relative") for r in read["rows"]]
    if read["overlap"] is not None and abs(read["overlap"]) > 1e-3 * read["total"]:
        steps.append(("overlap", read["overlap"], "relative"))
    if read["residual"] is not None:
        steps.append(("residual", read["residual"], "total"))
    names, sizes, kinds = zip(*steps, strict=True)
    made.add(
        "waterfall",
        x=list(names),
        y=f4(sizes),
        measure=list(kinds),
        text=[f"{abs(s):.3g}" for s in sizes],
        textposition="outside",
        connector={"line": {"color": PLAIN, "width": 1}},
        decreasing={"marker": {"color": LOW}},
        increasing={"marker": {"color": HIGH}},
        totals={"marker": {"color": PLAIN}},
        hovertemplate="%{x}: %{y:.4g} nats<extra></extra>",
    )
    return made.axis("y", "nats per token", range=[-0.08 * read["total"], 1.15 * max(sizes)])


def heat_map(run: Run, *, samples: int = 32, positions: int = 64) -> Any:
    """The first samples and positions of a batch, one cell a token.

    Args:
        run: a run with both log-probs, or with `prob_diff`.
        samples: how many responses.
        positions: how many of their tokens.

    Returns:
        A plotly figure, orange where the trainer finds the token less likely, blue where more; the colour is even in
        asinh(d / 0.01).
    """
    cells = first_cells(View.of(run), samples, positions)
    top = float(np.arcsinh(np.nan_to_num(np.abs(cells)).max(initial=0.01) / 0.01))
    made = Sketch(height=140 + 14 * len(cells))
    hover = "sample %{y}, position %{x}<br>%{customdata:.4g}<extra></extra>"
    look: dict[str, Any] = {
        "colorscale": DIVERGING,
        "zmin": -top,
        "zmax": top,
        "showscale": False,
        "xgap": 1,
        "ygap": 1,
    }
    made.add("heatmap", z=f4(np.arcsinh(cells / 0.01)), customdata=f4(cells), hovertemplate=hover, **look)
    made.axis("x", "position")
    return made.axis("y", "sample", autorange="reversed").figure()
