"""The search: which set of causes, undone together, closes the gap of one side.

Forward by mean absolute error on the probe, refitting what was found before; then every number is read on the other
half of the prompts. A set is named if it explains enough, and a member stays if the gap opens again without it.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from samepolicy.causes import Cause, Evidence, Settings, Undone
from samepolicy.causes.base import alike
from samepolicy.causes.evidence import simplest
from samepolicy.causes.unavailable import Clash
from samepolicy.diagnose.judging import Estimate, Judge
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

EXPLAINED, SURELY = 0.85, 0.7
"""A set is named from this share of the gap, and from this lower bound."""

REOPENS = 0.1
"""A member stays if leaving it out opens this share of the gap again."""

ENOUGH = 1 - REOPENS / 2
"""Where a set explains so much, no other cause could stay beside it, and one that could not be tried is not needed."""

SLOPE = (0.8, 1.2)
"""Where the slope of a member lies."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One cause in a set, with how it is undone."""

    cause: Cause
    undone: Undone


@dataclass(kw_only=True)
class Found:
    """What the search found for one side.

    Attributes:
        judge: reads numbers; has the evidence.
        members: the set that is named, in ladder order; empty where nothing is.
        explained: what the set explains.
        slopes: each member's slope by cause.
        reopened: what opens again without a member, by cause.
        alternatives: for each cause those that explain as much.
        closest: the best set that is not good enough, and what it explains.
        unchecked: causes that could not be tried, and what it would take.
    """

    judge: Judge
    members: list[Member] = field(default_factory=list)
    explained: Estimate | None = None
    slopes: dict[str, float] = field(default_factory=dict)
    reopened: dict[str, Estimate] = field(default_factory=dict)
    alternatives: dict[str, tuple[str, ...]] = field(default_factory=dict)
    closest: tuple[list[Member], Estimate] | None = None
    unchecked: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> Settings:
        """All members at once."""
        return together(self.members)


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
        if self.judge.ratio(Settings()).value <= self.judge.limit:
            return self.found
        best: tuple[list[Member], Estimate] = ([], Estimate(-math.inf, math.nan, math.nan))
        near = best  # where no member of a set stays
        reached: list[list[Member]] = []
        for start in self._starts(list(proved)):
            grown = self._forward([*proved, *start], reached)
            reached.append(grown)
            members = self._backward(grown, len(proved))
            best = self._better(best, members)
            if self._accepted(*best):
                break
            near = self._better(near, grown)
        if best[0]:
            self._settle(*best, keep=len(proved))
        elif near[0]:
            self.found.closest = near
        return self.found

    def _better(self, one: tuple[list[Member], Estimate], members: list[Member]) -> tuple[list[Member], Estimate]:
        """A set or another one, whichever explains more."""
        share = self.judge.explained(together(members))
        return (members, share) if share.value > one[1].value else one

    def _starts(self, proved: list[Member]) -> Iterator[list[Member]]:
        """First causes, most promising first; nothing where the proved ones explain all.

        What arrays alone take most of is taken before anything that runs a model is tried.
        """
        if self._done(proved):
            yield []
            return
        free = [c for c in self.causes if c.cost == 0 and self.evidence.mode != "pair"]
        arrays = self._candidates(proved, free)[:1]
        begun = {member.cause.name for gain, member in arrays if gain >= MAINLY}
        if begun:
            yield [arrays[0][1]]
        worth = [one for one in self._candidates(proved, self.causes) if one[0] >= least(MOST)]
        self._adds_up = sum(1 - (1 - gain) ** 2 for gain, _ in worth[:MOST]) >= SURELY
        starts = [member for gain, member in worth[:STARTS] if gain >= max(least(2), FAIR * worth[0][0])]
        if not worth and not begun:
            yield []
        for member in starts or [member for _, member in worth[:1]]:
            if member.cause.name not in begun:
                yield [member]
            self._again = {member.cause.name for _, member in worth}

    def _forward(self, members: list[Member], reached: Sequence[list[Member]]) -> list[Member]:
        """Add what helps most until nothing does, or until a smaller set that was reached before explains as much."""
        while self._adds_up and len(members) < MOST and not self._done(members):
            smaller = [self._error(one) for one in reached if len(one) < len(members)]
            if min(smaller, default=math.inf) <= self._error(members):
                break
            tried = self._candidates(members, self.causes)
            if not tried or tried[0][0] < least(MOST - len(members)):
                break
            members = self._refitted([*members, tried[0][1]])
        return members

    def _done(self, members: list[Member]) -> bool:
        """Whether a set leaves rounding only, or a few tokens that no cause of the whole would leave."""
        if not members:
            return False
        if self.evidence.within(together(members)) >= BULK:
            return True
        if self.judge.explained(together(members)).value >= ENOUGH:
            return True  # what is left is less than a further cause would have to open again
        return self._error(members) <= self._noise and self.judge.ratio(together(members)).value <= self.judge.limit

    @property
    def _noise(self) -> float:
        """The mean absolute error that rounding alone leaves at most."""
        return float(self.evidence.floor[self.evidence.probe].mean())

    def _error(self, members: list[Member]) -> float:
        """Mean absolute error of a set on the probe."""
        return self.evidence.error(together(members))

    def _candidates(self, members: list[Member], causes: Sequence[Cause]) -> list[tuple[float, Member]]:
        """What each of some causes takes away beside a set, most first; dear ones only while cheap ones leave a gap."""
        evidence = self.evidence.given(together(members))
        before, taken = evidence.error(), {m.cause.name for m in members} | self._hopeless
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
            if not members and gain < 1 - WORSE:
                self._hopeless.add(cause.name)
        for _, member in tried:
            self._seen.setdefault(member.cause.name, member)
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

    def _refitted(self, members: list[Member]) -> list[Member]:
        """Each member fitted again beside the others; the last one was just fitted so."""
        members = list(members)
        for i in range(len(members) - 1):
            others = members[:i] + members[i + 1 :]
            again = self._best(members[i].cause, self.evidence.given(together(others)))
            if again is not None and self._error([*others, again]) < self._error(members):
                members[i] = again
        return members

    def _backward(self, members: list[Member], keep: int) -> list[Member]:
        """Leave out what the gap does not open again without, weakest first."""
        members = list(members)
        while len(members) > keep:
            weak = [
                (self._reopened(members, i).value, i) for i in range(keep, len(members)) if not self._stays(members, i)
            ]
            if not weak:
                return members
            members.pop(min(weak)[1])
        return members

    def _reopened(self, members: list[Member], i: int) -> Estimate:
        """What opens again without member i."""
        return self.judge.reopened(together(members), together(members[:i] + members[i + 1 :]))

    def _stays(self, members: list[Member], i: int) -> bool:
        """Whether a member belongs to the set."""
        again, whole, without = self._reopened(members, i), together(members), together(members[:i] + members[i + 1 :])
        sure = again.low > 0 or self.judge.exact(whole, without)
        return again.value >= REOPENS and sure and SLOPE[0] <= self.judge.slope(whole, without) <= SLOPE[1]

    def _accepted(self, members: list[Member], share: Estimate) -> bool:
        """Whether a set explains enough."""
        return bool(members) and explains(share)

    def _settle(self, members: list[Member], share: Estimate, *, keep: int) -> None:
        """Write down what was found."""
        if not self._accepted(members, share):
            self.found.closest = (members, share)
            self.found.members = members[:keep]
            return
        found = self.found
        found.members = sorted(members, key=lambda m: m.cause.rung.order)
        found.explained = share
        for i, member in enumerate(found.members):
            rest = together(found.members[:i] + found.members[i + 1 :])
            found.slopes[member.cause.name] = self.judge.slope(found.settings, rest)
            found.reopened[member.cause.name] = self.judge.reopened(found.settings, rest)
            found.alternatives[member.cause.name] = self._tied(found.members, i)

    def _tied(self, members: list[Member], i: int) -> tuple[str, ...]:
        """Causes that would do as well in the place of member i."""
        others, mine = members[:i] + members[i + 1 :], members[i].cause.name
        found = []
        for name, member in self._seen.items():
            if name in {m.cause.name for m in members} or together(others).clashes(member.undone.settings):
                continue
            settings = together([*others, member])
            close = self.evidence.error(settings) <= 1.2 * self.evidence.error(together(members)) + 1e-9
            if alike(name, mine) or (close and self.judge.tied(together(members), settings)):
                found.append(name)
        return tuple(found)


def explains(share: Estimate) -> bool:
    """Whether so much of a gap is enough to name what explains it."""
    return share.value >= EXPLAINED and share.low >= SURELY


def least(missing: int) -> float:
    """The share of the mean absolute error that a cause must take for it and the other missing ones to explain all.

    Of n causes that add up like noise, the largest takes 1 - sqrt(1 - 1 / n) at least; `FAIR` of that is asked for, and
    no more of the last one, which leaves rounding.

    >>> [round(least(missing), 3) for missing in (4, 3, 2, 1)]
    [0.067, 0.092, 0.146, 0.146]
    """
    return FAIR * (1 - math.sqrt(1 - 1 / max(missing, 2)))


def together(members: Sequence[Member]) -> Settings:
    """All settings of a set at once."""
    settings = Settings()
    for member in members:
        settings |= member.undone.settings
    return settings


def finite(value: float) -> float | None:
    """The number, or None where it is none."""
    return float(value) if np.isfinite(value) else None
