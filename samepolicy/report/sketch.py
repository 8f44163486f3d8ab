"""How figures look: colours that a colour-blind reader tells apart, one layout, and the form a figure is drawn in."""

from typing import Any, Self

import numpy as np

from samepolicy.report.packed import packed

LOW, HIGH, PLAIN, MARK = "#c8551b", "#2f6fb0", "#7d8590", "#8b5fbf"
"""The trainer finds it less likely; more likely; no side; a mark."""

DIVERGING = [[0.0, "#8c2d04"], [0.25, "#e08214"], [0.5, "#f7f7f7"], [0.75, "#4393c3"], [1.0, "#053061"]]
RISING = [[0.0, "#f4f6f9"], [0.15, "#cfdcea"], [0.4, "#7fa8cf"], [0.7, "#2f6fb0"], [1.0, "#0b2c54"]]
QUANTILES = (0.5, 0.9, 0.99, 0.999)

SCALE = 0.01
TICKS = (-30, -10, -3, -1, -0.3, -0.1, -0.03, -0.01, 0, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30)
"""Log-ratios that are named on an axis that is even in asinh(d / 0.01)."""


class Sketch:
    """A figure as plain data: quick to make, ready for a page as JSON, and for a notebook as a plotly figure.

    Attributes:
        data: traces in plotly's form, with arrays as NumPy.
        layout: the layout in plotly's form.
    """

    def __init__(self, *, height: int = 360) -> None:
        self.data: list[dict[str, Any]] = []
        self.layout: dict[str, Any] = {"height": height, "bargap": 0, "margin": {"l": 60, "r": 20, "t": 20, "b": 48}}

    def add(self, kind: str, **trace: Any) -> Self:
        """Add a trace of plotly's kind."""
        self.data.append({"type": kind, "showlegend": False, **trace})
        return self

    def axis(self, name: str, title: str = "", **settings: Any) -> Self:
        """Describe an axis: x, y, x2, …."""
        given = {"title": {"text": title}} if title else {}
        key = f"{name[0]}axis{name[1:]}"
        self.layout[key] = {**self.layout.get(key, {}), **given, **settings}
        return self

    def upright(self, x: float, *, colour: str, dash: str = "solid", axis: str = "x") -> Self:
        """Add a line across the whole height of a panel."""
        line = {"color": colour, "width": 1.5, "dash": dash}
        across = {"yref": f"y{axis[1:]} domain", "y0": 0, "y1": 1}
        self.layout.setdefault("shapes", []).append(
            {"type": "line", "xref": axis, "x0": x, "x1": x, **across, "line": line}
        )
        return self

    def note(self, text: str, *, x: float, y: float, colour: str = PLAIN, **more: Any) -> Self:
        """Write a few words at x (the logarithm, where the axis is logarithmic) and at a share y of the height."""
        look = {"showarrow": False, "font": {"size": 11, "color": colour}, "xref": "x", "yref": "y domain"}
        self.layout.setdefault("annotations", []).append({"text": text, "x": x, "y": y, **look, **more})
        return self

    def figure(self) -> Any:
        """The plotly figure."""
        import plotly.graph_objects as go

        return go.Figure(data=self.data, layout={"template": "plotly_white", **self.layout})

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON, arrays in base64, without a template: a page has colours of its own."""
        plain: dict[str, Any] = _plain({"data": self.data, "layout": self.layout})
        return plain


def _plain(value: Any) -> Any:
    """JSON of nested traces; arrays of numbers in the form that plotly unpacks."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray):
        return packed(value, constants=False) if value.dtype.kind == "f" else value.tolist()
    return value.item() if isinstance(value, np.generic) else value


def f4(values: Any) -> np.ndarray:
    """Values as float32, which a figure stores in half the room."""
    found: np.ndarray = np.asarray(values, dtype=np.float32)
    return found


def place(values: Any) -> np.ndarray:
    """Where log-ratios lie on an axis that is even in asinh(d / 0.01)."""
    return np.asarray(np.arcsinh(np.asarray(values) / SCALE))


def signed_ticks(end: float) -> dict[str, Any]:
    """Ticks for `place` from -end to end: log-ratios, no two closer than a twelfth of the axis."""
    shown: list[float] = [0.0]
    for tick in (t for t in TICKS if t > 0 and place(t) <= end):
        if place(tick) - place(shown[-1]) >= end / 7:
            shown.append(tick)
    ticks = [*(-t for t in shown[:0:-1]), *shown]
    return {"tickvals": place(ticks).tolist(), "ticktext": [f"{t:g}".replace("-", "−") for t in ticks]}
