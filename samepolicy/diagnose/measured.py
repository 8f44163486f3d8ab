"""Everything the verdict and the ladder are read from, measured once; pure arithmetic on a run's columns."""

from dataclasses import dataclass

import numpy as np

from samepolicy import floor as rounding
from samepolicy import structure
from samepolicy.diagnose.sides import SideGap, sides
from samepolicy.diagnose.where import Where, profile
from samepolicy.floor import Floor
from samepolicy.floor import gap as gaps
from samepolicy.floor.gap import Gap, Pairs
from samepolicy.records.run import Run
from samepolicy.structure import Fact


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What the columns of one run show.

    Attributes:
        run: the run, cut to the tokens that both sides have.
        facts: the structural tests.
        pairs: the comparable tokens; None where one side's log-probs are not there.
        floor: how large rounding is.
        gap: the gap on that floor; None where either is not known.
        left: the gap once the difference of the two declarations is taken off.
        sides: each side against its own prediction.
        where: where the differences are; None without comparable tokens.
    """

    run: Run
    facts: tuple[Fact, ...]
    pairs: Pairs | None
    floor: Floor
    gap: Gap | None = None
    left: Gap | None = None
    sides: tuple[SideGap, ...] = ()
    where: Where | None = None

    @property
    def broken(self) -> tuple[Fact, ...]:
        """The facts that alone make the verdict `different`."""
        return tuple(fact for fact in self.facts if fact.breaks)

    @property
    def copy(self) -> Fact | None:
        """The fact that one column is a copy of the other, where it is."""
        return next((f for f in self.facts if f.name == "copy" and f.status == "failed"), None)

    @property
    def mean_square(self) -> float:
        """Uncapped mean square of d over the comparable tokens, nats²; NaN where there are none."""
        some = self.pairs is not None and len(self.pairs.difference) > 0
        return float(np.mean(self.pairs.difference**2)) if some and self.pairs else float("nan")

    def fact(self, name: str) -> Fact | None:
        """The fact of that name, where its test was made."""
        return next((f for f in self.facts if f.name == name), None)


def measured(run: Run) -> Measured:
    """Measure a run; what its columns do not allow is None."""
    facts = structure.check(run)
    run = run.aligned()
    floor, found = rounding.measure(run), gaps.pairs(run)
    if found is None or not len(found.index):
        return Measured(run=run, facts=facts, pairs=found, floor=floor)
    square = floor.pair_square(run)[found.index] if floor.complete else None
    return Measured(
        run=run,
        facts=facts,
        pairs=found,
        floor=floor,
        gap=gaps.of_pair(run, found, floor) if floor.complete else None,
        left=gaps.of_declarations(run, found, floor) if floor.complete else None,
        sides=sides(run, found, floor),
        where=profile(found, square),
    )
