"""The one JSON value of a report, from a diagnosis and a what-if."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from samepolicy.diagnose import Diagnosis
from samepolicy.metrics import all_metrics
from samepolicy.report.page import heat, rows, rules, sides, text, tokens
from samepolicy.report.page.charts import charts
from samepolicy.report.pieces import Pieces
from samepolicy.report.text import pair_floor
from samepolicy.report.view import View
from samepolicy.whatif import WhatIf


def value(
    found: Diagnosis, whatif: WhatIf | None, *, pieces: Pieces, title: str = "", budget: int = tokens.BUDGET
) -> dict[str, Any]:
    """Everything that a page shows, JSON-ready.

    Args:
        found: the diagnosis, with the run that it judged.
        whatif: what corrections do to the run; None where it lacks a side.
        pieces: bytes by token id; empty where no tokenizer is at hand.
        title: what the report is of.
        budget: how many tokens to keep one by one, about.

    Returns:
        The value of the diagnosis, and beside it: "report", "run", "whatif", "figures", "rows", "heat", "tokens",
        "outliers", "words", "rules", "sums".
    """
    view = View.of(found.run)
    keep = tokens.kept_tokens(view, budget)
    with ThreadPoolExecutor(1) as pool:  # the corrections take as long as all the rest
        later = pool.submit(_corrections, view, keep, whatif)
        parts = _parts(found, view, whatif, keep)
        parts["words"] = text.words(view, keep, pieces)
        parts["report"]["title"] = title
        return {**found.as_dict(), **parts, **later.result()}


def _parts(found: Diagnosis, view: View, whatif: WhatIf | None, keep: np.ndarray) -> dict[str, Any]:
    """What is drawn of the run itself."""
    floor = pair_floor(found.floor)
    return {
        "report": {"schema": 1, "title": "", "quantity": view.name, **_scale(view, floor)},
        "run": _run(found),
        "about": {n: {"unit": m.unit, "span": m.span, "says": m.summary} for n, m in all_metrics().items()},
        "figures": charts(view, whatif, found.as_dict(), floor),
        "rows": rows.rows(view),
        "heat": heat.heat(view),
        "tokens": tokens.tokens(view, keep, _floor_square(found, view)),
        "outliers": tokens.outliers(view),
    }


def _corrections(view: View, keep: np.ndarray, whatif: WhatIf | None) -> dict[str, Any]:
    """What corrections do to the batch, to each token that is kept, and what a threshold is moved over."""
    if whatif is None or view.name != "d":
        return {"whatif": None}
    shown = {k: v for k, v in whatif.as_dict().items() if k in ("advice", "outcomes", "untried")}
    return {"whatif": shown, "rules": rules.of_tokens(view, keep, whatif), "sums": rules.sums(view)}


def _scale(view: View, floor: float | None) -> dict[str, Any]:
    """What a colour means: even up to `unit`, then by the logarithm up to `full`.

    The unit is the floor; where that is not known, what nine of ten tokens stay below.
    """
    size = view.size[view.measured]
    usual, most = np.quantile(size, [0.9, 0.995]) if len(size) else (0.0, 0.0)
    unit = max(float(floor or usual), 1e-5)
    return {"floor": floor, "unit": unit, "full": max(8 * unit, float(most))}


def _run(found: Diagnosis) -> dict[str, Any]:
    """The run: its size, its columns, both declarations."""
    run = found.run
    return {
        "responses": len(run),
        "tokens": run.tokens,
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
