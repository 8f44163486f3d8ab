"""Tokens by place, probability, turn, version and step: sums of each group, which add up over the parts of a run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Self

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.report.view import View

WIDEST = 512
"""Positions that each have a point of their own; in longer responses neighbours share one."""

EDGES = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0)
"""Bins of the rollout's probability."""

QUANTITIES: dict[str, tuple[str, Callable[[View], np.ndarray]]] = {
    "abs_d": ("mean abs d, nats", lambda v: np.where(v.measured, v.size, np.nan)),
    "d": ("mean d, nats", lambda v: v.value),
    "prob_diff": ("mean abs probability difference", lambda v: v.prob_diff),
    "k3": ("mean k3, nats", lambda v: v.k3),
}
"""What a curve can show: its axis, and the value of each token."""


@dataclass(frozen=True, eq=False)
class Curve:
    """Sums over the tokens of each group.

    Attributes:
        by: what the groups are of, one of `GROUPS`.
        of: the quantities, some of `QUANTITIES`.
        key: a whole number for each group, rising, int64 [groups].
        sums: count of the measured tokens, and the sum of each quantity over them, [groups, 1 + quantities].
    """

    by: str
    of: tuple[str, ...]
    key: np.ndarray
    sums: np.ndarray

    @classmethod
    def of_tokens(cls, by: str, key: np.ndarray, view: View) -> Self:
        """That of tokens with these keys."""
        of = tuple(allowed(view))
        found, label = np.unique(key, return_inverse=True)
        label, counts = label[view.measured], len(found)
        values = [None, *(QUANTITIES[name][1](view)[view.measured] for name in of)]
        sums = [np.bincount(label, weights=w, minlength=counts).astype(np.float64) for w in values]
        return cls(by, of, found.astype(np.int64), np.stack(sums, axis=1))

    def __add__(self, other: Self) -> Self:
        """That of both."""
        wide = self if len(self.of) >= len(other.of) else other
        found, label = np.unique(np.concatenate([self.key, other.key]), return_inverse=True)
        sums = np.zeros((len(found), wide.sums.shape[1]))
        for one, at in ((self, label[: len(self.key)]), (other, label[len(self.key) :])):
            columns = np.asarray([0, *(1 + wide.of.index(name) for name in one.of)])
            sums[np.ix_(at, columns)] += one.sums
        return type(self)(self.by, wide.of, found, sums)


@dataclass(frozen=True)
class Points:
    """Groups as points of an axis.

    Attributes:
        point: number of each group's point, int [groups]; -1 where it has none.
        names: what each point is called.
        at: where it stands on the axis.
        title: what the axis is.
    """

    point: np.ndarray
    names: list[str]
    at: list[float]
    title: str


def allowed(view: View) -> Iterator[str]:
    """The quantities that a run has."""
    return (of for of in QUANTITIES if view.name == "d" or (view.name == "prob_diff" and of == "prob_diff"))


def curves(view: View) -> dict[str, Curve]:
    """Every curve that a run, or one part of it, allows."""
    found = {by: key(view) for by, (key, _) in GROUPS.items()}
    return {by: Curve.of_tokens(by, key, view) for by, key in found.items() if key is not None}


def points(curve: Curve) -> Points:
    """The points that a curve is drawn through."""
    return GROUPS[curve.by][1](curve)


def _position(view: View) -> np.ndarray:
    return view.position


def _end(view: View) -> np.ndarray:
    found: np.ndarray = view.run.lengths[view.row] - 1 - view.position
    return found


def _probability(view: View) -> np.ndarray | None:
    if np.isnan(view.logp("rollout")).all():
        return None
    known = np.exp(np.nan_to_num(view.logp("rollout"), nan=-np.inf, neginf=-np.inf))
    return np.asarray(np.clip(np.searchsorted(EDGES, known, side="right") - 1, 0, len(EDGES) - 2))


def _column(name: str) -> Callable[[View], np.ndarray | None]:
    """A column of whole numbers."""

    def key(view: View) -> np.ndarray | None:
        held = view.run.columns.get(name)
        if held is None or (held.values if isinstance(held, Ragged) else held).dtype.kind not in "iu":
            return None
        return view.column(name).astype(np.int64)

    return key


def _along(title: str) -> Callable[[Curve], Points]:
    """Positions, neighbours together where there are many."""

    def made(curve: Curve) -> Points:
        longest = int(curve.key.max(initial=0)) + 1
        wide = max(1, -(-longest // WIDEST))
        starts = range(0, longest, wide)
        names = [str(s) if wide == 1 else f"{s}–{min(s + wide, longest) - 1}" for s in starts]
        return Points(curve.key // wide, names, [s + (wide - 1) / 2 for s in starts], title)

    return made


def _bins(curve: Curve) -> Points:
    """Bins of the probability that have a token."""
    used = np.flatnonzero(curve.sums[:, 0])
    names = [f"{EDGES[i]:g}–{EDGES[i + 1]:g}" for i in curve.key[used]]
    point = np.full(len(curve.key), -1)
    point[used] = np.arange(len(used))
    return Points(point, names, list(map(float, range(len(used)))), "probability under the rollout")


def _numbers(title: str) -> Callable[[Curve], Points]:
    """Each number by itself."""

    def made(curve: Curve) -> Points:
        names = [str(x) for x in curve.key]
        return Points(np.arange(len(curve.key)), names, [float(x) for x in curve.key], title)

    return made


GROUPS: dict[str, tuple[Callable[[View], np.ndarray | None], Callable[[Curve], Points]]] = {
    "position": (_position, _along("position in the response, from 0")),
    "end": (_end, _along("tokens before the end")),
    "probability": (_probability, _bins),
    "turn": (_column("turn"), _numbers("turn")),
    "version": (_column("policy_version"), _numbers("policy version")),
    "step": (_column("step"), _numbers("training step")),
}
"""How tokens can be grouped along an axis: the key of each token, and the points that keys become."""
