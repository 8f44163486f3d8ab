"""A plotly figure as pixels, drawn by matplotlib: plotly's own exporter needs a browser, which a trainer lacks."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from jaxtyping import UInt8

from samepolicy.errors import InputError, MissingDependencyError

DASHES = {"dash": "--", "dot": ":", "dashdot": "-.", "solid": "-"}
DPI = 100


def image(figure: Any, *, width: int = 900, height: int = 0) -> UInt8[np.ndarray, "height width 3"]:
    """Draw one of this package's figures, for TensorBoard, W&B, MLflow or a file.

    Args:
        figure: a plotly figure of bars, lines, points, heat maps and waterfalls.
        width: pixels.
        height: pixels; the figure's own by default.

    Returns:
        RGB, uint8 [height, width, 3]: `SummaryWriter.add_image(…, dataformats="HWC")`, `wandb.Image(…)`,
        `mlflow.log_image(…)`.

    Raises:
        MissingDependencyError: matplotlib is not installed.
        InputError: a kind of trace that is not drawn here.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "Drawing a figure without a browser needs matplotlib: pip install 'samepolicy[plots]'."
        ) from error
    size = (width / DPI, (height or figure.layout.height or 400) / DPI)
    made = Figure(figsize=size, dpi=DPI, layout="constrained")
    canvas: Any = FigureCanvasAgg(made)
    _draw(figure, made)
    canvas.draw()
    found: np.ndarray = np.asarray(canvas.buffer_rgba())[..., :3].copy()
    return found


def _draw(figure: Any, made: Any) -> None:
    """Every panel of the figure below one another, each with its traces, lines and labels."""
    panels = _panels(figure)
    axes = made.subplots(len(panels), 1, squeeze=False)[:, 0]
    for ax, (x, traces) in zip(axes, panels.items(), strict=True):
        twins = _twins(ax, figure, traces)
        for trace in traces:
            _trace(twins[trace.yaxis or "y"], trace)
        _axis(ax, figure.layout, "x", x)
        for name, twin in twins.items():
            _axis(twin, figure.layout, "y", name)
        _shapes(ax, figure.layout, x)
        if any(t.name and t.showlegend is not False for t in traces):
            ax.legend(fontsize=8, frameon=False)
    if figure.layout.title.text:
        made.suptitle(figure.layout.title.text, fontsize=11)


def _panels(figure: Any) -> Mapping[str, list[Any]]:
    """Traces by the x axis that they share."""
    panels: dict[str, list[Any]] = {}
    for trace in figure.data:
        panels.setdefault(trace.xaxis or "x", []).append(trace)
    return panels or {"x": []}


def _twins(ax: Any, figure: Any, traces: list[Any]) -> dict[str, Any]:
    """The axes of each y axis of a panel; the one with the line in front."""
    names = list(dict.fromkeys(t.yaxis or "y" for t in traces)) or ["y"]
    found = {name: ax if i == 0 else ax.twinx() for i, name in enumerate(names)}
    for name, one in found.items():
        if _layout(figure.layout, "y", name).side == "right":
            one.yaxis.tick_right()
            one.yaxis.set_label_position("right")
        elif len(found) > 1:
            one.yaxis.tick_left()
            one.yaxis.set_label_position("left")
    return found


def _trace(ax: Any, trace: Any) -> None:
    """One trace."""
    drawers = {"bar": _bar, "scatter": _scatter, "heatmap": _heat, "waterfall": _waterfall}
    if trace.type not in drawers:
        raise InputError(f"A {trace.type} cannot be drawn without a browser; use fig.write_image with kaleido.")
    drawers[trace.type](ax, trace)


def _bar(ax: Any, trace: Any) -> None:
    """Bars; where counts are on a logarithmic axis, empty ones are left out."""
    colour = trace.marker.color if trace.marker.color is not None else "#7d8590"
    x = np.asarray(trace.x, dtype=np.float64)
    width = trace.width if trace.width is not None else (np.diff(x).min() if len(x) > 1 else 1.0)
    ax.bar(x, trace.y, width=width, color=colour, alpha=trace.marker.opacity or 1.0, linewidth=0)


def _scatter(ax: Any, trace: Any) -> None:
    """Lines or points; a trace without values is a line of the legend."""
    x, y = ([np.nan if v is None else v for v in values] for values in (trace.x, trace.y))
    if trace.error_x.array is not None:
        spread = [list(trace.error_x.arrayminus), list(trace.error_x.array)]
        ax.errorbar(x, y, xerr=spread, color=trace.marker.color, fmt="o", linewidth=3, markersize=9)
        return
    colour = trace.line.color or trace.marker.color
    drawn = "steps-post" if trace.line.shape == "hv" else "default"
    marker = "o" if "markers" in (trace.mode or "") else None
    look = {"linestyle": DASHES.get(trace.line.dash, "-"), "linewidth": 1.6, "markersize": 3, "marker": marker}
    ax.plot(x, y, color=colour, drawstyle=drawn, label=trace.name, **look)


def _heat(ax: Any, trace: Any) -> None:
    """Cells in the colours of the trace's scale."""
    from matplotlib.colors import LinearSegmentedColormap

    z = np.asarray(trace.z, dtype=np.float64)
    x, y = (
        np.arange(n) if given is None else np.asarray(given)
        for n, given in zip(z.shape[::-1], (trace.x, trace.y), strict=True)
    )
    colours = LinearSegmentedColormap.from_list("scale", [(at, c) for at, c in trace.colorscale])
    ax.pcolormesh(x, y, np.ma.masked_invalid(z), cmap=colours, vmin=trace.zmin, vmax=trace.zmax, shading="nearest")


def _waterfall(ax: Any, trace: Any) -> None:
    """Steps from what is there to what is left."""
    level = 0.0
    for i, (_name, value, kind) in enumerate(zip(trace.x, trace.y, trace.measure, strict=True)):
        start = level if kind == "relative" else 0.0
        level = start + value if kind == "relative" else (value if kind == "absolute" else level)
        colour = trace.decreasing.marker.color if kind == "relative" else trace.totals.marker.color
        ax.bar(i, level - start, bottom=start, color=colour, width=0.6)
        ax.annotate(f"{abs(value):.3g}", (i, max(start, level)), ha="center", va="bottom", fontsize=8)
    ax.set_xticks(range(len(trace.x)), list(trace.x))


def _layout(layout: Any, kind: str, name: str) -> Any:
    """The axis that a trace calls "x2" or "y"."""
    return layout[f"{kind}axis{name[1:]}"]


def _axis(ax: Any, layout: Any, kind: str, name: str) -> None:
    """Title, scale, range and ticks of one axis."""
    axis = _layout(layout, kind, name)
    own = ax.xaxis if kind == "x" else ax.yaxis
    if axis.title.text:
        own.set_label_text(axis.title.text, fontsize=9)
    if axis.type == "log":
        (ax.set_xscale if kind == "x" else ax.set_yscale)("log")
    limits = ax.set_xlim if kind == "x" else ax.set_ylim
    if axis.range:
        limits(*(10**v if axis.type == "log" else v for v in axis.range))
    elif axis.rangemode == "tozero" and axis.type != "log":
        limits(0)
    if axis.tickvals is not None:
        low, high = sorted(ax.get_xlim() if kind == "x" else ax.get_ylim())
        shown = [(v, t) for v, t in zip(axis.tickvals, axis.ticktext, strict=True) if low <= v <= high]
        own.set_ticks([v for v, _ in shown], [t for _, t in shown], fontsize=8)
        limits(low, high)
    if axis.autorange == "reversed":
        (ax.invert_xaxis if kind == "x" else ax.invert_yaxis)()
    if axis.visible is False:
        own.set_visible(False)
    ax.tick_params(labelsize=8)


def _shapes(ax: Any, layout: Any, x: str) -> None:
    """Lines and bands across a panel."""
    for shape in _of(layout.shapes, x):
        if shape.type == "rect":
            ax.axvspan(shape.x0, shape.x1, color="#2f6fb0", alpha=0.12, linewidth=0)
        elif shape.x0 == shape.x1:
            ax.axvline(shape.x0, color=shape.line.color, linestyle=DASHES.get(shape.line.dash, "-"), linewidth=1)
        else:
            ax.axhline(shape.y0, color=shape.line.color, linestyle=DASHES.get(shape.line.dash, "-"), linewidth=1)
    for note in _of(layout.annotations, x):
        at = 10**note.x if _layout(layout, "x", x).type == "log" else note.x
        across = ax.get_xaxis_transform()
        ax.text(at, min(note.y, 1.0), note.text, transform=across, fontsize=8, ha="center", va="bottom")


def _of(parts: Any, x: str) -> Iterator[Any]:
    """The shapes or labels of one panel; those on the paper are titles, which the panel's axis has already."""
    for part in parts:
        if (part.xref or "x").split(" ")[0] == x:
            yield part
