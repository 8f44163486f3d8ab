"""The responses of a run as a table: one packed column for each thing that people sort or filter by."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.report.packed import packed
from samepolicy.report.view import View

WHOLE = ("step", "sample")
"""Numbers that a filter or an address names, which have to stay exact."""

FEW = 200
"""A text column with more different values than this is not offered as a filter."""


def rows(view: View, numbers: Sequence[int] | None = None) -> dict[str, Any]:
    """Every response with its numbers.

    Args:
        view: what is shown.
        numbers: which responses of a larger run these are [responses]; None where they are all.

    Returns:
        {"count", "columns": {name: packed [responses]}, "labels": {name: {"values", "code": packed}}}; log-ratios are
        summed in float64 and rounded to float32.
    """
    found = {n: packed(v, "f8" if n in WHOLE else "f4") for n, v in _numbers(view) if not np.isnan(v).all()}
    counts = {
        "length": view.run.lengths,
        "tokens": np.bincount(view.row, weights=view.run.mask.values, minlength=len(view.run)),
        "measured": np.bincount(view.row, weights=view.measured, minlength=len(view.run)),
    }
    if numbers is not None:
        counts["number"] = np.asarray(numbers)
    return {
        "count": len(view.run),
        "columns": {name: packed(values, "u4") for name, values in counts.items()} | found,
        "labels": dict(_labels(view)),
    }


def _numbers(view: View) -> Iterator[tuple[str, np.ndarray]]:
    """Columns of numbers by name, float64 [responses]."""
    yield "mean_abs", view.mean(np.where(view.measured, view.size, np.nan))
    yield from _largest(view)
    if view.name == "d":
        yield from _ratios(view)
    yield "prob_diff", view.mean(view.prob_diff)
    for name in ("trainer", "rollout"):
        yield f"{name}_log_ppl", -view.mean(np.where(view.measured, view.logp(name), np.nan))
    yield "entropy", view.mean(np.where(view.measured, view.column("trainer_entropy"), np.nan))
    yield "advantage", view.mean(np.where(view.measured, view.column("advantage"), np.nan))
    yield "turns", _last(view, view.column("turn")) + 1
    yield "version", _last(view, view.column("policy_version"))
    for name in ("step", "sample", "reward"):
        if name in view.run and not isinstance(view.run[name], Ragged) and view.run[name].dtype.kind in "iuf":
            yield name, view.run[name].astype(np.float64)


def _largest(view: View) -> Iterator[tuple[str, np.ndarray]]:
    """The largest value of each response, and where it stands."""
    largest, place = (np.full(len(view.run), np.nan) for _ in range(2))
    filled = view.run.lengths > 0
    if filled.any():
        starts = view.offsets[:-1][filled]
        largest[filled] = np.maximum.reduceat(view.size, starts)
        hits = np.flatnonzero(view.measured & (view.size == largest[view.row]))[::-1]
        place[view.row[hits]] = view.position[hits]
        largest[np.isnan(place)] = np.nan
    yield "max_abs", largest
    yield "worst", place


def _ratios(view: View) -> Iterator[tuple[str, np.ndarray]]:
    """What corrections look at."""
    d = view.value
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        ratio = np.exp(d)
        sums, squares = view.total(ratio), view.total(ratio**2)
        ess = sums**2 / (squares * view.total(view.measured * 1.0))
    yield "mean_d", view.mean(d)
    yield "sum_d", np.where(view.mean(d) == view.mean(d), view.total(d), np.nan)
    yield "k3", view.mean(view.k3)
    yield "sum_w", sums
    yield "sum_w2", squares
    yield "ess", ess


def _last(view: View, values: np.ndarray) -> np.ndarray:
    """The value at the last token of each response."""
    found = np.full(len(view.run), np.nan)
    filled = view.run.lengths > 0
    found[filled] = values[view.offsets[1:][filled] - 1]
    return found


def _labels(view: View) -> Iterator[tuple[str, dict[str, Any]]]:
    """Columns of words, each value once with a code."""
    for name in ("finish_reason", "group"):
        column = view.run.columns.get(name)
        if column is None or isinstance(column, Ragged):
            continue
        words = np.asarray(["" if v is None else str(v)[:FEW] for v in column.tolist()], dtype=object)
        values, code = np.unique(words.astype(str), return_inverse=True) if len(words) else (words, words)
        yield name, {"values": [str(v) for v in values], "code": packed(code, "u4"), "filter": len(values) <= FEW}
