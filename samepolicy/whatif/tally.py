"""What one rule did to some parts of a run: sums that add up, and the responses that lost most."""

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from samepolicy.corrections import Stats
from samepolicy.pareto import Tail
from samepolicy.whatif.part import Part
from samepolicy.whatif.rules import Rule

FIRST = 10
"""How many responses are named for each rule."""


@dataclass(frozen=True, kw_only=True)
class Lost:
    """A response that a rule takes tokens from.

    Attributes:
        sequence: its number in the run, from 0.
        step: its training step, where the run says so.
        group: its prompt.
        sample: its number within step or group.
        tokens: its sampled tokens.
        lost: share of them that is left without weight.
        mean_abs: mean abs d of its tokens, nats/token.
        advantage: their mean advantage; NaN without.
    """

    sequence: int
    step: int | None
    group: str | None
    sample: int | None
    tokens: int
    lost: float
    mean_abs: float
    advantage: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Tally:
    """What one rule did; `+` is that of two sets of responses together.

    Attributes:
        rule: the rule.
        stats: the correction's own statistics.
        carrying: tokens with a weight above 0.
        zeroed: tokens that stay in the mask with weight 0.
        sequences: responses with a token that carries weight.
        tail: the largest log-weights.
        first: the responses that lost most, worst first.
        signed: Σ w and count of the tokens with A > 0, and of those with A < 0, [2, 2].
    """

    rule: Rule
    stats: Stats
    carrying: int
    zeroed: int
    sequences: int
    tail: Tail
    first: tuple[Lost, ...]
    signed: np.ndarray

    @classmethod
    def of(cls, rule: Rule, part: Part) -> tuple[Self, tuple[np.ndarray, ...] | None]:
        """Correct one part; also gives Σ w·A, kept tokens and Σ w of each prompt, if the part has advantages."""
        weights, keep, stats = part.corrected(rule.correction)
        carrying = weights > 0
        left = part.per_response(carrying)
        signed = np.zeros((2, 2))
        sums: tuple[np.ndarray, ...] | None = None
        if "advantage" in part.columns:
            with np.errstate(invalid="ignore", over="ignore"):
                for i, side in enumerate((part.advantage > 0, part.advantage < 0)):
                    signed[i] = weights[side].sum(dtype=np.float64), np.count_nonzero(side)
                sums = (weights * part.advantage, keep & part.usable, np.where(part.usable, weights, 0.0))
                sums = tuple(part.per_prompt(s) for s in sums)
        found = cls(
            rule=rule,
            stats=_one_row(stats),
            carrying=int(np.count_nonzero(carrying)),
            zeroed=int(np.count_nonzero(keep & ~carrying)),
            sequences=int(np.count_nonzero(left)),
            tail=Tail(np.asarray(Tail.reduce(np.log(weights[carrying], dtype=np.float64)))),
            first=_first(part, left),
            signed=signed,
        )
        return found, sums

    def __add__(self, other: Self) -> Self:
        """That of both; of responses that lost as much the one that comes first stays."""
        return replace(
            self,
            stats=_one_row(self.stats + other.stats),
            carrying=self.carrying + other.carrying,
            zeroed=self.zeroed + other.zeroed,
            sequences=self.sequences + other.sequences,
            tail=self.tail + other.tail,
            first=tuple(sorted([*self.first, *other.first], key=lambda x: (-x.lost, -x.mean_abs, x.sequence))[:FIRST]),
            signed=self.signed + other.signed,
        )

    @property
    def skew(self) -> float:
        """Mean weight where A > 0 minus that where A < 0."""
        (positive, n), (negative, m) = self.signed
        return float(positive / n - negative / m) if n and m else float("nan")


def _one_row(stats: Stats) -> Stats:
    """The same statistics in one row of sums, so that they do not grow with the run."""
    row = [1.0 if name == "scale" else stats.sums[name] for name in stats.fields]
    return Stats(np.asarray([row]), stats.fields, stats.masks)


def _first(part: Part, left: np.ndarray) -> tuple[Lost, ...]:
    """The responses that lost the largest share of their tokens; the larger mean abs d comes first."""
    lost = np.where(part.lengths > 0, 1 - left / np.maximum(part.lengths, 1), 0.0)
    rows = np.flatnonzero(lost > 0)
    order = rows[np.lexsort((-part.mean_abs[rows], -lost[rows]))][:FIRST]
    return tuple(_lost(part, int(i), float(lost[i])) for i in order)


def _lost(part: Part, row: int, lost: float) -> Lost:
    """One response by what it is called."""
    named: dict[str, Any] = {n: part.run[n][row] for n in ("step", "group", "sample") if n in part.run}
    return Lost(
        sequence=part.first + row,
        step=int(named["step"]) if "step" in named else None,
        group=str(named["group"]) if "group" in named else None,
        sample=int(named["sample"]) if "sample" in named else None,
        tokens=int(part.lengths[row]),
        lost=lost,
        mean_abs=float(part.mean_abs[row]),
        advantage=float(part.mean_advantage[row]),
    )
