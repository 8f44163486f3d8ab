"""Responses drawn by chance from a run that is larger than memory, beside the metrics of all of it."""

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import InputError
from samepolicy.fleet.chosen import Chosen, Draw
from samepolicy.fleet.measured import Measured
from samepolicy.fleet.plan import Plan, Tell
from samepolicy.fleet.ways import Way
from samepolicy.records.picked import pick
from samepolicy.records.run import Run

MOST = 4096
"""Responses that are drawn unless told otherwise."""
ROOM = 1 << 22
"""Tokens that they may have together; a run with no more than so many is taken whole."""


@dataclass(frozen=True)
class Drawn:
    """How many responses were drawn of how many, and what the metrics are of.

    Attributes:
        responses: those drawn.
        of: all that were asked for.
        seed: of the draw.
        metrics: "all" or "sample", where one side's log-probs had to be scored first.

    >>> print(Drawn(4096, 1_200_000))
    sampled 4,096 of 1,200,000 responses; metrics are of all
    """

    responses: int
    of: int
    seed: int = 0
    metrics: str = "all"

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)

    def __str__(self) -> str:
        """Both numbers in words."""
        of = "all" if self.metrics == "all" else "these"
        return f"sampled {self.responses:,} of {self.of:,} responses; metrics are of {of}"


@dataclass(frozen=True, eq=False)
class Sample:
    """A run folder as a sample.

    Attributes:
        run: the responses that were drawn, with all of their columns, in the order of the run.
        drawn: how many of how many.
        numbers: which they are among all, int64 [responses], in the order in which they were drawn.
        whole: what all responses come to; `also` is what the plan asked for beside.
    """

    run: Run = field(repr=False)
    drawn: Drawn
    numbers: np.ndarray = field(repr=False)
    whole: Measured = field(repr=False)


def sample(
    plan: Plan,
    way: Way,
    *,
    most: int = MOST,
    room: int = ROOM,
    tell: Tell | None = None,
    resume: Path | None = None,
) -> Sample:
    """Measure a run folder of any size, and draw responses from it, each as likely as any other.

    Only sums, and at last the responses that were drawn, stay in memory.

    Args:
        plan: the run folder's, as `plan_of` gives it. A run that lacks one side's log-probs is not measured.
        way: how its shards are spread.
        most: how many responses to draw.
        room: how many tokens they may have together; the draw ends before the first that has no room.
        tell: called after each shard.
        resume: a file that keeps what is measured, as `Plan.run` takes it.

    Raises:
        InputError: a dump of another program, of which nothing is known before it is read.
    """
    if plan.source is None:
        raise InputError(f"{plan.task.place} is no run folder; `samepolicy import` it first to draw from it.")
    draw = Draw(most, room)
    measured = {"trainer_logp", "rollout_logp"} <= plan.source.columns or "prob_diff" in plan.source.columns
    asking = plan.asking(*plan.task.also, draw, by=plan.task.by, measured=measured)
    found = asking.run(way, tell=tell, resume=resume)
    *also, chosen = found.also
    assert isinstance(chosen, Chosen)
    if tell:
        tell(f"reading {len(chosen.number):,} responses", 0, 1)
    run = pick(plan.source, chosen.number, on_bad=plan.on_bad)
    drawn = Drawn(len(chosen.number), chosen.looked, draw.seed, "all" if measured else "sample")
    run = replace(run, info={**run.info, "drawn": drawn.as_dict()})
    return Sample(run, drawn, chosen.number, replace(found, also=tuple(also)))
