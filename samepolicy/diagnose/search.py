"""The search: which set of causes, undone together, closes the gap of one side.

Forward by mean absolute error on the probe, refitting what was found before; then every number is read on the other
half of the prompts. A set is named if it explains enough, and a member stays if the gap opens again without it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from samepolicy.causes import Cause, Evidence, Settings, Undone
from samepolicy.causes.evidence import simplest
from samepolicy.causes.unavailable import Clash
from samepolicy.diagnose.judging import Estimate, Judge
from samepolicy.diagnose.sets import REOPENS, SURELY, CauseSet, Member
from samepolicy.errors import SamePolicyError

MOST = 4
"""Causes of one side at most."""

FAIR = 0.5
"""A cause is looked at further if it takes this part of what the largest of all that are still missing would take."""

WORSE = 1.5
"""A cause whose best way makes the error this many times larger at first is not tried beside others."""

MAINLY = 0.5
"""A cause that arrays alone show is taken first if it takes this share of the mean absolute error."""

STARTS = 4
"""Causes that a set may begin with; but for the first, each must look like half of the gap, and half as good as it."""

BULK = 0.96
"""Where this share of the tokens is within rounding, the rest is no second cause."""

ENOUGH = 1 - REOPENS / 2
"""Where a set explains so much, no other cause could stay beside it, and one that could not be tried is not needed."""


@dataclass(kw_only=True)
class Found:
    """What the search found for one side.

    Attributes:
        judge: reads numbers; has the evidence.
        members: the set that is named, in ladder order; where none is, what arrays have proved.
        explained: what the set explains.
        slopes: each member's slope by cause.
        reopened: what opens again without a member, by cause.
        alternatives: for each cause those that explain as much.
        closest: the best set where it is not good enough to be named.
        unchecked: causes that could not be tried, and what it would take.
        tried: causes that could.
    """

    judge: Judge
    members: tuple[Member, ...] = ()
    explained: Estimate | None = None
    slopes: dict[str, float] = field(default_factory=dict)
    reopened: dict[str, Estimate] = field(default_factory=dict)
    alternatives: dict[str, tuple[str, ...]] = field(default_factory=dict)
    closest: CauseSet | None = None
    unchecked: dict[str, str] = field(default_factory=dict)
    tried: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """All members at once."""
        return CauseSet(judge=self.judge, members=self.members).settings


class Search:
    """The search on one piece of evidence."""

    def __init__(self, evidence: Evidence, causes: Sequence[Cause]) -> None:
        """Take only causes that are shown by undoing them."""
        self.evidence = evidence
        self.causes = sorted((c for c in causes if c.proof == "undone"), key=lambda c: (c.cost, c.rung.order))
        self.judge = Judge(evidence)
        self.found = Found(judge=self.judge)
        self._seen: dict[str, Member] = {}
        self._fits: dict[tuple[str, Settings], Member | None] = {}
        self._hopeless: set[str] = set()
        self._adds_up = True  # whether the best causes could explain the gap if they add up like noise
        self._again: set[str] | None = None  # after the first start: dear causes that are worth trying again

    def run(self, proved: Sequence[Member] = ()) -> Found:
        """Search.

        Args:
            proved: causes that arrays have proved; they stay in the set.
        """
        known = CauseSet(judge=self.judge, members=tuple(proved))
        if self.judge.ratio(Settings()).value <= self.judge.limit:
            return self.found
        best: CauseSet | None = None
        near: CauseSet | None = None  # the best of those of which no member stays
        reached: list[CauseSet] = []
        for start in self._starts(known):
            grown = self._forward(known.plus(*start), reached)
            reached.append(grown)
            best = _better(best, grown.pruned(keep=len(known)))
            if best is not None and best.enough:
                break
            near = _better(near, grown)
        self.found.tried = tuple(n for n in dict.fromkeys(n for n, _ in self._fits) if n not in self.found.unchecked)
        if best:
            self._settle(best, known)
        elif near:
            self.found.closest = near
        return self.found

    def _starts(self, known: CauseSet) -> Iterator[list[Member]]:
        """First causes, most promising first; nothing where the proved ones explain all.

        What arrays alone take most of is taken before anything that runs a model is tried.
        """
        if self._done(known):
            yield []
            return
        free = [c for c in self.causes if c.cost == 0 and self.evidence.mode != "pair"]
        arrays = self._candidates(known, free)[:1]
        begun = {member.name for gain, member in arrays if gain >= MAINLY}
        if begun:
            yield [arrays[0][1]]
        worth = [one for one in self._candidates(known, self.causes) if one[0] >= least(MOST)]
        self._adds_up = sum(1 - (1 - gain) ** 2 for gain, _ in worth[:MOST]) >= SURELY
        starts = [member for gain, member in worth[:STARTS] if gain >= max(least(2), FAIR * worth[0][0])]
        if not worth and not begun:
            yield []
        for member in starts or [member for _, member in worth[:1]]:
            if member.name not in begun:
                yield [member]
            self._again = {member.name for _, member in worth}

    def _forward(self, grown: CauseSet, reached: Sequence[CauseSet]) -> CauseSet:
        """Add what helps most until nothing does, or until a smaller set that was reached before explains as much."""
        while self._adds_up and len(grown) < MOST and not self._done(grown):
            if min((one.error for one in reached if len(one) < len(grown)), default=math.inf) <= grown.error:
                break
            tried = self._candidates(grown, self.causes)
            if not tried or tried[0][0] < least(MOST - len(grown)):
                break
            grown = self._refitted(grown.plus(tried[0][1]))
        return grown

    def _done(self, one: CauseSet) -> bool:
        """Whether a set leaves rounding only, or a few tokens that no cause of the whole would leave."""
        if not one.members:
            return False
        if self.evidence.within(one.settings) >= BULK:
            return True
        if one.explained.value >= ENOUGH:
            return True  # what is left is less than a further cause would have to open again
        return one.error <= self._noise and self.judge.ratio(one.settings).value <= self.judge.limit

    @property
    def _noise(self) -> float:
        """The mean absolute error that rounding alone leaves at most."""
        return float(self.evidence.floor[self.evidence.probe].mean())

    def _candidates(self, beside: CauseSet, causes: Sequence[Cause]) -> list[tuple[float, Member]]:
        """What each of some causes takes away beside a set, most first; dear ones only while cheap ones leave a gap."""
        evidence = self.evidence.given(beside.settings)
        before, taken = evidence.error(), beside.names | self._hopeless
        tried: list[tuple[float, Member]] = []
        cost = 0
        for cause in causes:
            if cause.name in taken or (self._again is not None and cause.cost > 1 and cause.name not in self._again):
                continue
            left = (1 - max((g for g, _ in tried), default=0.0)) * before
            if cause.cost > cost and left <= self._noise and evidence.mode != "pair":
                break
            cost = cause.cost
            best = self._best(cause, evidence)
            if best is None:
                continue
            gain = 1 - evidence.error(best.undone.settings) / before if before else 0.0
            tried.append((gain, best))
            if not beside.members and gain < 1 - WORSE:
                self._hopeless.add(cause.name)
        for _, member in tried:
            self._seen.setdefault(member.name, member)
        return sorted(tried, key=lambda one: one[0], reverse=True)

    def _best(self, cause: Cause, evidence: Evidence) -> Member | None:
        """The best way of a cause to be undone, looked for once beside what is known."""
        key = cause.name, evidence.known
        if key not in self._fits:
            self._fits[key] = self._fitted(cause, evidence)
        return self._fits[key]

    def _fitted(self, cause: Cause, evidence: Evidence) -> Member | None:
        """The best way of a cause to be undone; what it lacks is noted."""
        ways: list[tuple[float, Undone]] = []
        try:
            if cause.check(evidence).status == "excluded":
                return None
            for undone in cause.undo(evidence):
                ways.append((evidence.error(undone.settings), undone))
        except Clash:
            pass
        except SamePolicyError as error:
            if not ways:
                self.found.unchecked[cause.name] = str(error).rstrip(".")
        best = simplest(ways)
        return Member(cause=cause, undone=best) if best else None

    def _refitted(self, grown: CauseSet) -> CauseSet:
        """Each member fitted again beside the others; the last one was just fitted so."""
        for i in range(len(grown) - 1):
            others = grown.without(i)
            again = self._best(grown.members[i].cause, self.evidence.given(others.settings))
            if again is not None and others.plus(again).error < grown.error:
                grown = CauseSet(judge=self.judge, members=(*grown.members[:i], again, *grown.members[i + 1 :]))
        return grown

    def _settle(self, best: CauseSet, known: CauseSet) -> None:
        """Write down what was found."""
        found = self.found
        if not best.enough:
            found.closest = best
            found.members = known.members
            return
        ordered = CauseSet(judge=self.judge, members=tuple(sorted(best.members, key=lambda m: m.cause.rung.order)))
        found.members = ordered.members
        found.explained = best.explained
        for i, member in enumerate(ordered.members):
            found.slopes[member.name] = ordered.slope(i)
            found.reopened[member.name] = ordered.reopened(i)
            found.alternatives[member.name] = ordered.tied(i, self._seen.values())


def _better(one: CauseSet | None, other: CauseSet) -> CauseSet | None:
    """A set or another one, whichever explains more; None where neither explains a number."""
    bar = one.explained.value if one is not None else -math.inf
    return other if other.explained.value > bar else one


def least(missing: int) -> float:
    """The share of the mean absolute error that a cause must take for it and the other missing ones to explain all.

    Of n causes that add up like noise, the largest takes 1 - sqrt(1 - 1 / n) at least; `FAIR` of that is asked for, and
    no more of the last one, which leaves rounding.

    >>> [round(least(missing), 3) for missing in (4, 3, 2, 1)]
    [0.067, 0.092, 0.146, 0.146]
    """
    return FAIR * (1 - math.sqrt(1 - 1 / max(missing, 2)))
