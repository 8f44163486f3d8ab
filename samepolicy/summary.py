"""Measure a run or a batch into a Summary: counts and every metric that its columns allow, ready to merge.

`a + b` of two summaries is the summary of both batches together, so micro-batches, ranks, steps and files merge
before any number is read. Each block of tokens is reduced where it lives; only the statistics' short vectors reach
the host.
"""

import functools
import math
import operator
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, Self

import numpy as np

from samepolicy.arrays import Array, array_namespace, is_torch, on_host, segment, to_numpy
from samepolicy.blocks import Batch, Block, Counts
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.metrics import Metric, all_metrics, columns
from samepolicy.names import flat_names, metrics_of
from samepolicy.records.run import Run
from samepolicy.stats import Statistic

PENDING = 16
"""Blocks in host memory whose states are merged together."""
MEASURED = ("trainer_logp", "rollout_logp", "current_logp", "trainer_entropy", "advantage", "prob_diff")
"""Columns of a run that metrics can need."""
THREADS = min(4, os.cpu_count() or 1)
"""Threads that share the blocks of a batch in host memory; NumPy computes outside the interpreter's lock."""
UNCHECKED = frozenset({"current_logp", "trainer_entropy", "advantage"})
"""Columns whose values may be no number where both log-probs are."""
SEQUENCE_SUFFIXES = ("_mean", "_sum", "_max")


@dataclass(frozen=True)
class Summary:
    """Counts and metrics of a batch, a step, a run, or all of them together.

    Attributes:
        counts: what was there and what was left out.
        statistics: for each metric its statistics.
        missing: for each metric that could not be measured, the columns that it would need.

    >>> logp = np.log([[0.5, 0.25]])
    >>> s = measure_batch(trainer=logp, rollout=logp, mask=np.array([[1, 1]]))
    >>> (s + s).counts.tokens, s["k3"]["mean"]
    (4, 0.0)
    """

    counts: Counts
    statistics: Mapping[str, tuple[Statistic, ...]]
    missing: Mapping[str, tuple[str, ...]]

    def __add__(self, other: Self) -> Self:
        """The summary of both; a metric that one of them lacks covers only the other's tokens, as its count says."""
        names = {**self.statistics, **other.statistics}
        merged = {n: _add(self.statistics.get(n), other.statistics.get(n)) for n in names}
        missing = {**self.missing, **other.missing}
        return type(self)(self.counts + other.counts, merged, {n: c for n, c in missing.items() if n not in merged})

    def __getitem__(self, name: str) -> dict[str, float]:
        """The readouts of one metric.

        Raises:
            MissingColumnError: the metric needs columns that were not there.
            InputError: no metric has this name.
        """
        if name in self.missing:
            needs = ", ".join(self.missing[name])
            raise MissingColumnError(f"{name} was not measured, since it needs {needs}; add it to the run.")
        if name not in self.statistics:
            raise InputError(f"There is no metric {name!r}; there are {', '.join(self.statistics)}.")
        found = {k: v for statistic in self.statistics[name] for k, v in statistic.readouts().items()}
        read = all_metrics()[name].read
        return {k: v for k, v in found.items() if not read or k in read}

    def __contains__(self, name: object) -> bool:
        """Whether the metric was measured."""
        return name in self.statistics

    @property
    def metrics(self) -> dict[str, dict[str, float]]:
        """The readouts of every metric that was measured."""
        return {name: self[name] for name in self.statistics}

    def flat(self, names: str = "samepolicy") -> dict[str, float]:
        """Flat names for a logger: our own, or those that a framework's users know.

        Args:
            names: "samepolicy", or a framework of `names.py`; the summary must have been measured with the same.

        Returns:
            One number per key.
        """
        return flat_names(self, names)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a number that does not exist is null, and an infinity the string "inf" or "-inf"."""
        metrics = {n: {k: json_number(v) for k, v in m.items()} for n, m in self.metrics.items()}
        missing = {name: list(needs) for name, needs in self.missing.items()}
        return {"schema": 1, "counts": asdict(self.counts), "metrics": metrics, "missing": missing}

    def __str__(self) -> str:
        """One line a metric: its first readout, unit and ideal."""
        rows = [f"{self.counts.measured} of {self.counts.tokens} tokens, {self.counts.sequences} sequences"]
        for name, readouts in self.metrics.items():
            first, value = next(iter(readouts.items()))
            rows.append(f"{name:24} {first} {value:.6g} {all_metrics()[name].unit}")
        return "\n".join(rows)


def measure(run: Run, *, names: str = "samepolicy") -> Summary:
    """Measure a whole run.

    Args:
        run: the run; where the trainer scored other ids than were sampled, the aligned tokens are measured and the rest
            counted as unaligned.
        names: a framework whose own definitions are measured too, for `Summary.flat`.

    Returns:
        The Summary.

    Raises:
        MissingColumnError: the run has neither both log-probs nor `prob_diff`.
    """
    aligned = run.aligned()
    found = {name: aligned[name].values for name in MEASURED if name in aligned}
    summary = _measure(Batch(found, aligned.mask.values, aligned.offsets), names)
    unaligned = run.tokens - aligned.tokens
    return summary + Summary(Counts(unaligned=unaligned), {}, {}) if unaligned else summary


def measure_batch(
    *, trainer: Array, rollout: Array, mask: Array, offsets: Any = None, names: str = "samepolicy", **columns: Array
) -> Summary:
    """Measure one batch of NumPy arrays or torch tensors, where it lives.

    Args:
        trainer: log-probs under the policy that is trained, float [batch, time], or [tokens] with offsets.
        rollout: log-probs under the policy that sampled, same shape.
        mask: 1 where the policy sampled the token, same shape, any dtype.
        offsets: where each packed sequence begins and the last ends (`cu_seqlens`), int [sequences + 1].
        names: a framework whose own definitions are measured too.
        **columns: further columns of the same shape: current_logp, trainer_entropy, advantage.

    Returns:
        The Summary.

    Raises:
        ShapeError: shapes differ; nothing is broadcast.
        MaskError: the mask holds other values than 0 and 1.
    """
    unknown = set(columns) - set(MEASURED)
    if unknown:
        raise InputError(f"No metric needs a column {sorted(unknown)[0]!r}; they need {', '.join(MEASURED)}.")
    return _measure(Batch({"trainer_logp": trainer, "rollout_logp": rollout, **columns}, mask, offsets), names)


def _measure(batch: Batch, names: str) -> Summary:
    """Reduce a batch block by block."""
    if not {"trainer_logp", "rollout_logp"} <= set(batch.columns) and "prob_diff" not in batch.columns:
        have = ", ".join(batch.columns) or "none of the columns"
        raise MissingColumnError(
            f"Measuring needs trainer_logp and rollout_logp, or prob_diff, but the run has {have}; add the missing "
            "side with `samepolicy score RUN --engine …`."
        )
    wanted = {n: m for n, m in all_metrics().items() if not m.asked or n in metrics_of(names)}
    missing = {n: needs for n, m in wanted.items() if (needs := _missing(m, batch.columns))}
    metrics = [m for n, m in wanted.items() if n not in missing]
    cuts = list(batch.cuts())
    workers = min(THREADS, len(cuts) // 8) if on_host(batch.mask) else 1
    if workers < 2:
        return _gather(batch, cuts, metrics, missing)
    with ThreadPoolExecutor(workers) as pool:
        parts = pool.map(lambda w: _gather(batch, cuts[w::workers], metrics, missing), range(workers))
        return functools.reduce(operator.add, parts)


def _gather(batch: Batch, cuts: list[Any], metrics: list[Metric], missing: Mapping[str, tuple[str, ...]]) -> Summary:
    """Reduce some blocks of a batch; overflow to inf is a result here, not a fault."""
    gathering = _Gathering(metrics)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        for rows, offsets in cuts:
            gathering.add(batch.block(rows, offsets))
        return gathering.summary(missing)


def _missing(metric: Metric, given: Mapping[str, Any]) -> tuple[str, ...]:
    """The run's own columns that a metric needs and the batch lacks."""
    needs = (_token_column(p) for p in metric.parameters)
    return tuple(sorted({b for n in needs if n not in given for b in columns.base_columns(n) if b not in given}))


def _token_column(parameter: str) -> str:
    """The per-token column behind a metric's parameter."""
    return parameter.rpartition("_")[0] if parameter.endswith(SEQUENCE_SUFFIXES) else parameter


class _Columns(dict[str, Any]):
    """Columns of a block; derived ones are computed when first asked for."""

    def __missing__(self, name: str) -> Array:
        self[name] = getattr(columns, name)(*(self[n] for n in columns.derivations()[name]))
        return self[name]


class _Gathering:
    """Collects the states of all statistics over the blocks of one batch."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self.token_metrics = [m for m in metrics if m.span == "token"]
        self.sequence_metrics = [m for m in metrics if m.span == "sequence"]
        self.needs = sorted({p for m in self.sequence_metrics for p in m.parameters})
        self.counts = Counts()
        self.states: dict[tuple[str, type[Statistic]], list[Array]] = {}
        self.sequences: dict[str, list[Array]] = {name: [] for name in self.needs}
        self.blocks = 0

    def add(self, block: Block) -> None:
        """Reduce one block."""
        self.counts += block.counts
        found = _Columns(block.columns)
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
        for metric in metrics:
            values = self._values(metric, found)
            column = next((n for n, c in found.items() if c is values), metric.name)
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
        if not UNCHECKED.isdisjoint(b for p in metric.parameters for b in columns.base_columns(_token_column(p))):
            return values[array_namespace(values).isfinite(values)]
        return values

    def _merge_host(self) -> None:
        """Merge what waits in host memory; on a device everything waits for the single transfer at the end."""
        for (_, statistic), states in self.states.items():
            if isinstance(states[0], np.ndarray):
                states[:] = [statistic.merge(np.stack(states))]

    def summary(self, missing: Mapping[str, tuple[str, ...]]) -> Summary:
        """Reduce the sequences, bring every state to the host at once, and merge."""
        if self.blocks:
            joined = {n: array_namespace(*parts).concat(parts) for n, parts in self.sequences.items()}
            self._reduce(self.sequence_metrics, joined)
        _to_host(self.states)
        gathered: dict[str, tuple[Statistic, ...]] = {}
        for metric in [*self.token_metrics, *self.sequence_metrics]:
            parts = [self.states.get((metric.name, s), []) for s in metric.statistics]
            merged = [s.merge(np.reshape(p, (len(p), s.SIZE))) for s, p in zip(metric.statistics, parts, strict=True)]
            gathered[metric.name] = tuple(s(m) for s, m in zip(metric.statistics, merged, strict=True))
        ordered = {name: gathered[name] for name in all_metrics() if name in gathered}
        return Summary(self.counts, ordered, dict(missing))


def _to_host(states: dict[Any, list[Array]]) -> None:
    """Replace device states by host ones, with one transfer for all of them."""
    waiting = [s for parts in states.values() for s in parts if is_torch(s)]
    if not waiting:
        return
    flat = to_numpy(array_namespace(*waiting).concat(waiting)).astype(np.float64)
    pieces = iter(np.split(flat, np.cumsum([len(s) for s in waiting])[:-1]))
    for parts in states.values():
        parts[:] = [next(pieces) if is_torch(s) else s for s in parts]


def _add(a: tuple[Statistic, ...] | None, b: tuple[Statistic, ...] | None) -> tuple[Statistic, ...]:
    """Statistics of both, or of the one that is there."""
    return tuple(x + y for x, y in zip(a, b, strict=True)) if a and b else a or b or ()


def json_number(value: float) -> float | str | None:
    """A number as JSON can hold it: NaN becomes null, infinities strings.

    >>> json_number(float("nan")), json_number(float("-inf")), json_number(0.5)
    (None, '-inf', 0.5)
    """
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value
