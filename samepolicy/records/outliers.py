"""How far each token and each response of a run is from the same policy, by any metric that has a value for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged, count_segments, segment
from samepolicy.blocks import LIMITS
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.metrics import Metric, all_metrics, columns
from samepolicy.pareto import Tail
from samepolicy.records.run import Run
from samepolicy.stats import Comoments, LogWeights, Share

OF_THE_WHOLE = (Comoments, LogWeights, Share, Tail)
"""Statistics whose metrics are one number of a whole batch."""
_POOLED = ("mean", "sum", "max")


@dataclass(frozen=True)
class Distances:
    """The values of a metric in a run.

    Attributes:
        run: the run, cut to the tokens that both sides have.
        places: where among its packed tokens the valid ones are, int64 [valid]; a valid token is under the mask, and
            its log-probs are finite and not above 0.
        tokens: the metric's value of each of them, float64 [valid]; None for a metric of whole responses.
        responses: its value of each response (for a metric of tokens the mean over them), float64 [responses]; NaN
            where a response has no valid token.
        bad: tokens under the mask that are not valid.
        bad_rows: which responses have one, bool [responses].
    """

    run: Run
    places: np.ndarray
    tokens: np.ndarray | None
    responses: np.ndarray
    bad: int
    bad_rows: np.ndarray


def metric_of(name: str) -> Metric:
    """The metric of this name, if it has a value for each token or response.

    Raises:
        InputError: there is none, or it is one number of a whole batch.

    >>> metric_of("k3").span
    'token'
    """
    metrics = all_metrics()
    ranked = [m.name for m in metrics.values() if m.statistics[0] not in OF_THE_WHOLE and not m.asked]
    if name not in metrics:
        raise InputError(f"There is no metric {name!r}; choose one of {', '.join(ranked)}.")
    if metrics[name].statistics[0] in OF_THE_WHOLE:
        raise InputError(f"{name} is one number of a whole run; choose one of {', '.join(ranked)}.")
    return metrics[name]


def needed(metric: Metric) -> frozenset[str]:
    """The columns of a run that a metric rests on, a recorded `prob_diff` among them where it would do."""
    base = frozenset(b for p in metric.parameters for b in columns.base_columns(_per_token(p)))
    return base | ({"prob_diff"} if set(metric.parameters) == {"prob_diff"} else frozenset())


def distances(run: Run, metric: Metric) -> Distances:
    """The metric's value of every token and response.

    Raises:
        MissingColumnError: the run lacks a column that the metric needs.
    """
    aligned = run.aligned()
    given = _columns(aligned, metric)
    mask = aligned.mask.values
    good = mask & np.logical_and.reduce([_within(name, values) for name, values in given.items()])
    places = np.flatnonzero(good)
    held = {name: values[places].astype(np.float64) for name, values in given.items()}
    lengths = count_segments(good, aligned.offsets)
    with np.errstate(all="ignore"):
        values = metric.function(*(_parameter(p, held, lengths) for p in metric.parameters))
        tokens = values if metric.span == "token" else None
        responses = values if tokens is None else segment(tokens, lengths, "mean")
    bad_rows = count_segments(mask & ~good, aligned.offsets) > 0
    return Distances(aligned, places, tokens, responses, int(mask.sum() - len(places)), bad_rows)


def badness(values: np.ndarray, ideal: float) -> np.ndarray:
    """How far from the ideal, or how large where there is none; NaN comes out as minus infinity.

    >>> badness(np.array([0.5, 2.0, np.nan]), 1.0).tolist()
    [0.5, 1.0, -inf]
    """
    far = values if np.isnan(ideal) else np.abs(values - ideal)
    return np.where(np.isnan(far), -np.inf, far)


def _columns(run: Run, metric: Metric) -> dict[str, np.ndarray]:
    """The run's columns that the metric rests on, packed."""
    if "prob_diff" in run and set(metric.parameters) == {"prob_diff"}:
        return {"prob_diff": run["prob_diff"].values}
    base = sorted({b for p in metric.parameters for b in columns.base_columns(_per_token(p))})
    absent = [name for name in base if not isinstance(run.columns.get(name), Ragged)]
    if absent:
        has = ", ".join(sorted(run.columns))
        raise MissingColumnError(f"{metric.name} needs {absent[0]}, which the run lacks; it has {has}.")
    return {name: run[name].values for name in base}


def _within(name: str, values: np.ndarray) -> np.ndarray:
    """Which values are finite and can be what the column says."""
    low, high = LIMITS.get(name, (-np.inf, np.inf))
    found: np.ndarray = np.isfinite(values) & (values >= low) & (values <= high)
    return found


def _per_token(parameter: str) -> str:
    """The per-token column behind a metric's parameter."""
    head, _, how = parameter.rpartition("_")
    return head if how in _POOLED else parameter


def _parameter(name: str, held: dict[str, np.ndarray], lengths: np.ndarray) -> np.ndarray:
    """A metric's parameter: a column, one derived from others, or one pooled over responses."""
    column = _per_token(name)
    values = _derived(column, held)
    return values if column == name else segment(values, lengths, name.rpartition("_")[2])


def _derived(name: str, held: dict[str, np.ndarray]) -> np.ndarray:
    """A column, computed when first asked for."""
    if name not in held:
        needs: Sequence[str] = columns.derivations()[name]
        made: Any = getattr(columns, name)(*(_derived(n, held) for n in needs))
        held[name] = made
    return held[name]
