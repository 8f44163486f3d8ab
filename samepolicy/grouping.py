"""Measure a run group by group: by step, position, probability, turn, version, lag, finish reason or end distance.

A group is added by writing a function here: from a run to one label per token, under the name that `by=` takes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged, count_segments
from samepolicy.errors import InputError
from samepolicy.metrics.position import positions
from samepolicy.records.run import Run
from samepolicy.summary import Summary, measure

UNKNOWN = "not recorded"
"""The label of a text that is missing."""
PROBABILITY_EDGES = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999)


def measure_by(run: Run, by: str, *, names: str = "samepolicy") -> dict[str, Summary]:
    """Measure each group of a run's tokens apart; the groups' tokens add up to the whole run's.

    Args:
        run: the run.
        by: step, sample, position, end (distance from the end), probability (of the rollout), turn, version (policy
            version), lag (trainer's version minus the token's) or finish_reason.
        names: as for `measure`.

    Returns:
        A Summary for each label, in rising order; positions and distances are grouped by doubling ranges.

    Raises:
        InputError: there is no such grouping.
        MissingColumnError: the run lacks the column behind it.
    """
    if by not in GROUPINGS:
        raise InputError(f"There is no grouping {by!r}; choose one of {', '.join(GROUPINGS)}.")
    aligned = run.aligned()
    labels = GROUPINGS[by](aligned)
    mask = aligned.mask
    found, group = np.unique(labels[mask.values], return_inverse=True)
    groups = {}
    for i, label in enumerate(found.tolist()):
        chosen = np.zeros(len(labels), dtype=bool)
        chosen[np.flatnonzero(mask.values)[group == i]] = True
        flags = Ragged(chosen, aligned.offsets)
        rows = count_segments(chosen, aligned.offsets) > 0
        groups[_name(by, label)] = measure(aligned.with_columns(mask=flags).select(rows), names=names)
    return groups


def _name(by: str, label: Any) -> str:
    """How a label reads: doubling ranges and probability bins by their bounds, others as they are."""
    if by in ("position", "end"):
        low, high = (1 << label) - 1, (2 << label) - 2
        return str(low) if low == high else f"{low}-{high}"
    if by == "probability":
        edges = (0.0, *PROBABILITY_EDGES, 1.0)
        return f"{edges[label]:g}-{edges[label + 1]:g}"
    return str(label)


def _doubling(values: np.ndarray) -> np.ndarray:
    """Ranges 0, 1-2, 3-6, 7-14, … by number."""
    return np.frexp(values + 1.0)[1] - 1


def _per_token(name: str) -> Callable[[Run], np.ndarray]:
    """Labels that a column holds, one per token or repeated over the response's tokens."""

    def labels(run: Run) -> np.ndarray:
        column = run[name]
        values = column.values if isinstance(column, Ragged) else np.repeat(column, run.lengths)
        return np.where(values == None, UNKNOWN, values) if values.dtype.kind == "O" else values  # noqa: E711

    return labels


def _position(run: Run) -> np.ndarray:
    return _doubling(positions(run.offsets))


def _end(run: Run) -> np.ndarray:
    return _doubling(np.repeat(run.lengths, run.lengths) - 1 - positions(run.offsets))


def _probability(run: Run) -> np.ndarray:
    probability = np.exp(np.minimum(np.nan_to_num(run["rollout_logp"].values, nan=-np.inf), 0))
    label: np.ndarray = np.searchsorted(PROBABILITY_EDGES, probability, side="right")
    return label


def _lag(run: Run) -> np.ndarray:
    difference: np.ndarray = _per_token("trainer_version")(run) - _per_token("policy_version")(run)
    return difference


GROUPINGS: dict[str, Callable[[Run], np.ndarray]] = {
    "step": _per_token("step"),
    "sample": _per_token("sample"),
    "position": _position,
    "end": _end,
    "probability": _probability,
    "turn": _per_token("turn"),
    "version": _per_token("policy_version"),
    "lag": _lag,
    "finish_reason": _per_token("finish_reason"),
}
