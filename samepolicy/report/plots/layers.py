"""Where in the network two engines part, as a picture."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from samepolicy.report.sketch import LOW, RISING, Sketch, f4


def layer_map(found: Any) -> Any:
    """The relative error of trainer against rollout at each tap, by position in the sequence.

    Args:
        found: a `LayerComparison`, or the JSON value of one.

    Returns:
        A plotly figure: one row a tap, from the embedding at the top to the logits, one column an eighth of the longest
        sequence, colour by the logarithm of the error in plain forwards; the first step beyond rounding is marked.
    """
    return sketch_layer_map(found.as_dict() if hasattr(found, "as_dict") else found).figure()


def sketch_layer_map(value: Mapping[str, Any]) -> Sketch:
    """See `layer_map`."""
    taps = [str(tap["tap"]) for tap in value["taps"]]
    errors = np.array([[_number(x) for x in tap["positions"]] for tap in value["taps"]], dtype=np.float64)
    edges, floors = bounds(value), [_number(tap["ratio"]) for tap in value["taps"]]
    places = [f"{low}–{max(low, high - 1)}" for low, high in pairwise(edges)]
    with np.errstate(divide="ignore", invalid="ignore"):
        size = np.log10(errors)
    size[~np.isfinite(size)] = np.nan
    made = Sketch(height=180 + 9 * len(taps))
    hover = "%{y}, %{customdata[0]}<br>relative error %{customdata[1]}<br>this step alone: %{customdata[2]} floors"
    told = [
        [[place, f"{error:.3g}", f"{floor:.3g}"] for place, error in zip(places, row, strict=True)]
        for row, floor in zip(errors.tolist(), floors, strict=True)
    ]
    made.add(
        "heatmap",
        x=list(range(len(places))),
        y=taps,
        z=f4(size),
        customdata=told,
        colorscale=RISING,
        showscale=False,
        hovertemplate=f"{hover}<extra></extra>",
    )
    if value["first"] in taps:
        at = taps.index(value["first"])
        line = {"color": LOW, "width": 2}
        made.layout["shapes"] = [
            {"type": "rect", "xref": "paper", "x0": 0, "x1": 1, "y0": at - 0.5, "y1": at + 0.5, "line": line}
        ]
    ticks = {"tickvals": list(range(len(places))), "ticktext": places}
    made.axis("x", "position in the sequence, prompt included", **ticks)
    return made.axis("y", autorange="reversed", type="category", tickfont={"size": 9})


def bounds(value: Mapping[str, Any]) -> list[int]:
    """Where each column begins, and the end of the last, in tokens from the start of the sequence.

    >>> bounds({"longest": 20, "taps": [{"positions": [0.0] * 4}]})
    [0, 5, 10, 15, 20]
    """
    count = len(value["taps"][0]["positions"]) if value["taps"] else 0
    edges: list[int] = np.ceil(np.linspace(0, value["longest"], count + 1)).astype(int).tolist()
    return edges


def _number(value: Any) -> float:
    """A number of a JSON value; NaN for null."""
    return float("nan") if value is None else float(value)
