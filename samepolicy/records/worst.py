"""The tokens or responses of a run that are farthest from the same policy."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any, Literal

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import InputError
from samepolicy.metrics import Metric
from samepolicy.records.outliers import Distances, badness, distances, metric_of
from samepolicy.records.run import Run

CONTEXT = 3
"""Tokens shown before and after an outlier, where their text is recorded."""
SHOWN = 200
"""Characters of a response that are shown."""


@dataclass(frozen=True, kw_only=True)
class Outlier:
    """One token or response.

    Attributes:
        value: the metric's value.
        sequence: number of the response in the run as it is read, from 0.
        step: its training step, where the run says so; likewise group and sample.
        group: identity of its prompt.
        sample: its number within step or group.
        tokens: its sampled tokens.
        position: the token's place in the response, from 0; None for a response.
        trainer_logp: of the token, or the mean over the response, nats; None where the run has none.
        rollout_logp: the same of the rollout.
        id: the token's id, where recorded.
        text: the token as text, or the beginning of the response, where recorded.
        before: text of the tokens before it.
        after: text of those after it.
    """

    value: float
    sequence: int
    step: int | None
    group: str | None
    sample: int | None
    tokens: int
    position: int | None
    trainer_logp: float | None
    rollout_logp: float | None
    id: int | None
    text: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True, kw_only=True)
class Worst:
    """The outliers of a run, worst first.

    Attributes:
        by: the metric.
        unit: its unit.
        over: what was ranked.
        found: the outliers.
        ranked: how many tokens or responses were ranked.
        bad: tokens under the mask whose log-probs are missing, infinite or above 0; they have no value.
    """

    by: str
    unit: str
    over: Literal["token", "response"]
    found: tuple[Outlier, ...]
    ranked: int
    bad: int

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; a number that JSON lacks is None."""
        found = [
            {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in asdict(o).items()}
            for o in self.found
        ]
        return {
            "schema": 1,
            "by": self.by,
            "unit": self.unit,
            "over": self.over,
            "ranked": self.ranked,
            "bad": self.bad,
        } | {"worst": found}


def worst(
    runs: Run | Iterable[Run], *, by: str = "logp_diff", n: int = 10, over: Literal["token", "response"] = "token"
) -> Worst:
    """Rank tokens or responses by how far a metric's value is from what one policy would give.

    Args:
        runs: a run, or its parts one after another (`stream`), of which only one is in memory at a time.
        by: a metric that has a value for each token or response, such as k3, prob_diff or ratio.
        n: how many to give, 1 or more.
        over: "token", or "response": a metric of tokens is averaged over the response's sampled tokens then.

    Returns:
        The outliers, the farthest from the metric's ideal value first; among equal ones the first in the run.

    Raises:
        InputError: no such metric, or one that has no value for each.
        MissingColumnError: a run lacks a column that the metric needs.

    >>> run = Run.from_lists(rollout_logp=[[-1.0, -2.0], [-0.5]], trainer_logp=[[-1.0, -2.5], [-0.25]])
    >>> [(o.sequence, o.position, o.value) for o in worst(run, n=2).found]
    [(0, 1, 0.5), (1, 0, 0.25)]
    """
    metric = metric_of(by)
    if n < 1 or over not in ("token", "response"):
        raise InputError(f'n must be 1 or more and over "token" or "response", not {n} and {over!r}.')
    if metric.span == "sequence" and over == "token":
        raise InputError(f"{by} has one value for each response; rank responses by it.")
    best: list[tuple[float, Outlier]] = []
    first = ranked = bad = 0
    for run in [runs] if isinstance(runs, Run) else runs:
        found = distances(run, metric)
        values = found.tokens if over == "token" and found.tokens is not None else found.responses
        ranked, bad = ranked + int(np.isfinite(badness(values, metric.ideal)).sum()), bad + found.bad
        best += [(far, _outlier(found, at, first, over)) for far, at in _farthest(values, metric, n)]
        best = sorted(best, key=lambda pair: -pair[0])[:n]
        first += len(run)
    return Worst(by=by, unit=metric.unit, over=over, found=tuple(o for _, o in best), ranked=ranked, bad=bad)


def _farthest(values: np.ndarray, metric: Metric, n: int) -> list[tuple[float, int]]:
    """The n values farthest from the ideal, with their distance."""
    far = badness(values, metric.ideal)
    candidates = np.argpartition(-far, n)[: n + 1] if len(far) > n + 1 else np.arange(len(far))
    least = np.sort(far[candidates])[::-1][n - 1] if len(candidates) >= n else -np.inf
    hits = np.flatnonzero(far >= least)
    order = hits[np.lexsort((hits, -far[hits]))][:n]
    return [(float(far[i]), int(i)) for i in order if far[i] > -np.inf]


def _outlier(found: Distances, at: int, first: int, over: str) -> Outlier:
    """One outlier by its number among the valid tokens, or among the responses."""
    run = found.run
    if over == "token" and found.tokens is not None:
        place = int(found.places[at])
        row = int(np.searchsorted(run.offsets, place, side="right")) - 1
        position, value = place - int(run.offsets[row]), float(found.tokens[at])
    else:
        row, position, value = at, None, float(found.responses[at])
    named = {name: run[name][row] for name in ("step", "group", "sample") if name in run}
    return Outlier(
        value=value,
        sequence=first + row,
        step=int(named["step"]) if "step" in named else None,
        group=str(named["group"]) if "group" in named else None,
        sample=int(named["sample"]) if "sample" in named else None,
        tokens=int(run.mask[row].sum()),
        position=position,
        trainer_logp=_logp(run, "trainer_logp", row, position),
        rollout_logp=_logp(run, "rollout_logp", row, position),
        id=int(run["response_ids"][row][position]) if position is not None and "response_ids" in run else None,
        **_texts(run, row, position),
    )


def _logp(run: Run, name: str, row: int, position: int | None) -> float | None:
    """A token's log-prob, or the mean over the sampled tokens of a response."""
    if name not in run:
        return None
    values = run[name][row] if position is None else run[name][row][position : position + 1]
    chosen = values[run.mask[row]] if position is None else values
    return float(chosen.mean(dtype=np.float64)) if len(chosen) else None


def _texts(run: Run, row: int, position: int | None) -> dict[str, str | None]:
    """The text of a token and around it, or of a response; None where it is not recorded."""
    none: dict[str, str | None] = {"text": None, "before": None, "after": None}
    if position is None:
        text = run["text"][row] if "text" in run else _joined(run, row, slice(None))
        return {**none, "text": text[:SHOWN] if text else text}
    if not isinstance(run.columns.get("token_text"), Ragged):
        return none
    return {
        "text": run["token_text"][row][position],
        "before": _joined(run, row, slice(max(0, position - CONTEXT), position)),
        "after": _joined(run, row, slice(position + 1, position + 1 + CONTEXT)),
    }


def _joined(run: Run, row: int, part: slice) -> str | None:
    """Tokens of a response as text, where their text is recorded."""
    if "token_text" not in run:
        return None
    return "".join(text or "" for text in run["token_text"][row][part].tolist())
