"""Exact constants where a log-prob should be: which tokens hold one, and where in the responses they stand."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from samepolicy.causes.base import Rung, SideWord
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import DECLARED, ArrayStep, Settings
from samepolicy.records.declared import samplings

SURE = -0.05
"""A value that is exactly 0 is odd only where the prediction is below this, nats, and below 8 floors."""

SENTINEL = -1000.0
"""A value at or below this is no log-prob of a sampled token."""

ENOUGH = 10
"""Tokens that prove a constant."""

UNLIKELY = -1.5
"""A truncated sampler is certain of likely tokens only; zeros at tokens below this are of another kind, nats."""

RATE = 0.25
"""They must stand there at this share of the rate at which they stand at likely tokens."""

ALL = 0.98
"""A column that holds zeros at nearly all uncertain tokens may be that of a sampler that never chooses."""


@dataclass(frozen=True)
class Held(ArrayStep):
    """Some tokens hold a constant instead of a log-prob."""

    order: ClassVar[int] = Rung.SAMPLING.order
    value: float
    tokens: tuple[int, ...]

    def apply(self, predicted: np.ndarray, reference: Reference) -> np.ndarray:
        """The constant at those tokens."""
        found = predicted.copy()
        found[list(self.tokens)] = self.value
        return found


@dataclass(frozen=True)
class Stretch:
    """Neighbouring tokens under the mask that hold a constant.

    Attributes:
        row: the response.
        first: its first token, counted over all responses.
        last: its last one.
        begins: nothing under the mask stands before it.
        ends: nothing under the mask stands behind it.
    """

    row: int
    first: int
    last: int
    begins: bool
    ends: bool

    @property
    def size(self) -> int:
        """Tokens of it."""
        return self.last - self.first + 1

    @property
    def whole(self) -> bool:
        """Whether it is all that is counted of a response."""
        return self.begins and self.ends

    @property
    def end(self) -> bool:
        """Whether it is the last token alone."""
        return self.ends and not self.begins and self.size == 1


@dataclass(frozen=True)
class Constant:
    """A constant in a side's column.

    Attributes:
        side: whose column.
        value: the constant; NaN where there is no value.
        odd: where it stands under the mask and no log-prob can be it, and beside such tokens, bool [tokens].
        known: what is predicted there, nats [tokens].
        stretches: where, in pieces.
        row: the response of each token, int [tokens].
        mask: which tokens are counted, bool [tokens].
    """

    side: SideWord
    value: float
    odd: np.ndarray
    known: np.ndarray
    stretches: tuple[Stretch, ...]
    row: np.ndarray
    mask: np.ndarray

    @property
    def count(self) -> int:
        """Tokens that hold it."""
        return int(self.odd.sum())

    @property
    def clustered(self) -> bool:
        """Whether it comes in stretches, more than tokens by chance do."""
        parts = [s for s in self.stretches if not s.whole]
        if not parts:
            return False
        counted = np.isin(self.row, [s.row for s in parts]) & self.mask
        held = sum(s.size for s in parts)
        share = held / max(int(counted.sum()), 1)
        return held / len(parts) >= 2 / max(1 - share, 1e-9) or all(s.begins or s.ends for s in parts)

    @property
    def settings(self) -> Settings:
        """What undoes it."""
        tokens = tuple(np.flatnonzero(self.odd).tolist())
        return Settings(arrays=(Held(self.value, tokens),)) if np.isfinite(self.value) and self.value <= 0 else DECLARED

    @property
    def told(self) -> str:
        """The constant in words."""
        return "missing" if np.isnan(self.value) else f"exactly {self.value:g}"


def constants(evidence: Evidence) -> Iterator[Constant]:
    """The constants of the column that is explained; without a model, of either side's against the other's."""
    run = evidence.run
    sides: tuple[SideWord, ...] = ("rollout", "trainer") if evidence.mode == "pair" else (evidence.side,)
    if evidence.mode == "declared":
        return
    for side in sides:
        column = np.asarray(run[f"{side}_logp"].values, dtype=np.float64)
        other = np.asarray(run[f"{'trainer' if side == 'rollout' else 'rollout'}_logp"].values, dtype=np.float64)
        if len(column) != len(evidence.row) or (evidence.mode == "pair" and len(other) != len(column)):
            continue
        yield from _constants(evidence, side, column, other if evidence.mode == "pair" else evidence.base)


def _constants(evidence: Evidence, side: SideWord, column: np.ndarray, known: np.ndarray) -> Iterator[Constant]:
    """The constants of one column, the most frequent first."""
    mask = evidence.run.mask.values
    measured = evidence.floor[np.isfinite(evidence.floor)]
    floor = np.nan_to_num(evidence.floor, nan=float(np.median(measured)) if len(measured) else 0.0)
    zero = (column == 0) & (known < np.minimum(SURE, -8 * floor))
    odd = mask & (zero | (column <= SENTINEL) | (column > 0) | np.isnan(column))
    values, counts = np.unique(column[odd], return_counts=True)
    for value in values[np.argsort(-counts)]:
        same = mask & (np.isnan(column) if np.isnan(value) else column == value)
        here = odd & same
        if here.sum() < ENOUGH or (value == 0 and not _no_truncation(evidence, side, here, known)):
            continue
        parts = tuple(_stretches(evidence, same, here))
        whole = np.zeros(len(column), dtype=bool)
        for part in parts:
            whole[part.first : part.last + 1] = True
        yield Constant(side, float(value), whole, known, parts, evidence.row, mask)


def _no_truncation(evidence: Evidence, side: SideWord, odd: np.ndarray, known: np.ndarray) -> bool:
    """Whether zeros stand at unlikely tokens, too, about as often as at likely ones, which no kept set makes."""
    sampling = samplings(evidence.run)[side == "trainer"]
    drawn = evidence.run.rollout.sampling
    if sampling.top_k == 1 or (drawn is not None and (drawn.temperature == 0 or drawn.top_k == 1)):
        return False
    mask = evidence.run.mask.values
    unlikely, likely = mask & (known < UNLIKELY), mask & (known >= UNLIKELY) & (known < SURE)
    count = int((odd & unlikely).sum())
    rates = [(odd & part).sum() / max(part.sum(), 1) for part in (unlikely, likely)]
    if odd.sum() > ALL * (unlikely | likely).sum():
        return False
    return count >= max(ENOUGH // 2, 0.05 * odd.sum()) and bool(rates[0] >= RATE * rates[1])


def _stretches(evidence: Evidence, same: np.ndarray, odd: np.ndarray) -> Iterator[Stretch]:
    """Neighbouring tokens of one response and of the same value, of which one at least is odd."""
    mask, row = evidence.run.mask.values, evidence.row
    tokens, counted = np.flatnonzero(same), np.flatnonzero(mask)
    cuts = np.flatnonzero((np.diff(tokens) > 1) | (np.diff(row[tokens]) > 0)) + 1
    edge = np.diff(row[counted]) > 0
    first, last = counted[np.append(True, edge)], counted[np.append(edge, True)]
    for part in np.split(tokens, cuts):
        if odd[part].any():
            begins, ends = bool(np.isin(part[0], first)), bool(np.isin(part[-1], last))
            yield Stretch(int(row[part[0]]), int(part[0]), int(part[-1]), begins, ends)
