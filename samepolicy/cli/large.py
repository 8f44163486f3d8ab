"""A recorded run as `diagnose` and `report` take it: whole where it fits, else a sample beside the metrics of all."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samepolicy.cli import output
from samepolicy.cli.output import Tell
from samepolicy.cli.skipped import Skipped

if TYPE_CHECKING:
    from samepolicy.fleet import Plan, Sample
    from samepolicy.records.run import Run
    from samepolicy.records.where import Where


@dataclass(frozen=True)
class Asked:
    """Which responses of which run are asked for, and how they are read.

    Attributes:
        path: the run.
        where: which responses.
        sample: how many to draw; None leaves it to the run's size, 0 takes all.
        workers: processes; None leaves it to the run's size.
        skipped: collects files that cannot be read; None refuses them.
        resume: a file that keeps what is measured; of no use where the run is taken whole.
        rollout_dtype: the rollout's dtype, where the run declares none.
    """

    path: Path
    where: "Where"
    sample: int | None = None
    workers: int | None = None
    skipped: Skipped | None = None
    resume: Path | None = None
    rollout_dtype: str | None = None

    def load(self, tell: Tell) -> "tuple[Run, Sample | None]":
        """The run to judge: whole, or drawn with what all of it comes to."""
        tell(f"looking at {self.path}", 0, 1)
        plan = self.plan()
        if not self.sampled(plan):
            return self.read(plan), None
        drawn = self.draw(plan, tell)
        return drawn.run, drawn

    def plan(self) -> "Plan":
        """The run, looked at without reading a token."""
        from samepolicy.fleet import plan_of

        return plan_of(self.path, where=self.where, on_bad=self.skipped)

    def sampled(self, plan: "Plan") -> bool:
        """Whether the run is to be drawn from, not taken whole."""
        from samepolicy.fleet.sampled import ROOM

        if plan.source is None:
            return False
        if self.sample is None:
            return plan.source.values > ROOM
        return 0 < self.sample < sum(piece.responses for piece in plan.source.pieces)

    def read(self, plan: "Plan") -> "Run":
        """The whole run."""
        from samepolicy.records.store import load, read

        if self.resume is not None:
            output.note("The run is judged as a whole, so --resume keeps nothing.")
        if plan.source is not None:
            return self._declared(load(plan.source, on_bad=self.skipped))
        chosen: dict[str, Any] = {n: getattr(self.where, n) for n in ("steps", "samples", "finish_reasons")}
        return self._declared(read(self.path, on_bad=self.skipped, **chosen))

    def draw(self, plan: "Plan", tell: Tell) -> "Sample":
        """Measure all of the run, and draw from it."""
        from samepolicy.fleet.sampled import MOST, ROOM, sample

        room = ROOM if self.sample is None else 1 << 62
        way, most = plan.way(self.workers), self.sample or MOST
        drawn = sample(plan, way, most=most, room=room, tell=tell, resume=self.resume)
        return replace(drawn, run=self._declared(drawn.run))

    def _declared(self, run: "Run") -> "Run":
        """The run with what is declared for it here."""
        from samepolicy.records.declared import with_rollout_dtype

        return run if self.rollout_dtype is None else with_rollout_dtype(run, self.rollout_dtype)
