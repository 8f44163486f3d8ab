"""What is to be done on every block of a batch: a task for each metric, planned once for a set of metrics.

A plan knows which statistics two metrics share, since both take them of the same columns, and after which metric a
derived column is of no more use and can be let go.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeAlias

import numpy as np

from samepolicy.arrays import Array
from samepolicy.metrics import Metric, columns
from samepolicy.stats import Statistic

UNCHECKED = frozenset({"current_logp", "trainer_entropy", "advantage"})
"""Columns whose values may be no number where both log-probs are."""
SEQUENCE_SUFFIXES = ("_mean", "_sum", "_max")

Columns: TypeAlias = tuple[str, ...]
"""What a statistic is taken of: columns by name, or (metric, "values")."""
Key: TypeAlias = tuple[type[Statistic], Columns]


@dataclass(frozen=True)
class Task:
    """What one metric adds.

    Attributes:
        metric: the metric.
        columns: what its statistics are taken of.
        statistics: those that no task before it takes of the same columns.
        unchecked: whether some of its values may be no number.
        frees: columns that no task after it needs.
    """

    metric: Metric
    columns: Columns
    statistics: tuple[type[Statistic], ...]
    unchecked: bool
    frees: tuple[str, ...] = ()


class DerivedColumns(dict[str, Any]):
    """Columns of a block; derived ones are computed when first asked for."""

    def __missing__(self, name: str) -> Array:
        self[name] = getattr(columns, name)(*(self[n] for n in columns.derivations()[name]))
        return self[name]


class Watched(DerivedColumns):
    """Columns without a value in them that note when each was last asked for."""

    now = 0

    def __init__(self, names: Iterable[str]) -> None:
        super().__init__({name: np.zeros(0) for name in names})
        self.last: dict[str, int] = {}

    def __getitem__(self, name: str) -> Array:
        self.last[name] = self.now
        return super().__getitem__(name)


@cache
def tasks_of(
    metrics: tuple[Metric, ...], given: frozenset[str], kept: frozenset[str] = frozenset()
) -> tuple[Task, ...]:
    """Plan metrics of one span by trying each on columns without a token.

    Args:
        metrics: the metrics, in the order in which they are to run.
        given: columns that are there from the start.
        kept: columns that are needed after the last metric.

    Returns:
        One task for each metric.
    """
    watched, found = Watched(given), []
    taken: set[Key] = set()
    for watched.now, metric in enumerate(metrics):
        needs = {p: watched[p] for p in metric.parameters}
        unchecked = not UNCHECKED.isdisjoint(b for p in needs for b in columns.base_columns(token_column(p)))
        passed = () if unchecked or metric.clamp else _passed_on(needs, metric.function(**needs))
        of = passed or (metric.name, "values")
        found.append(Task(metric, of, tuple(s for s in metric.statistics if (s, of) not in taken), unchecked))
        taken.update((s, of) for s in metric.statistics)
    ends = {name: now for name, now in watched.last.items() if name not in kept | given}
    return tuple(replace(t, frees=tuple(n for n, now in ends.items() if now == i)) for i, t in enumerate(found))


def token_column(parameter: str) -> str:
    """The per-token column behind a metric's parameter."""
    return parameter.rpartition("_")[0] if parameter.endswith(SEQUENCE_SUFFIXES) else parameter


def missing_columns(metric: Metric, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The run's own columns that a metric needs and the batch lacks."""
    needs = (token_column(p) for p in metric.parameters)
    return tuple(sorted({b for n in needs if n not in given for b in columns.base_columns(n) if b not in given}))


def _passed_on(given: Mapping[str, Array], values: Any) -> Columns:
    """The names of the columns that a metric's values are; none where the metric made them."""
    parts = values if isinstance(values, tuple) else (values,)
    names = tuple(next((p for p in given if given[p] is part), "") for part in parts)
    return names if all(names) else ()
