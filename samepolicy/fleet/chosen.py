"""Some of a run's responses, chosen while it streams by: known by number, to be read whole afterwards."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Float, Int

from samepolicy.records.run import Run

_ODD, _FIRST, _SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


@dataclass(frozen=True, eq=False)
class Chosen:
    """The responses that come first in some order, as many as there is room for; `+` chooses among both.

    The choice is the same however the run was cut: what comes first among all comes first in its own part, too.

    Attributes:
        number: their numbers among all responses, int64 [kept], in the order of the choice.
        rank: what they are ordered by, smallest first, float64 [kept]; of equal ones the first in the run comes first.
        tokens: the tokens of each, masked ones included, int64 [kept].
        most: how many there may be.
        room: how many tokens they may have together; the very first one stays in any case.
        looked: how many responses were looked at.

    >>> some = Chosen.of(np.array([3.0, 1.0]), np.array([5, 5]), first=0, most=2, room=100)
    >>> more = Chosen.of(np.array([2.0]), np.array([5]), first=2, most=2, room=100)
    >>> (some + more).number.tolist(), (some + more).looked
    ([1, 2], 3)
    """

    number: Int[np.ndarray, " kept"]
    rank: Float[np.ndarray, " kept"]
    tokens: Int[np.ndarray, " kept"]
    most: int
    room: int
    looked: int

    @classmethod
    def of(
        cls,
        rank: Float[np.ndarray, " responses"],
        tokens: Int[np.ndarray, " responses"],
        *,
        first: int,
        most: int,
        room: int,
    ) -> Self:
        """The choice among the responses of one part; one whose rank is NaN is not chosen.

        Args:
            rank: what to order by, smallest first.
            tokens: the tokens of each.
            first: number of the part's first response among all.
            most: how many there may be.
            room: how many tokens they may have together.
        """
        known = np.flatnonzero(~np.isnan(rank))
        return cls(known + first, rank[known], tokens[known], most, room, len(rank))._cut()

    def __add__(self, other: Self) -> Self:
        """The choice among both."""
        number, rank, tokens = (
            np.concatenate([getattr(self, n), getattr(other, n)]) for n in ("number", "rank", "tokens")
        )
        return type(self)(number, rank, tokens, self.most, self.room, self.looked + other.looked)._cut()

    def _cut(self) -> Self:
        """In order, and only what there is room for."""
        order = np.lexsort((self.number, self.rank))[: self.most]
        fits = np.cumsum(self.tokens[order]) <= self.room
        fits[:1] = True
        kept = order[fits]
        return replace(self, number=self.number[kept], rank=self.rank[kept], tokens=self.tokens[kept])


@dataclass(frozen=True)
class Draw:
    """Draws responses by chance, each as likely as any other: those whose numbers hash to the least.

    Attributes:
        most: how many.
        room: how many tokens they may have together; the draw ends before the first that has no room.
        seed: another seed draws others.
    """

    most: int
    room: int
    seed: int = 0
    columns: ClassVar[tuple[str, ...]] = ("response_ids",)

    def __call__(self, run: Run, first: int) -> Chosen:
        """Draw among the responses of one part."""
        rank = chance(np.arange(first, first + len(run)), self.seed)
        return Chosen.of(rank, run.lengths, first=first, most=self.most, room=self.room)


def chance(number: Int[np.ndarray, " n"], seed: int = 0) -> Float[np.ndarray, " n"]:
    """A number in [0, 1) for each number, as if drawn by chance, and always the same.

    Reference: Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (OOPSLA 2014), `mix64`.

    >>> bool(abs(chance(np.arange(10_000)).mean() - 0.5) < 0.01), chance(np.arange(2)).round(3).tolist()
    (True, [0.883, 0.432])
    """
    with np.errstate(over="ignore"):
        z = (number.astype(np.uint64) + np.uint64(1) + np.uint64(seed) * _SECOND) * _ODD
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) / 2.0**53
