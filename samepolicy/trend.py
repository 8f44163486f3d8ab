"""Early warning: what moves over the steps of a run before rewards fall, and at which step it began."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import inf, isfinite, nan, sqrt
from typing import Any

import numpy as np
from jaxtyping import Float

from samepolicy.errors import InputError, MissingColumnError
from samepolicy.grouping import measure_by
from samepolicy.jumps import clear_jump
from samepolicy.records.run import Run
from samepolicy.summary import Summary, json_number

WATCHED = {
    "sign_skew": ("sign_skew", "mean"),
    "tail_share": ("ratio_far", "share"),
    "ess": ("ess_token", "ess"),
    "masked_share": ("ratio_above", "share"),
}
"""What is watched, with the metric and its readout: the advantage-weighted skew, the share of ratios beyond a factor of
2 either way, the raw token ESS, and the share that a mask with the usual upper bound of 2 would take."""
DRAWS = 1999
"""Shuffled series that a change is judged against."""
LEAST, EDGE = 8, 2
"""Ranks of fewer steps than this cannot show a change; one side of a change has at least `EDGE` steps."""
FEW = 12
"""Fewer steps than this may show a change by their sizes, too: ranks of so few can hardly."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """Where a series changed its level.

    Attributes:
        step: the first step of the new level.
        before: median before it.
        after: median from it on.
        p: how often a series without a change looks at least as changed as this one.
    """

    step: int
    before: float
    after: float
    p: float


@dataclass(frozen=True, kw_only=True)
class Trend:
    """One quantity over the steps of a run.

    Attributes:
        name: what it is.
        steps: the steps at which it was measured.
        values: its value at each.
        change: where it changed; None where it did not, or where there are too few steps to tell.
    """

    name: str
    steps: tuple[int, ...]
    values: tuple[float, ...]
    change: Change | None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        change = None if self.change is None else {k: json_number(v) for k, v in asdict(self.change).items()}
        values = [json_number(v) for v in self.values]
        return {"name": self.name, "steps": list(self.steps), "values": values, "change": change}

    def __str__(self) -> str:
        """The change in a line, or that there is none."""
        if self.change is None:
            return f"{self.name}: no change over {len(self.steps)} steps"
        c = self.change
        return f"{self.name}: {c.before:.4g} before step {c.step}, {c.after:.4g} from it on (p = {c.p:.2g})"


def trend(run: Run | Iterable[Run] | Mapping[Any, Summary], *, false_alarms: float = 0.01) -> dict[str, Trend]:
    """Watch what moves before a run breaks, step by step, and say where it began to.

    Watched are the advantage-weighted skew -(ρ - 1)·A, the share of ratios beyond a factor of 2, the raw ESS of the
    tokens and the share that a mask with an upper bound of 2 would take. A change needs six steps; where there are too
    few to prove one by their ranks (`change_point`), its two levels must be far apart (`samepolicy.jumps.clear_jump`).

    Args:
        run: a run with a `step` column, its parts one after another (`stream`), or summaries by step (`measure_by`).
        false_alarms: how often a series without a change may be said to have one, for each series. Where neighbouring
            steps go together strongly (correlation 0.5 and more), short series are said to more often.

    Returns:
        One trend for each of `WATCHED` that could be measured at one step or more.

    Raises:
        MissingColumnError: the run has no step column.
        InputError: false_alarms that is not between 0 and 1.

    >>> logp = [[-1.0], [-2.0], [-1.5]]
    >>> run = Run.from_lists(rollout_logp=logp, trainer_logp=logp, step=[0, 1, 2])
    >>> found = trend(run)
    >>> print(found["ess"])
    ess: no change over 3 steps
    """
    if not 0 < false_alarms < 1:
        raise InputError(f"false_alarms must be between 0 and 1, but it is {false_alarms}.")
    summaries = {int(k): s for k, s in run.items()} if isinstance(run, Mapping) else _by_step(run)
    steps = sorted(summaries)
    found = {name: _series([(s, *_read(summaries[s], *place)) for s in steps]) for name, place in WATCHED.items()}
    return {
        name: Trend(name=name, steps=at, values=values, change=_change(at, values, errors, false_alarms))
        for name, (at, values, errors) in found.items()
        if at
    }


def change_point(values: Float[np.ndarray, " steps"], *, seed: int = 0) -> tuple[int, float]:
    """The most likely place of a change of level in a series, and how likely chance alone would make one.

    For every place k the ranks before it are compared with those after it, Z_k = |Σ_{i<k} (r_i - r̄)| · √(n / (k (n -
    k))), and the largest Z is judged against shuffled series. Ranks make single spikes harmless. Steps of training go
    together; so Z is divided by √((1 + φ)/(1 - φ)), φ the correlation of neighbours once the two levels are taken off
    (if above 0), as for the mean of an autoregressive series.

    Args:
        values: the series in order, float [steps], without NaN.
        seed: seed of the shuffles.

    Returns:
        The index of the first value of the new level, and p; (0, 1.0) with fewer than 8 values or equal ones.

    Reference: Pettitt, "A non-parametric approach to the change-point problem" (Applied Statistics 1979); Hothorn and
    Zeileis, "Generalized maximally selected statistics" (Biometrics 2008).

    >>> change_point(np.array([0.1, 0.2, 0.1, 0.3, 0.2, 0.1, 0.9, 0.8, 1.0, 0.9, 1.1, 0.8]))[0]
    6
    """
    n = len(values)
    if n < LEAST or np.ptp(values) == 0:
        return 0, 1.0
    ranks = _ranks(values)
    z = _statistic(ranks[None])[0]
    place = EDGE + int(z.argmax())
    level = np.where(np.arange(n) < place, ranks[:place].mean(), ranks[place:].mean())
    top = z.max() / sqrt(_inflation(ranks - level))
    return place, (1 + int(np.count_nonzero(_by_chance(tuple(sorted(ranks.tolist())), seed) >= top - 1e-9))) / (
        1 + DRAWS
    )


def _by_step(run: Run | Iterable[Run]) -> dict[int, Summary]:
    """A summary of each step."""
    found: dict[int, Summary] = {}
    for part in [run] if isinstance(run, Run) else run:
        if "step" not in part:
            raise MissingColumnError("A trend needs the column step; write the run with step=, or add the column.")
        for label, summary in measure_by(part, "step").items():
            step = int(label)
            found[step] = found[step] + summary if step in found else summary
    return found


def _series(
    places: Iterable[tuple[int, float, float]],
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]:
    """Steps, values and their errors, without the steps that have none."""
    there = [place for place in places if isfinite(place[1])]
    return tuple(s for s, _, _ in there), tuple(v for _, v, _ in there), tuple(e for _, _, e in there)


def _read(summary: Summary, metric: str, readout: str) -> tuple[float, float]:
    """One readout and its standard error; NaN where it was not measured."""
    if metric not in summary:
        return nan, nan
    found = summary[metric]
    value, n = found[readout], found["count"]
    if not isfinite(value):
        return nan, nan
    if readout == "share":
        near = (value * n + 1) / (n + 2)  # no hit in few tokens does not prove that there are none
        return value, sqrt(near * (1 - near) / n)
    if readout == "ess":
        return value, _ess_error(value, summary)
    return value, found["std"] / sqrt(n) if n > 1 else inf


def _ess_error(ess: float, summary: Summary) -> float:
    """The most that the ESS's standard error can be: ESS² χ² √(m / (n χ²)), m the largest (ρ/ρ̄ - 1)² of n tokens."""
    chi2 = max(1 / ess - 1, 0.0)
    if "ratio" not in summary:
        return ess**2 * chi2
    ratio = summary["ratio"]
    far = max(abs(ratio[end] / ratio["mean"] - 1) for end in ("min", "max"))
    return ess**2 * min(chi2, far * sqrt(chi2 / ratio["count"]))


def _change(
    steps: tuple[int, ...], values: tuple[float, ...], errors: tuple[float, ...], false_alarms: float
) -> Change | None:
    """The change of a series, if it is no chance."""
    place, p = change_point(np.array(values))
    if p > false_alarms and len(values) < FEW:
        place, p = clear_jump(np.array(values), np.array(errors))
    if p > false_alarms:
        return None
    before, after = (float(np.median(part)) for part in (values[:place], values[place:]))
    return Change(step=steps[place], before=before, after=after, p=p)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks around their mean, equal values sharing theirs."""
    _, group, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[group]
    found: np.ndarray = ranks - ranks.mean()
    return found


def _statistic(ranks: np.ndarray) -> np.ndarray:
    """Z at every place of several series, [series, places]."""
    n = ranks.shape[1]
    k = np.arange(EDGE, n - EDGE + 1)
    found: np.ndarray = np.abs(np.cumsum(ranks, axis=1)[:, k - 1]) * np.sqrt(n / (k * (n - k)))
    return found


def _inflation(rest: np.ndarray) -> float:
    """(1 + φ)/(1 - φ), by how much neighbours that go together raise the variance of a mean."""
    square = float(rest @ rest)
    phi = min(max(float(rest[1:] @ rest[:-1]) / square, 0.0), 0.95) if square > 0 else 0.0
    return (1 + phi) / (1 - phi)


@cache
def _by_chance(ranks: tuple[float, ...], seed: int) -> np.ndarray:
    """The largest Z of each of many shuffles of the ranks; kept, since without ties it depends on their number only."""
    rng, values = np.random.default_rng(seed), np.array(ranks)
    return np.concatenate(list(_largest(rng, values)))


def _largest(rng: np.random.Generator, values: np.ndarray) -> Iterator[np.ndarray]:
    """The largest Z of shuffles, a hundred at a time."""
    for first in range(0, DRAWS, 100):
        count = min(100, DRAWS - first)
        yield _statistic(rng.permuted(np.tile(values, (count, 1)), axis=1)).max(axis=1)
