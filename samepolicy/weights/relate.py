"""How one tensor of A became one of B, told from their fingerprints alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from samepolicy.weights.fingerprints import Fingerprints
from samepolicy.weights.result import Relation
from samepolicy.weights.tensor import CASTS, TensorPrint

EPSILON = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 1e-5, "float64": 1e-5}
"""Relative rounding that a multiple may show, by dtype; in float32 that of the sketch itself."""


@dataclass(frozen=True)
class Pair:
    """Both models, and earlier ones; relates their tensors.

    Args:
        a: one model.
        b: the other.
        checkpoints: earlier states of either.
    """

    a: Fingerprints
    b: Fingerprints
    checkpoints: Sequence[Fingerprints] = ()
    _known: tuple[Mapping[tuple[Any, ...], str], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tables = [
            {key: name for name, one in reversed(list(side.items())) if not one.constant for key in _keys(one)}
            for side in (self.a, self.b)
        ]
        object.__setattr__(self, "_known", tuple(tables))

    def relate(self, name: str) -> Relation:
        """What became of a tensor that both sides have.

        Args:
            name: its canonical name.
        """
        a, b = self.a[name], self.b[name]
        found = _bad(name, a, b) or _same(name, a, b) or _empty(name, a, b)
        found = found or self._old(name) or self._moved(name) or _arranged(name, a, b)
        if found:
            return found
        if a.shape != b.shape:
            return Relation(name=name, status="shape differs", shapes=(a.shape, b.shape))
        error = relative_error(a, b)
        factor = multiple(a, b)
        if factor is not None:
            return Relation(name=name, status="scaled", factor=factor, relative_error=error)
        return Relation(name=name, status="differs", relative_error=error)

    def _old(self, name: str) -> Relation | None:
        """Equal to an earlier checkpoint; of two sides that are, the one whose checkpoint came first.

        A checkpoint that is the whole of A says nothing about A's age.
        """
        of_a = self._state(name, self.a, [c for c in self.checkpoints if not self._is_a(c)])
        of_b = self._state(name, self.b, self.checkpoints)
        found = [(place, side) for place, side in ((of_b, "B"), (of_a, "A")) if place >= 0]
        if not found:
            return None
        place, side = min(found, key=lambda pair: pair[0])
        error, label = _error(self.a[name], self.b[name]), self.checkpoints[place].label
        return Relation(name=name, status="old", side=side, other=label, relative_error=error)

    def _state(self, name: str, model: Fingerprints, among: Sequence[Fingerprints]) -> int:
        """The index of the last of these checkpoints that a tensor is equal to; -1 where there is none."""
        fits = [c for c in among if name in c and _same(name, c[name], model[name])]
        return next((i for i, c in enumerate(self.checkpoints) if fits and c is fits[-1]), -1)

    def _is_a(self, checkpoint: Fingerprints) -> bool:
        """Whether a checkpoint is the state that A is in."""
        return all(_same(name, self.a[name], one) for name, one in checkpoint.items() if name in self.a)

    def _moved(self, name: str) -> Relation | None:
        """Equal to a tensor of another name on the other side."""
        for side, mine, table in (("B", self.b[name], self._known[0]), ("A", self.a[name], self._known[1])):
            for key in _keys(mine):
                other = table.get(key)
                if other is not None and other != name:
                    error = _error(self.a[name], self.b[name])
                    return Relation(name=name, status="moved", side=side, other=other, relative_error=error)
        return None


def cast_between(a: TensorPrint, b: TensorPrint) -> str | None:
    """The dtype whose rounding turns one tensor into the other; "" where they are equal, None where none does."""
    if equal(a, b):
        return ""
    return _cast(a, b, "whole") if a.shape == b.shape else None


def equal(a: TensorPrint, b: TensorPrint) -> bool:
    """Whether two tensors hold the same values in the same shape."""
    return a.shape == b.shape and a.digest == b.digest


def multiple(a: TensorPrint, b: TensorPrint) -> float | None:
    """The factor f with b = f·a up to rounding; None where there is none."""
    x, y = a.sketch.astype(np.float64), b.sketch.astype(np.float64)
    if not a.norm or not b.norm or a.shape != b.shape:
        return None
    factor = float(x @ y / (x @ x)) if x @ x else 0.0
    rounding = max(EPSILON.get(a.dtype, 1e-5), EPSILON.get(b.dtype, 1e-5))
    slack = max(rounding, min(EPSILON["bfloat16"], abs(factor - 1) / 20))
    off = np.linalg.norm(y - factor * x) / np.linalg.norm(y)
    fits = off <= slack and abs(b.norm - abs(factor) * a.norm) <= slack * b.norm
    return factor if fits and abs(factor - 1) > rounding else None


def relative_error(a: TensorPrint, b: TensorPrint) -> float:
    """Length of b - a over that of a, from the sketches: right to about 5 %; infinite where a is 0."""
    gap = float(np.linalg.norm(b.sketch.astype(np.float64) - a.sketch.astype(np.float64)))
    return gap / a.norm if a.norm else float("inf")


def _error(a: TensorPrint, b: TensorPrint) -> float:
    """The relative error; NaN where the shapes differ."""
    return relative_error(a, b) if a.shape == b.shape else float("nan")


def _bad(name: str, a: TensorPrint, b: TensorPrint) -> Relation | None:
    """Values that are not finite."""
    sides = "".join(side for side, one in (("A", a), ("B", b)) if one.nans + one.infinities)
    if not sides:
        return None
    worst = max(a.nans + a.infinities, b.nans + b.infinities)
    return Relation(name=name, status="nan", side=_and(sides), count=worst)


def _same(name: str, a: TensorPrint, b: TensorPrint) -> Relation | None:
    """Equal, or equal after one side is rounded to another dtype."""
    dtype = cast_between(a, b)
    if dtype is None:
        return None
    if not dtype:
        return Relation(name=name, status="equal", relative_error=0.0)
    return Relation(name=name, status="equal after cast", dtype=dtype, relative_error=relative_error(a, b))


def _empty(name: str, a: TensorPrint, b: TensorPrint) -> Relation | None:
    """One side holds nothing but zeros."""
    sides = "".join(side for side, one in (("A", a), ("B", b)) if one.zero)
    return Relation(name=name, status="zero", side=sides) if sides and a.shape == b.shape else None


def _arranged(name: str, a: TensorPrint, b: TensorPrint) -> Relation | None:
    """The same numbers in other places."""
    error = _error(a, b)
    if a.shape == b.shape[::-1] and _cast(a, b, "whole", "turned") is not None:
        return Relation(name=name, status="transposed", relative_error=error)
    if a.shape == b.shape:
        for what in ("rows", "columns"):
            if _cast(a, b, what) is not None:
                return Relation(name=name, status="permuted", other=what, relative_error=error)
    return None


def _cast(a: TensorPrint, b: TensorPrint, what: str, of_b: str = "") -> str | None:
    """The dtype under which one kind of hash agrees; "" where it does without a cast."""
    for dtype in ("", *CASTS["float64"]):
        pairs = ((a.hashes.get(dtype), b.hashes.get("")), (a.hashes.get(""), b.hashes.get(dtype)))
        for mine, theirs in pairs:
            if mine and theirs and getattr(mine, what) == getattr(theirs, of_b or what):
                return dtype
    return None


def _keys(one: TensorPrint) -> list[tuple[Any, ...]]:
    """What a tensor of these values is looked up by."""
    return [(one.shape, one.digest), *((one.shape, hashes) for hashes in one.hashes.values())]


def _and(sides: str) -> str:
    """Sides as one word: "A", "B" or "A and B"."""
    return " and ".join(sides)
