"""Measure a run or a batch into a Summary: counts and every metric that its columns allow, ready to merge.

`a + b` of two summaries is the summary of both batches together, so micro-batches, ranks, steps and files merge
before any number is read. Each block of tokens is reduced where it lives; only the statistics' short vectors reach
the host.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

from samepolicy.arrays import Array
from samepolicy.blocks import SIDES, Batch, Counts
from samepolicy.errors import InputError, MissingColumnError
from samepolicy.gathering import Gathering
from samepolicy.metrics import Metric, all_metrics
from samepolicy.names import flat_names, metrics_of
from samepolicy.plan import UNCHECKED, missing_columns
from samepolicy.records.run import Run
from samepolicy.stats import Statistic

MEASURED = ("trainer_logp", "rollout_logp", "current_logp", "trainer_entropy", "advantage", "prob_diff")
"""Columns of a run that metrics can need."""


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

    @classmethod
    def empty(cls) -> Self:
        """The summary of nothing: what merging begins with, and what a rank without data reports."""
        return cls(Counts(), {}, {})

    def __add__(self, other: Self) -> Self:
        """The summary of both; a metric that one of them lacks covers only the other's tokens, as its count says.

        Raises:
            InputError: only one of them was measured with a framework's names.
        """
        _refuse_other_names(self, other)
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
    if {*SIDES} <= {*found}:
        found.pop("prob_diff", None)  # computed from what it was made of
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
        ShapeError: shapes differ (nothing is broadcast), or offsets that do not cut the tokens.
        MaskError: the mask holds other values than 0 and 1.
        InputError: a column that no metric needs, or values that are no real numbers.
    """
    unknown = sorted({*columns} - UNCHECKED)
    if unknown:
        wanted = ", ".join(sorted(UNCHECKED))
        raise InputError(f"No metric needs a column {unknown[0]!r} beside trainer and rollout; they need {wanted}.")
    given = {name: column for name, column in columns.items() if column is not None}
    return _measure(Batch({"trainer_logp": trainer, "rollout_logp": rollout, **given}, mask, offsets), names)


def _refuse_other_names(a: Summary, b: Summary) -> None:
    """A framework's own metrics over a part of the tokens would pass for those of all of them."""
    asked = [{n for n in (*s.statistics, *s.missing) if all_metrics()[n].asked} for s in (a, b)]
    if asked[0] != asked[1] and all(s.statistics or s.missing for s in (a, b)):
        raise InputError(
            f"One summary has {min(asked[0] ^ asked[1])} and the other has not, since they were measured under "
            "different names; measure both with the same names=."
        )


def _measure(batch: Batch, names: str) -> Summary:
    """Reduce a batch block by block."""
    if not {"trainer_logp", "rollout_logp"} <= set(batch.columns) and "prob_diff" not in batch.columns:
        have = ", ".join(batch.columns) or "none of the columns"
        raise MissingColumnError(
            f"Measuring needs trainer_logp and rollout_logp, or prob_diff, but the run has {have}; add the missing "
            "side with `samepolicy score RUN --engine …`."
        )
    wanted = [m for n, m in all_metrics().items() if not m.asked or n in metrics_of(names)]
    return reduce_batch(batch, wanted)


def reduce_batch(batch: Batch, wanted: Sequence[Metric]) -> Summary:
    """Measure some metrics of a batch, block by block; those whose columns are not there are among its `missing`."""
    needs = {m.name: missing_columns(m, batch.columns) for m in wanted}
    missing = {name: lacking for name, lacking in needs.items() if lacking}
    metrics = [m for m in wanted if m.name not in missing]
    gathering = Gathering(metrics, batch.columns)
    for block in batch.blocks():
        gathering.add(block)
    statistics = gathering.statistics()
    return Summary(replace(gathering.counts, clamped=gathering.clamped), statistics, missing)


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
