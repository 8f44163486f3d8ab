"""How the gap runs along a response, over probabilities, turns, versions and training steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.report.groups import GROUPS, QUANTITIES, Curve, curves, points
from samepolicy.report.sketch import HIGH, LOW, PLAIN, Sketch, f4
from samepolicy.report.view import View
from samepolicy.trend import Trend


def curve(run: Run, by: str = "position", *, of: str = "abs_d") -> Any:
    """The mean of a quantity in each group of tokens, across the batch.

    Args:
        run: a run with both log-probs, or with `prob_diff`.
        by: position, end (distance from the end), probability (of the rollout), turn, version or step.
        of: abs_d, d, prob_diff or k3.

    Returns:
        A plotly figure: the mean as a line, and how many tokens stand behind each point as grey bars.

    Raises:
        InputError: an unknown `by` or `of`, or the run lacks what it needs.

    >>> made = curve(Run.from_lists(rollout_logp=[[-1.0, -2.0], [-1.0]], trainer_logp=[[-1.5, -2.0], [-1.0]]))
    >>> made.data[1].y.tolist()
    [0.25, 0.0]
    """
    if of not in QUANTITIES or by not in GROUPS:
        raise InputError(f"There is no curve of {of} by {by}; choose {', '.join(QUANTITIES)} by {', '.join(GROUPS)}.")
    found = curves(View.of(run)).get(by)
    if found is None or of not in found.of:
        raise InputError(f"This run has no {by} to draw {of} by; record the columns that it takes.")
    return sketch_curve(found, of).figure()


def sketches(found: Mapping[str, Curve]) -> dict[str, dict[str, Sketch]]:
    """Every curve with more than one point, by what it runs over and what it shows."""
    drawn = {by: one for by, one in found.items() if one.sums[:, 0].any() and len(points(one).at) > 1}
    return {by: {of: sketch_curve(one, of) for of in one.of} for by, one in drawn.items()}


def sketch_curve(found: Curve, of: str) -> Sketch:
    """See `curve`."""
    groups = points(found)
    title, known = QUANTITIES[of][0], groups.point >= 0
    point, sums = groups.point[known], found.sums[known]
    count, total = (
        np.bincount(point, weights=sums[:, i], minlength=len(groups.at)) for i in (0, 1 + found.of.index(of))
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = total / count
    made, x = Sketch(), f4(groups.at)
    hover = {"customdata": groups.names, "hovertemplate": "%{customdata}<br>%{y} tokens<extra></extra>"}
    made.add(
        "bar", x=x, y=f4(count), yaxis="y2", marker={"color": PLAIN, "opacity": 0.22, "line": {"width": 0}}, **hover
    )
    hover = {"customdata": groups.names, "hovertemplate": "%{customdata}<br>%{y:.4g}<extra></extra>"}
    mode = "lines+markers" if len(x) <= 64 else "lines"
    made.add("scatter", x=x, y=f4(mean), mode=mode, line={"color": HIGH, "width": 2}, **hover)
    named = len(x) <= 24 and groups.names != [f"{at:g}" for at in groups.at]
    ticks = {"tickvals": x.tolist(), "ticktext": groups.names} if named else {}
    made.axis("x", groups.title, zeroline=False, **ticks)
    made.axis("y", title, rangemode="tozero", overlaying="y2", tickmode="auto")
    made.axis("y2", "tokens", side="right", showgrid=False, rangemode="tozero")
    made.layout["margin"]["r"] = 60
    return made


def trend(run: Run) -> Any:
    """What is watched over the training steps of a run, with the step at which each changed its level.

    Args:
        run: a run with a `step` column.

    Returns:
        A plotly figure, one row for each watched quantity.

    Raises:
        MissingColumnError: the run has no steps.
    """
    from samepolicy.trend import trend as watched

    return sketch_trend(watched(run)).figure()


def sketch_trend(found: Mapping[str, Trend]) -> Sketch:
    """See `trend`."""
    made = Sketch(height=130 * len(found) + 80)
    for i, (name, one) in enumerate(found.items()):
        axis = str(i + 1) if i else ""
        top = 1 - i / len(found)
        line = {"mode": "lines+markers", "line": {"color": HIGH}, "xaxis": f"x{axis}", "yaxis": f"y{axis}"}
        made.add("scatter", x=list(one.steps), y=f4(one.values), name=name, **line)
        made.axis(f"y{axis}", name.replace("_", " "), domain=[top - 0.86 / len(found), top], anchor=f"x{axis}")
        last = i == len(found) - 1
        made.axis(f"x{axis}", "training step" if last else "", anchor=f"y{axis}", matches="x", showticklabels=last)
        if one.change:
            made.upright(one.change.step, colour=LOW, dash="dash", axis=f"x{axis}")
    made.layout["xaxis"].pop("matches", None)
    return made
