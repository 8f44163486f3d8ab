"""Reduce the blocks of a batch to the states of every statistic: where the tokens live, each derived column once."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch, segment, to_numpy
from samepolicy.blocks import Block, Counts
from samepolicy.metrics import Metric, all_metrics, columns
from samepolicy.stats import Statistic

PENDING = 16
"""Blocks in host memory whose states are merged together."""
UNCHECKED = frozenset({"current_logp", "trainer_entropy", "advantage"})
"""Columns whose values may be no number where both log-probs are."""
SEQUENCE_SUFFIXES = ("_mean", "_sum", "_max")


def token_column(parameter: str) -> str:
    """The per-token column behind a metric's parameter."""
    return parameter.rpartition("_")[0] if parameter.endswith(SEQUENCE_SUFFIXES) else parameter


def missing_columns(metric: Metric, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The run's own columns that a metric needs and the batch lacks."""
    needs = (token_column(p) for p in metric.parameters)
    return tuple(sorted({b for n in needs if n not in given for b in columns.base_columns(n) if b not in given}))


class DerivedColumns(dict[str, Any]):
    """Columns of a block; derived ones are computed when first asked for."""

    def __missing__(self, name: str) -> Array:
        self[name] = getattr(columns, name)(*(self[n] for n in columns.derivations()[name]))
        return self[name]


class Gathering:
    """Collects the states of all statistics over the blocks of one batch."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.token_metrics = [m for m in metrics if m.span == "token"]
        self.sequence_metrics = [m for m in metrics if m.span == "sequence"]
        self.needs = sorted({p for m in self.sequence_metrics for p in m.parameters})
        self.unchecked = {m.name for m in (*self.token_metrics, *self.sequence_metrics) if _rests_on_unchecked(m)}
        self.counts = Counts()
        self.states: dict[tuple[str, type[Statistic]], list[Array]] = {}
        self.sequences: dict[str, list[Array]] = {name: [] for name in self.needs}
        self.blocks = 0

    def add(self, block: Block) -> None:
        """Reduce one block."""
        self.counts += block.counts
        found = DerivedColumns(block.columns)
        self._reduce(self.token_metrics, found)
        filled = block.lengths > 0
        for name in self.needs:
            column, _, how = name.rpartition("_")
            self.sequences[name].append(segment(found[column], block.lengths, how)[filled])
        self.blocks += 1
        if self.blocks % PENDING == 0:
            self._merge_host()

    def _reduce(self, metrics: Iterable[Metric], found: Mapping[str, Array]) -> None:
        """The states of these metrics; two metrics that reduce the same array alike share the work."""
        shared: dict[tuple[type[Statistic], str], Array] = {}
        names: dict[int, str] = {}  # of the columns, which live as long as the block
        for metric in metrics:
            values = self._values(metric, found)
            names = {id(c): n for n, c in found.items()} if len(found) != len(names) else names
            column = names.get(id(values), metric.name)
            for statistic in metric.statistics:
                states = self.states.setdefault((metric.name, statistic), [])
                if (statistic, column) not in shared:
                    prior = states[0] if states and isinstance(states[0], np.ndarray) else None
                    shared[statistic, column] = statistic.reduce(values, prior)
                states.append(shared[statistic, column])

    def _values(self, metric: Metric, found: Mapping[str, Array]) -> Any:
        """A metric's values on one block, clamped where the metric says so, without those that are no number."""
        values = metric.function(*(found[p] for p in metric.parameters))
        if metric.clamp:
            xp = array_namespace(values)
            held = xp.clip(values, *metric.clamp)
            self.counts += Counts(clamped=int(xp.count_nonzero(held != values)))
            return held
        if metric.name in self.unchecked:
            return values[array_namespace(values).isfinite(values)]
        return values

    def _merge_host(self) -> None:
        """Merge what waits in host memory; on a device everything waits for the single transfer at the end."""
        for (_, statistic), states in self.states.items():
            if isinstance(states[0], np.ndarray):
                states[:] = [statistic.merge(np.stack(states))]

    def statistics(self) -> dict[str, tuple[Statistic, ...]]:
        """Reduce the sequences, bring every state to the host at once, and merge; one entry a metric."""
        if self.blocks:
            joined = {n: array_namespace(*parts).concat(parts) for n, parts in self.sequences.items()}
            self._reduce(self.sequence_metrics, joined)
        _to_host(self.states)
        gathered: dict[str, tuple[Statistic, ...]] = {}
        for metric in [*self.token_metrics, *self.sequence_metrics]:
            parts = [self.states.get((metric.name, s), []) for s in metric.statistics]
            merged = [s.merge(np.reshape(p, (len(p), s.SIZE))) for s, p in zip(metric.statistics, parts, strict=True)]
            gathered[metric.name] = tuple(s(m) for s, m in zip(metric.statistics, merged, strict=True))
        return {name: gathered[name] for name in all_metrics() if name in gathered}


def _rests_on_unchecked(metric: Metric) -> bool:
    """Whether a metric needs a column that may hold no number where both log-probs are."""
    return not UNCHECKED.isdisjoint(b for p in metric.parameters for b in columns.base_columns(token_column(p)))


def _to_host(states: dict[Any, list[Array]]) -> None:
    """Replace device states by host ones, with one transfer for all of them."""
    waiting = [s for parts in states.values() for s in parts if is_torch(s)]
    if not waiting:
        return
    flat = to_numpy(array_namespace(*waiting).concat(waiting)).astype(np.float64)
    pieces = iter(np.split(flat, np.cumsum([len(s) for s in waiting])[:-1]))
    for parts in states.values():
        parts[:] = [next(pieces) if is_torch(s) else s for s in parts]
