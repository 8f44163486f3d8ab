"""Reduce the blocks of a batch to the states of every statistic: where the tokens live, each derived column once."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from samepolicy.arrays import Array, Segments, array_namespace, count_true, is_torch, to_numpy
from samepolicy.blocks import Block, Counts
from samepolicy.metrics import Metric, all_metrics
from samepolicy.plan import DerivedColumns, Key, Task, tasks_of, token_column
from samepolicy.stats import Statistic

PENDING = 16
"""Blocks in host memory whose states are merged together."""


class Gathering:
    """Collects the states of all statistics over the blocks of one batch."""

    def __init__(self, metrics: Sequence[Metric], given: Iterable[str]) -> None:
        tokens, sequences = (tuple(m for m in metrics if m.span == span) for span in ("token", "sequence"))
        self.pools = {p: (token_column(p), p.rpartition("_")[2]) for m in sequences for p in m.parameters}
        self.per_token = tasks_of(tokens, frozenset(given), kept=frozenset(column for column, _ in self.pools.values()))
        self.per_sequence = tasks_of(sequences, frozenset(self.pools))
        self.pooled: dict[tuple[str, str], list[Array]] = {(c, _pooling(how)): [] for c, how in self.pools.values()}
        self.lengths: list[Array] = []
        self.counts, self.clamped = Counts(), 0
        self.states: dict[Key, list[Array]] = {}
        self.blocks = 0

    def add(self, block: Block) -> None:
        """Take a block in."""
        with _infinities():
            found = DerivedColumns(block.columns)
            states, clamped = self._states(self.per_token, found)
            segments = Segments(block.lengths[block.lengths > 0])
            self.lengths.append(segments.lengths)
            for (column, how), pooled in self.pooled.items():
                pooled.append(segments.pool(found[column], how))
        self.counts += block.counts
        self.clamped += clamped
        self._collect(states)
        self.blocks += 1
        if self.blocks % PENDING == 0:
            for (statistic, _), states_of in self.states.items():
                if isinstance(states_of[0], np.ndarray):  # on a device all wait for the single transfer at the end
                    states_of[:] = [statistic.merge(np.stack(states_of))]

    def statistics(self) -> dict[str, tuple[Statistic, ...]]:
        """Reduce the sequences, bring every state to the host at once, and merge; one entry a metric."""
        if self.pools and self.lengths:
            with _infinities():
                states, clamped = self._states(self.per_sequence, self._sequences())
            self.clamped += clamped
            self._collect(states)
        _to_host(self.states)
        merged = {key: key[0](key[0].merge(np.stack(states))) for key, states in self.states.items()}
        found = {
            t.metric.name: tuple(merged.get((s, t.columns), s.identity()) for s in t.metric.statistics)
            for t in (*self.per_token, *self.per_sequence)
        }
        return {name: found[name] for name in all_metrics() if name in found}

    def _sequences(self) -> dict[str, Array]:
        """Sums, means and maxima of columns over each sequence that has a token, float [sequences]."""
        lengths = _joined(self.lengths)
        found = {key: _joined(parts) for key, parts in self.pooled.items()}
        return {
            name: found[column, "sum"] / lengths if how == "mean" else found[column, how]
            for name, (column, how) in self.pools.items()
        }

    def _states(self, tasks: Iterable[Task], found: dict[str, Array]) -> tuple[dict[Key, Array], int]:
        """The states that the tasks ask for, and how many values were clamped; columns go when none needs them."""
        states: dict[Key, Array] = {}
        clamped = 0
        for task in tasks:
            if task.statistics:
                values, held = _values(task, found)
                clamped += held
                for statistic in task.statistics:
                    key = (statistic, task.columns)
                    states[key] = statistic.reduce(values, self._prior(key))
                del values
            for name in task.frees:
                del found[name]
        return states, clamped

    def _prior(self, key: Key) -> np.ndarray | None:
        """A state of earlier values that lies in host memory."""
        known = self.states.get(key)
        return known[0] if known and isinstance(known[0], np.ndarray) else None

    def _collect(self, states: dict[Key, Array]) -> None:
        """Keep states for the next merge."""
        for key, state in states.items():
            self.states.setdefault(key, []).append(state)


def _pooling(how: str) -> str:
    """What has to be pooled: a mean is a sum over a length."""
    return "sum" if how == "mean" else how


def _joined(parts: list[Array]) -> Array:
    """The parts one after another."""
    return array_namespace(*parts).concat(parts)


def _infinities() -> np.errstate:
    """An overflow to inf, and what follows from it, is a result here and no error."""
    return np.errstate(over="ignore", divide="ignore", invalid="ignore")


def _values(task: Task, found: dict[str, Array]) -> tuple[Any, int]:
    """A metric's values, clamped where the metric says so, without those that are no number; and how many were held."""
    values = task.metric.function(*map(found.__getitem__, task.metric.parameters))
    if task.metric.clamp:
        held = array_namespace(values).clip(values, *task.metric.clamp)
        return held, int(count_true(held != values))
    if task.unchecked:
        return values[array_namespace(values).isfinite(values)], 0
    return values, 0


def _to_host(states: dict[Key, list[Array]]) -> None:
    """Replace device states by host ones, with one transfer for all of them."""
    waiting = [s for parts in states.values() for s in parts if is_torch(s)]
    if not waiting:
        return
    flat = to_numpy(array_namespace(*waiting).concat(waiting)).astype(np.float64)
    pieces = iter(np.split(flat, np.cumsum([len(s) for s in waiting])[:-1]))
    for parts in states.values():
        parts[:] = [next(pieces) if is_torch(s) else s for s in parts]
