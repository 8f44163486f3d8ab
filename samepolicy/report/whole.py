"""A report of a run that is larger than memory: everything that is counted is of all, and some responses are shown."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np

from samepolicy.fleet import Also, Plan, Sample, Way
from samepolicy.fleet.chosen import Chosen
from samepolicy.fleet.plan import Tell
from samepolicy.records.picked import pick
from samepolicy.records.run import Run
from samepolicy.report.bins import Bins, Ends
from samepolicy.report.view import View
from samepolicy.trend import Trend, trend
from samepolicy.whatif import WhatIf
from samepolicy.whatif.gathered import Gather

LOGPS = ("trainer_logp", "rollout_logp", "prob_diff", "response_ids", "trainer_response_ids")
"""The columns that a view's values are made of."""
WORST, ROOM = 512, 1 << 20
"""Responses that are shown since they are the farthest apart, by their mean and by one token each, and the tokens that
either kind may have."""
MOST = 1024
"""Responses drawn by chance that are shown beside them."""


@dataclass(frozen=True)
class Whole:
    """What a page says of all responses of a run of which it shows some.

    Attributes:
        bins: all tokens in the bins of the figures.
        trends: what is watched over the steps; empty where there are none.
        whatif: what corrections do to all; None where the run lacks a side.
        responses: how many there are.
        tokens: under the mask.
        run: the responses that are shown.
        numbers: their numbers among all [shown].
    """

    bins: Bins
    trends: Mapping[str, Trend]
    whatif: WhatIf | None
    responses: int
    tokens: int
    run: Run = field(repr=False)
    numbers: Sequence[int] = field(repr=False)


@dataclass(frozen=True)
class Worst:
    """Chooses the responses that are the farthest apart.

    Attributes:
        by: by the mean size of their values, or by the largest.
    """

    by: Literal["mean", "largest"]
    columns: ClassVar[tuple[str, ...]] = LOGPS

    def __call__(self, run: Run, first: int) -> Chosen:
        """Choose among the responses of one part."""
        view = View.of(run)
        sizes = np.where(view.measured, view.size, np.nan)
        rank = -view.mean(sizes)
        if self.by == "largest":
            rank = np.full(len(run), np.nan)
            np.fmin.at(rank, view.row, -sizes)
        return Chosen.of(rank, run.lengths, first=first, most=WORST, room=ROOM)


@dataclass(frozen=True)
class Reach:
    """Looks how far the values reach."""

    columns: ClassVar[tuple[str, ...]] = LOGPS

    def __call__(self, run: Run, first: int) -> Ends:
        """Those of one part."""
        return Ends.of(View.of(run))


@dataclass(frozen=True)
class Count:
    """Counts a run in bins.

    Attributes:
        ends: how far the whole run reaches.
    """

    ends: Ends
    columns: ClassVar[tuple[str, ...]] = (*LOGPS, "turn", "policy_version", "step")

    def __call__(self, run: Run, first: int) -> Bins:
        """One part."""
        return Bins.of(View.of(run), self.ends)


def asked(columns: Collection[str]) -> tuple[Also, ...]:
    """What to ask of a run with these columns on the way to its sample, for `whole`."""
    both = {"trainer_logp", "rollout_logp"} <= {*columns}
    return (Worst("mean"), Worst("largest"), Reach(), *((Gather(),) if both else ()))


def whole(plan: Plan, way: Way, drawn: Sample, tell: Tell | None = None) -> Whole:
    """Count all responses in the bins of the figures, and read those that are shown: the worst, and some by chance.

    Args:
        plan: the run folder's.
        way: how its shards are spread.
        drawn: what a plan that asked for `asked` came to.
        tell: called after each shard.
    """
    assert plan.source is not None
    mean, largest, ends, *gathered = drawn.whole.also
    (bins,) = plan.asking(Count(ends), measured=False).run(way, tell=tell).also
    numbers = np.unique(np.concatenate([mean.number, largest.number, drawn.numbers[:MOST]]))
    counts, steps = drawn.whole.summary.counts, drawn.whole.groups
    return Whole(
        bins=bins,
        trends=trend({int(step): one for step, one in steps.items()}) if len(steps) > 1 else {},
        whatif=gathered[0].result(drawn.whole.summary) if gathered else None,
        responses=drawn.drawn.of,
        tokens=counts.tokens,
        run=pick(plan.source, numbers, on_bad=plan.on_bad),
        numbers=numbers.tolist(),
    )
