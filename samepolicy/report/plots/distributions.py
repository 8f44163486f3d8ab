"""How the log-ratios of a run are spread."""

from typing import Any

import numpy as np

from samepolicy.records.run import Run
from samepolicy.report.bins import CELLS, SMALLEST, Bins
from samepolicy.report.sketch import HIGH, LOW, PLAIN, QUANTILES, RISING, Sketch, f4, signed_ticks
from samepolicy.report.view import View


def log_ratio(run: Run) -> Any:
    """The log-ratio d of every token, as a histogram.

    The axis is even in asinh(d / 0.01), so that rounding near 0 and the far tails are both to be seen; counts are on a
    logarithmic axis. Tokens that the trainer finds less likely are orange, more likely ones blue.

    Args:
        run: a run with both log-probs.

    Returns:
        A plotly figure.

    >>> made = log_ratio(Run.from_lists(rollout_logp=[[-1.0, -2.0]], trainer_logp=[[-1.5, -2.0]]))
    >>> int(sum(sum(bars.y) for bars in made.data))
    2
    """
    return sketch_log_ratio(Bins.of(View.of(run))).figure()


def sketch_log_ratio(bins: Bins) -> Sketch:
    """See `log_ratio`."""
    counts, edges, end = bins.spread, bins.ends.spread, float(bins.ends.spread[-1])
    middle, width = (edges[1:] + edges[:-1]) / 2, float(edges[1] - edges[0])
    made = Sketch()
    for colour, side in ((LOW, middle < -width / 2), (PLAIN, np.abs(middle) <= width / 2), (HIGH, middle > width / 2)):
        made.add(
            "bar",
            x=f4(middle[side] if len(counts) else middle),
            y=f4(counts[side]),
            width=width,
            marker={"color": colour, "opacity": 0.82, "line": {"width": 0}},
            customdata=f4(0.01 * np.sinh(middle[side])),
            hovertemplate="d ≈ %{customdata:.3g}<br>%{y} tokens<extra></extra>",
        )
    made.axis("x", "d = log π_trainer − log π_rollout, nats", zeroline=False, **signed_ticks(end))
    return made.axis("y", "tokens", type="log", dtick=1)


def abs_log_ratio(run: Run, *, floor: float | None = None) -> Any:
    """The size of d on a logarithmic axis, as the share of tokens beyond each size, with quantiles.

    Args:
        run: a run with both log-probs.
        floor: the rounding floor of the pair, nats; drawn where it is given.

    Returns:
        A plotly figure; both axes are logarithmic, so a heavy tail is a slow line.
    """
    return sketch_abs_log_ratio(Bins.of(View.of(run)), floor).figure()


def sketch_abs_log_ratio(bins: Bins, floor: float | None) -> Sketch:
    """See `abs_log_ratio`."""
    sizes, count = bins.sizes, len(bins.sizes)
    made = Sketch()
    if not count or bins.ends.name != "d":
        return made
    levels = np.unique(np.concatenate([np.linspace(0, 0.9, 181), 1 - np.geomspace(0.1, 1 / count, 200)]))
    rank = np.unique(np.minimum((levels * count).astype(np.int64), count - 1))
    made.add(
        "scatter",
        x=f4(sizes.at(rank)),
        y=f4(1 - rank / count),
        mode="lines",
        line={"color": HIGH, "width": 2},
        fill="tozeroy",
        fillcolor="rgba(47,111,176,0.10)",
        hovertemplate="%{y:.3%} of the tokens beyond %{x:.3g} nats<extra></extra>",
    )
    levels = np.asarray([q for q in QUANTILES if (1 - q) * count >= 0.5])
    at = sizes.quantile(levels)
    made.add(
        "scatter",
        x=f4(at),
        y=f4(1 - levels),
        mode="markers+text",
        text=[f"  p{q * 100:g}  {x:.2g}" for q, x in zip(levels, at, strict=True)],
        textposition="middle right",
        marker={"color": HIGH, "size": 8},
        hoverinfo="skip",
        cliponaxis=False,
    )
    least = max(SMALLEST, float(sizes.quantile(np.asarray([0.02]))[0]) / 2)
    if floor:
        made.upright(floor, colour=LOW)
        made.note("floor ", x=float(np.log10(floor)), y=0.02, colour=LOW, xanchor="right", yanchor="bottom")
        least = min(least, floor / 2)
    ends = [float(np.log10(least)), float(np.log10(max(bins.ends.size, SMALLEST) * 6))]
    made.axis("x", "abs d, nats", type="log", range=ends, exponentformat="power", dtick=1)
    return made.axis("y", "share of tokens beyond", type="log", exponentformat="power", dtick=1)


def density(run: Run) -> Any:
    """The trainer's log-prob of every token against the rollout's, as a density.

    Args:
        run: a run with both log-probs.

    Returns:
        A plotly figure; both axes are even in the square root of the surprisal, and colours in the logarithm of the
        count. Tokens on the diagonal have one log-prob on both sides.
    """
    return sketch_density(Bins.of(View.of(run))).figure()


def sketch_density(bins: Bins) -> Sketch:
    """See `density`."""
    counts, end = bins.density, bins.ends.deep
    middle = (np.arange(CELLS) + 0.5) * (end / CELLS)
    made = Sketch(height=420)
    made.add(
        "heatmap",
        x=f4(middle),
        y=f4(middle),
        z=f4(np.where(counts > 0, np.log10(np.maximum(counts, 1)), np.nan)),
        colorscale=RISING,
        colorbar={
            "title": {"text": "tokens"},
            "tickvals": [0, 1, 2, 3, 4, 5, 6],
            "ticktext": [f"{10**i:,}" for i in range(7)],
            "thickness": 10,
            "outlinewidth": 0,
        },
        hovertemplate="10^%{z:.2f} tokens<extra></extra>",
    )
    line = {"color": PLAIN, "width": 1}
    made.add("scatter", x=[0, end], y=[0, end], mode="lines", line=line, hoverinfo="skip")
    ticks = [t for t in (0, 0.1, 0.5, 1, 2, 4, 8, 16, 32, 64) if t <= end**2]
    axis: dict[str, Any] = {"tickvals": np.sqrt(ticks).tolist(), "ticktext": [f"−{t:g}" if t else "0" for t in ticks]}
    made.axis("x", "rollout log-prob, nats", autorange="reversed", zeroline=False, **axis)
    return made.axis("y", "trainer log-prob, nats", autorange="reversed", zeroline=False, **axis)
