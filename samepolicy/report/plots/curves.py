"""How the gap runs along a response, over probabilities, turns, versions and training steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import InputError
from samepolicy.records.run import Run
from samepolicy.report.sketch import HIGH, LOW, PLAIN, Sketch, f4
from samepolicy.report.view import View
from samepolicy.trend import Trend

WIDEST = 512
"""Positions that each have a point of their own; in longer responses neighbours share one."""

EDGES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""Bins of the rollout's probability."""

QUANTITIES: dict[str, tuple[str, Callable[[View], np.ndarray]]] = {
    "abs_d": ("mean abs d, nats", lambda v: np.where(v.measured, v.size, np.nan)),
    "d": ("mean d, nats", lambda v: v.value),
    "prob_diff": ("mean abs probability difference", lambda v: v.prob_diff),
    "k3": ("mean k3, nats", lambda v: np.expm1(v.value) - v.value),
}
"""What a curve can show: its axis, and the value of each token."""


@dataclass(frozen=True)
class Groups:
    """Tokens by group.

    Attributes:
        label: number of each token's group, int [tokens].
        names: what each group is called.
        at: where each group stands on the axis.
        title: what the axis is.
    """

    label: np.ndarray
    names: list[str]
    at: list[float]
    title: str


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
    view = View.of(run)
    groups = GROUPS[by](view)
    if groups is None or of not in allowed(view):
        raise InputError(f"This run has no {by} to draw {of} by; record the columns that it takes.")
    return sketch_curve(view, groups, of).figure()


def allowed(view: View) -> list[str]:
    """The quantities that can be drawn of a run."""
    return [of for of in QUANTITIES if view.name == "d" or (view.name == "prob_diff" and of == "prob_diff")]


def sketches(view: View) -> dict[str, dict[str, Sketch]]:
    """Every curve of a run, by what it runs over and what it shows, where there is more than one group."""
    if not view.measured.any():
        return {}
    found = {by: groups for by, make in GROUPS.items() if (groups := make(view)) is not None and len(groups.at) > 1}
    return {by: {of: sketch_curve(view, groups, of) for of in allowed(view)} for by, groups in found.items()}


def sketch_curve(view: View, groups: Groups, of: str) -> Sketch:
    """See `curve`."""
    title, read = QUANTITIES[of]
    values, label = read(view)[view.measured], groups.label[view.measured]
    count = np.bincount(label, minlength=len(groups.at))
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(label, weights=values, minlength=len(groups.at)) / count
    made, x = Sketch(), f4(groups.at)
    hover = {"customdata": groups.names, "hovertemplate": "%{customdata}<br>%{y} tokens<extra></extra>"}
    made.add(
        "bar", x=x, y=f4(count), yaxis="y2", marker={"color": PLAIN, "opacity": 0.22, "line": {"width": 0}}, **hover
    )
    hover = {"customdata": groups.names, "hovertemplate": "%{customdata}<br>%{y:.4g}<extra></extra>"}
    mode = "lines+markers" if len(x) <= 64 else "lines"
    made.add("scatter", x=x, y=f4(mean), mode=mode, line={"color": HIGH, "width": 2}, **hover)
    ticks = {"tickvals": x.tolist(), "ticktext": groups.names} if len(x) <= 24 else {}
    made.axis("x", groups.title, zeroline=False, **ticks)
    made.axis("y", title, rangemode="tozero", overlaying="y2", tickmode="auto")
    made.axis("y2", "tokens", side="right", showgrid=False, rangemode="tozero")
    made.layout["margin"]["r"] = 60
    return made


def _position(view: View) -> Groups:
    return _along(view.position, "position in the response, from 0")


def _end(view: View) -> Groups:
    return _along(view.run.lengths[view.row] - 1 - view.position, "tokens before the end")


def _along(place: np.ndarray, title: str) -> Groups:
    """Positions, neighbours together where there are many."""
    longest = int(place.max(initial=0)) + 1
    wide = max(1, -(-longest // WIDEST))
    starts = range(0, longest, wide)
    names = [str(s) if wide == 1 else f"{s}–{min(s + wide, longest) - 1}" for s in starts]
    return Groups(place // wide, names, [s + (wide - 1) / 2 for s in starts], title)


def _probability(view: View) -> Groups | None:
    if np.isnan(view.logp("rollout")).all():
        return None
    known = np.exp(np.nan_to_num(view.logp("rollout"), nan=-np.inf, neginf=-np.inf))
    label = np.clip(np.searchsorted(EDGES, known, side="right") - 1, 0, len(EDGES) - 2)
    used = np.unique(label[view.measured])
    names = [f"{EDGES[i]:g}–{EDGES[i + 1]:g}" for i in used]
    number = np.full(len(EDGES), -1)
    number[used] = np.arange(len(used))
    return Groups(number[label], names, list(map(float, range(len(used)))), "probability under the rollout")


def _labelled(column: str, title: str) -> Callable[[View], Groups | None]:
    """Groups that a column of whole numbers names."""

    def groups(view: View) -> Groups | None:
        held = view.run.columns.get(column)
        if held is None or (held.values if isinstance(held, Ragged) else held).dtype.kind not in "iu":
            return None
        found, label = np.unique(view.column(column).astype(np.int64), return_inverse=True)
        return Groups(label, [str(x) for x in found], [float(x) for x in found], title)

    return groups


GROUPS: dict[str, Callable[[View], Groups | None]] = {
    "position": _position,
    "end": _end,
    "probability": _probability,
    "turn": _labelled("turn", "turn"),
    "version": _labelled("policy_version", "policy version"),
    "step": _labelled("step", "training step"),
}
"""How tokens can be grouped along an axis."""


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
