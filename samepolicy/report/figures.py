"""Figures of a what-if, as plotly figures for a notebook or one HTML page that asks nothing of a network."""

from collections.abc import Iterator, Sequence
from html import escape
from math import asinh, inf, log
from typing import Any

import numpy as np

from samepolicy.corrections import Correction
from samepolicy.report.sketch import Sketch, f4
from samepolicy.whatif import Outcome, WhatIf
from samepolicy.whatif.ratios import Ratios

TICKS = (1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.5, 0.8, 0.95, 1, 1.05, 1.25, 2, 3, 10, 100, 1e4, 1e6)
"""Ratios that are named on the axis."""
COLOURS = ("#2f6fb0", "#c8551b", "#8b5fbf", "#1d8a7a", "#b8860b", "#d0549c", "#555b66", "#6aa9d8")
CONFIG = {"displaylogo": False, "plotlyServerURL": "", "responsive": True}


def histogram(found: WhatIf) -> Any:
    """The ratios of the tokens and of the responses, with the bands of the rules that bound them.

    Args:
        found: the what-if.

    Returns:
        A plotly figure: tokens above, geometric means of the responses below. The axis is even in asinh(log ρ / 0.01),
        so that rounding near 1 and the far tails are both to be seen; counts are on a logarithmic axis.
    """
    return sketch_histogram(found).figure()


def sketch_histogram(found: WhatIf) -> Sketch:
    """See `histogram`."""
    made = Sketch(height=760)
    at = np.arcsinh(Ratios.edges() / Ratios.SCALE)
    panels = (
        ("", "ratio of each token, π_trainer / π_rollout", found.ratios.tokens, "token"),
        ("2", "geometric mean ratio of each response", found.ratios.sequences, "geometric"),
    )
    for axis, title, counts, over in panels:
        some = np.flatnonzero(counts)
        span = slice(some[0], some[-1] + 1) if len(some) else slice(0, 0)
        middle, width = ((at[:-1] + at[1:]) / 2)[span], float(at[1] - at[0])
        where = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
        made.add("bar", x=f4(middle), y=f4(counts[span]), width=width, marker={"color": "#7f7f7f"}, **where)
        bands = [*_bands(found.outcomes, over=over)]
        _add_bands(made, bands, axis)
        ends = [_place(b) for _, *bounds in bands for b in bounds if 0 < b < inf]
        reach = [*ends, *((float(at[span.start]), float(at[span.stop])) if len(some) else ())]
        made.axis(f"x{axis}", title, anchor=f"y{axis}", **_ticks(reach))
        made.axis(
            f"y{axis}", "count", type="log", tickformat="~s", anchor=f"x{axis}", domain=[0, 0.4] if axis else [0.6, 1]
        )
    made.layout["legend"] = {"title": {"text": "bounds of"}}
    return made


def ess_by_threshold(found: WhatIf) -> Any:
    """The effective share of the tokens, and the share that is left with weight, against the threshold.

    Args:
        found: a what-if with sweeps.

    Returns:
        A plotly figure: one line per sweep for each of the two; the raw ESS as a level line, and, for truncation, what
        ms-swift logs as `ess` cannot fall below, 4/(τ + 1/τ)².
    """
    import plotly.graph_objects as go

    figure = go.Figure()
    for (name, swept), colour in zip(found.sweeps.items(), COLOURS, strict=False):
        at = [o.threshold for o in swept]
        for label, dash, values in (
            ("ESS", "solid", [o.ess_token for o in swept]),
            ("kept", "dot", [o.kept for o in swept]),
        ):
            figure.add_scatter(x=at, y=_drawn(values), name=f"{name}: {label}", line={"color": colour, "dash": dash})
    if "tis" in found.sweeps:
        at = [o.threshold for o in found.sweeps["tis"]]
        least = [4 / (t + 1 / t) ** 2 for t in at if t]
        figure.add_scatter(x=at, y=least, name="ms-swift's ess is at least", line={"color": "#bbbbbb", "dash": "dash"})
    raw = found.summary["ess_token"]["ess"]
    if raw == raw:
        figure.add_hline(y=raw, line={"color": "black", "width": 1}, annotation_text="raw ESS")
    figure.update_xaxes(title="threshold τ", type="log")
    figure.update_yaxes(title="share of the tokens", range=[0, 1.05])
    return figure.update_layout(template="plotly_white", height=460, title="ESS against the threshold")


def page(found: WhatIf) -> str:
    """Both figures on one HTML page that holds everything it needs.

    Args:
        found: the what-if.

    Returns:
        The page; it asks nothing of a network.
    """
    shown = [histogram(found), *([ess_by_threshold(found)] if found.sweeps else [])]
    parts = [
        figure.to_html(full_html=False, include_plotlyjs=i == 0, include_mathjax=False, config=CONFIG, div_id=f"f{i}")
        for i, figure in enumerate(shown)
    ]
    head = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>samepolicy correct</title></head>'
    return f"{head}\n<body>\n<p>{escape(found.advice.sentence)}</p>\n{''.join(parts)}\n</body></html>\n"


def _bands(outcomes: Sequence[Outcome], *, over: str) -> Iterator[tuple[str, float, float]]:
    """Names and bounds of the rules that bound ratios of this kind; an open end is 0 or inf."""
    for outcome in outcomes:
        bounds = _bounds(outcome.correction, over)
        if bounds is not None and bounds != (0.0, inf):
            yield outcome.label, *bounds


def _bounds(correction: Correction, over: str) -> tuple[float, float] | None:
    """The bounds that a correction puts on the ratio of tokens, or on responses' geometric means."""
    for step in correction.steps:
        kind = getattr(step, "over", "")
        if getattr(step, "reduce", "mean") == "geometric":
            kind = "geometric"
        elif type(step).__name__ == "Veto":
            kind = "token"
        if kind == over and getattr(step, "measure", "ratio") == "ratio":
            below, above = getattr(step, "below", None), getattr(step, "above", None)
            return below or 0.0, above or inf
    return None


def _add_bands(made: Sketch, bands: Sequence[tuple[str, float, float]], axis: str) -> None:
    """Draw bounds as lines; rules with the same bounds share theirs."""
    shared: dict[tuple[float, float], list[str]] = {}
    for name, below, above in bands:
        shared.setdefault((below, above), []).append(name)
    for (bounds, names), colour in zip(shared.items(), COLOURS, strict=False):
        for end in (_place(b) for b in bounds if 0 < b < inf):
            made.upright(end, colour=colour, dash="dash", axis=f"x{axis}")
        line = {"color": colour, "dash": "dash", "width": 2}
        where = {"xaxis": f"x{axis}", "yaxis": f"y{axis}"}
        made.add("scatter", x=[None], y=[None], mode="lines", name=", ".join(names), line=line, **where)
        made.data[-1]["showlegend"] = True  # a line of the legend


def _place(ratio: float) -> float:
    """Where a ratio lies on the axis."""
    return asinh(log(ratio) / Ratios.SCALE)


def _ticks(reach: Sequence[float]) -> dict[str, Any]:
    """Ratios to name on an axis that reaches over these places, none too close to the one before it."""
    low, high = min(reach, default=-1.0), max(reach, default=1.0)
    shown: list[float] = []
    for ratio in sorted(TICKS, key=lambda r: (r != 1, abs(_place(r)))):
        if low <= _place(ratio) <= high and all(abs(_place(ratio) - _place(s)) > (high - low) / 14 for s in shown):
            shown.append(ratio)
    return {"tickvals": [_place(r) for r in shown], "ticktext": [f"{r:g}" for r in shown], "tickangle": 0}


def _drawn(values: Sequence[float]) -> list[float | None]:
    """Values with a gap where there is none."""
    return [v if v == v else None for v in values]
