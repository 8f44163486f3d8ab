"""The one JSON value of a report, from a diagnosis and a what-if."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from samepolicy.diagnose import Diagnosis
from samepolicy.metrics import all_metrics
from samepolicy.report.bins import Bins
from samepolicy.report.page import heat, layers, rows, rules, sides, text, tokens
from samepolicy.report.page.charts import charts
from samepolicy.report.pieces import Pieces
from samepolicy.report.text import pair_floor
from samepolicy.report.view import View
from samepolicy.report.whole import Whole
from samepolicy.trend import Trend, trend
from samepolicy.whatif import WhatIf


def value(
    found: Diagnosis,
    whatif: WhatIf | None,
    *,
    pieces: Pieces,
    title: str = "",
    budget: int = tokens.BUDGET,
    whole: Whole | None = None,
) -> dict[str, Any]:
    """Everything that a page shows, JSON-ready.

    Args:
        found: the diagnosis, with the run that it judged.
        whatif: what corrections do to the run; None where it lacks a side.
        pieces: bytes by token id; empty where no tokenizer is at hand.
        title: what the report is of.
        budget: how many tokens to keep one by one, about.
        whole: what is counted of all responses, where the diagnosis is of a sample.

    Returns:
        The value of the diagnosis, and beside it: "report", "run", "whatif", "figures", "rows", "heat", "tokens",
        "outliers", "layer_tokens", "words",
        "rules", "sums".
    """
    view = View.of(whole.run if whole else found.run)
    bins = whole.bins if whole else Bins.of(view)
    keep = tokens.kept_tokens(view, budget)
    with ThreadPoolExecutor(1) as pool:  # the corrections take as long as all the rest
        later = pool.submit(_corrections, view, keep, whatif, bins, batches=whole is None)
        told = found.as_dict()
        parts = _parts(found, told, view, whatif, keep, bins, whole)
        parts["words"] = text.words(view, keep, pieces)
        parts["report"]["title"] = title
        return {**told, **parts, **later.result()}


def _parts(
    found: Diagnosis,
    told: Mapping[str, Any],
    view: View,
    whatif: WhatIf | None,
    keep: np.ndarray,
    bins: Bins,
    whole: Whole | None,
) -> dict[str, Any]:
    """What is drawn of the run itself; `told` is the JSON value of the diagnosis."""
    floor = pair_floor(found.floor)
    trends = whole.trends if whole else _trends(view)
    return {
        "report": {"schema": 1, "title": "", "quantity": view.name, **_scale(bins, floor)},
        "run": _run(found, whole),
        "about": {n: {"unit": m.unit, "span": m.span, "says": m.summary} for n, m in all_metrics().items()},
        "figures": charts(bins, whatif, told, floor, trends),
        "rows": rows.rows(view, whole.numbers if whole else None),
        "heat": heat.heat(view),
        "tokens": tokens.tokens(view, keep, _floor_square(found, view)) | ({"of": whole.tokens} if whole else {}),
        "outliers": tokens.outliers(view),
        "layer_tokens": layers.worst_tokens(view, told["layers"]),
    }


def _corrections(view: View, keep: np.ndarray, whatif: WhatIf | None, bins: Bins, *, batches: bool) -> dict[str, Any]:
    """What corrections do to the batch, to each token that is kept, and what a threshold is moved over."""
    if whatif is None or view.name != "d":
        return {"whatif": None}
    shown = {k: v for k, v in whatif.as_dict().items() if k in ("advice", "outcomes", "untried")}
    return {
        "whatif": shown,
        "rules": rules.of_tokens(view, keep, whatif, batches=batches),
        "sums": rules.sums(bins) if len(bins.sizes) else None,
    }


def _trends(view: View) -> Mapping[str, Trend]:
    """What is watched over the steps; nothing where there are none."""
    some = view.name == "d" and len(view.d) and "step" in view.run and len(np.unique(view.run["step"])) > 1
    return trend(view.run) if some else {}


def _scale(bins: Bins, floor: float | None) -> dict[str, Any]:
    """What a colour means: even up to `unit`, then by the logarithm up to `full`.

    The unit is the floor; where that is not known, what nine of ten tokens stay below.
    """
    usual, most = bins.sizes.quantile(np.asarray([0.9, 0.995])) if len(bins.sizes) else (0.0, 0.0)
    unit = max(float(floor or usual), 1e-5)
    return {"floor": floor, "unit": unit, "full": max(8 * unit, float(most))}


def _run(found: Diagnosis, whole: Whole | None) -> dict[str, Any]:
    """The run: its size, how many responses are shown, its columns, both declarations."""
    run = found.run
    return {
        "responses": whole.responses if whole else len(run),
        "shown": len(whole.run) if whole else len(run),
        "tokens": whole.tokens if whole else run.tokens,
        "columns": sorted(run.columns),
        "sides": sides.sides(run),
        "coverage": run.info.get("coverage"),
        "reference": (run.info.get("reference") or {}).get("owner"),
    }


def _floor_square(found: Diagnosis, view: View) -> np.ndarray | None:
    """The square of the pair's floor of each token; None where it is not known."""
    if found.floor is None or not found.floor.complete:
        return None
    return found.floor.pair_square(view.run)
