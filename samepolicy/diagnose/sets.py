"""A set of causes, undone together: what it explains, what opens again without a member, and which members stay."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from samepolicy.causes import Cause, Settings, Undone
from samepolicy.causes.base import alike
from samepolicy.diagnose.judging import Estimate, Judge

EXPLAINED, SURELY = 0.85, 0.7
"""A set is named from this share of the gap, and from this lower bound."""

REOPENS = 0.1
"""A member stays if leaving it out opens this share of the gap again."""

SLOPE = (0.8, 1.2)
"""Where the slope of a member lies."""

CLOSE = 1.2
"""Another cause may be tied with a member if the error with it is at most this many times as large."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One cause in a set, with how it is undone."""

    cause: Cause
    undone: Undone

    @property
    def name(self) -> str:
        """The cause's name."""
        return self.cause.name


@dataclass(frozen=True, kw_only=True)
class CauseSet:
    """Causes of one side.

    Attributes:
        judge: reads numbers; has the evidence.
        members: the causes, in the order in which they were found.
    """

    judge: Judge
    members: tuple[Member, ...] = ()

    def __len__(self) -> int:
        """How many causes there are."""
        return len(self.members)

    @cached_property
    def settings(self) -> Settings:
        """All members at once."""
        settings = Settings()
        for member in self.members:
            settings |= member.undone.settings
        return settings

    @property
    def names(self) -> set[str]:
        """The causes' names."""
        return {member.name for member in self.members}

    def plus(self, *others: Member) -> "CauseSet":
        """The set with more causes."""
        return CauseSet(judge=self.judge, members=(*self.members, *others))

    def without(self, i: int) -> "CauseSet":
        """The set without member i."""
        return CauseSet(judge=self.judge, members=self.members[:i] + self.members[i + 1 :])

    @cached_property
    def error(self) -> float:
        """Mean absolute error on the probe, nats."""
        return self.judge.evidence.error(self.settings)

    @cached_property
    def explained(self) -> Estimate:
        """The share of the gap that the set explains."""
        return self.judge.explained(self.settings)

    @property
    def enough(self) -> bool:
        """Whether there are causes, and they explain enough to be named."""
        return bool(self.members) and explains(self.explained)

    def reopened(self, i: int) -> Estimate:
        """The share of the gap that opens again without member i."""
        return self.judge.reopened(self.settings, self.without(i).settings)

    def slope(self, i: int) -> float:
        """How much of what undoing member i moves was really there; NaN where it moves too few tokens."""
        return self.judge.slope(self.settings, self.without(i).settings)

    def stays(self, i: int) -> bool:
        """Whether member i belongs to the set: the gap surely opens again without it, and it acts in its full size."""
        again = self.reopened(i)
        sure = again.low > 0 or self.judge.exact(self.settings, self.without(i).settings)
        return again.value >= REOPENS and sure and SLOPE[0] <= self.slope(i) <= SLOPE[1]

    def pruned(self, *, keep: int) -> "CauseSet":
        """The set without the members that do not stay, weakest first; the first `keep` are proved and do."""
        weak = [(self.reopened(i).value, i) for i in range(keep, len(self)) if not self.stays(i)]
        return self.without(min(weak)[1]).pruned(keep=keep) if weak else self

    def tied(self, i: int, others: Iterable[Member]) -> tuple[str, ...]:
        """Those of some other causes that would do as well in the place of member i."""
        rest, found = self.without(i), []
        for other in others:
            if other.name in self.names or rest.settings.clashes(other.undone.settings):
                continue
            instead = rest.plus(other)
            close = instead.error <= CLOSE * self.error + 1e-9
            if alike(other.name, self.members[i].name) or (close and self.judge.tied(self.settings, instead.settings)):
                found.append(other.name)
        return tuple(found)


def explains(share: Estimate) -> bool:
    """Whether so much of a gap is enough to name what explains it."""
    return share.value >= EXPLAINED and share.low >= SURELY
