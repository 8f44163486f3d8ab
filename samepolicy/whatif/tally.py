"""What one rule did to the parts of a run so far: sums that add up, and the responses that lost most."""

from dataclasses import dataclass
from typing import Any

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


class Tally:
    """Gathers what one rule did.

    Attributes:
        rule: the rule.
        stats: the correction's own statistics; None before the first part.
        carrying: tokens with a weight above 0.
        zeroed: tokens that stay in the mask with weight 0.
        sequences: responses with a token that carries weight.
        tail: the largest log-weights.
        first: the responses that lost most, worst first.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.stats: Stats | None = None
        self.carrying = self.zeroed = self.sequences = 0
        self.tail = Tail.identity()
        self.first: tuple[Lost, ...] = ()
        self._signed = np.zeros((2, 2))

    def add(self, part: Part) -> tuple[np.ndarray, ...] | None:
        """Correct one part; gives Σ w·A, kept tokens and Σ w of each prompt, if the part has advantages."""
        weights, keep, stats = part.corrected(self.rule.correction)
        self.stats = stats if self.stats is None else self.stats + stats
        carrying = weights > 0
        self.carrying += int(np.count_nonzero(carrying))
        self.zeroed += int(np.count_nonzero(keep & ~carrying))
        left = part.per_response(carrying)
        self.sequences += int(np.count_nonzero(left))
        self.tail += Tail(np.asarray(Tail.reduce(np.log(weights[carrying], dtype=np.float64), self.tail.state)))
        self._note_first(part, left)
        if "advantage" not in part.columns:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            for i, side in enumerate((part.advantage > 0, part.advantage < 0)):
                self._signed[i] += weights[side].sum(dtype=np.float64), np.count_nonzero(side)
            sums = (weights * part.advantage, keep & part.usable, np.where(part.usable, weights, 0.0))
            return tuple(part.per_prompt(s) for s in sums)

    @property
    def skew(self) -> float:
        """Mean weight where A > 0 minus that where A < 0."""
        (positive, n), (negative, m) = self._signed
        return float(positive / n - negative / m) if n and m else float("nan")

    def _note_first(self, part: Part, left: np.ndarray) -> None:
        """Keep the responses that lost the largest share of their tokens; the larger mean abs d comes first."""
        lost = np.where(part.lengths > 0, 1 - left / np.maximum(part.lengths, 1), 0.0)
        rows = np.flatnonzero(lost > 0)
        order = rows[np.lexsort((-part.mean_abs[rows], -lost[rows]))][:FIRST]
        new = [_lost(part, int(i), float(lost[i])) for i in order]
        self.first = tuple(sorted([*self.first, *new], key=lambda x: (-x.lost, -x.mean_abs))[:FIRST])


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
