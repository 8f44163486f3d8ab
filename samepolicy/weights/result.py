"""What a comparison of weights says: each tensor's relation, counts, and a verdict in a sentence."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from samepolicy.errors import InputError
from samepolicy.structure.fact import counted
from samepolicy.summary import json_number

Status: TypeAlias = Literal[
    "equal",
    "equal after cast",
    "old",
    "scaled",
    "transposed",
    "permuted",
    "moved",
    "zero",
    "nan",
    "missing",
    "shape differs",
    "differs",
]
SAME = ("equal", "equal after cast")
"""What does not make two models different."""


@dataclass(frozen=True, kw_only=True)
class Relation:
    """How a tensor of A and that of the same name of B belong together.

    Attributes:
        name: its canonical name.
        status: equal; equal after cast (one side is the other, rounded to `dtype`); old (equal to a checkpoint);
            scaled (B is `factor` times A, up to rounding); transposed; permuted (the same rows or columns in another
            order); moved (equal to another tensor of the other side); zero; nan (or infinite); missing; shape differs;
            differs.
        side: the side that it is said of, where it is one: "A", "B" or "A and B".
        dtype: the dtype of the cast.
        factor: B over A.
        other: the checkpoint, the other tensor's name, or "rows" or "columns".
        relative_error: length of B - A over that of A, from sketches, right to about 5 %; NaN where it has no meaning.
        shapes: both shapes, where they differ.
        count: values that are not finite, on the side that has more of them.
    """

    name: str
    status: Status
    side: str = ""
    dtype: str = ""
    factor: float | None = None
    other: str = ""
    relative_error: float = float("nan")
    shapes: tuple[tuple[int, ...], ...] = ()
    count: int = 0

    @property
    def detail(self) -> str:
        """What the status leaves open, in words."""
        size = "" if math.isnan(self.relative_error) else f"relative error {_error(self.relative_error)}"
        words = {
            "equal": "",
            "equal after cast": f"to {self.dtype}",
            "old": f"{self.side} holds that of {self.other}",
            "scaled": "" if self.factor is None else f"B = {self.factor:.4g} × A",
            "transposed": "",
            "permuted": f"{self.other} in another order",
            "moved": f"{self.side} holds the other side's {self.other}",
            "zero": f"{self.side} is 0 throughout",
            "nan": f"{counted(self.count, 'value')} not finite in {self.side}",
            "missing": f"not in {self.side}",
            "shape differs": " against ".join(str(list(shape)) for shape in self.shapes),
            "differs": size,
        }
        shown = size if self.status in ("old", "moved") else ""
        return ", ".join(part for part in (words[self.status], shown) if part)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; what has no meaning for the status is left out."""
        given = {"side": self.side, "dtype": self.dtype, "factor": self.factor, "other": self.other}
        shapes = {"shapes": [list(shape) for shape in self.shapes]} if self.shapes else {}
        return {
            "name": self.name,
            "status": self.status,
            **{key: value for key, value in given.items() if value not in ("", None)},
            **shapes,
            **({"count": self.count} if self.count else {}),
            "relative_error": json_number(self.relative_error),
        }

    def __str__(self) -> str:
        """Name, status and detail in a line."""
        return f"{self.name}: {self.status}" + (f" ({self.detail})" if self.detail else "")


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """Two models, tensor by tensor.

    Attributes:
        a: what the one is called.
        b: what the other is called.
        relations: of each tensor, in the order of A, then what only B has; what both sides tie is one.
        tied: names that stand for one tensor on both sides.
        notes: what a reader should know, in sentences.
    """

    a: str
    b: str
    relations: tuple[Relation, ...]
    tied: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Relation:
        """The relation of this tensor.

        Raises:
            InputError: neither side has it.
        """
        name = next((one for one, other in self.tied if other == name), name)
        for relation in self.relations:
            if relation.name == name:
                return relation
        raise InputError(f"Neither model has a tensor {name!r}; the first is {self.relations[0].name!r}.")

    @property
    def counts(self) -> Mapping[str, int]:
        """How many tensors have each status, in the order of `Status`; statuses without any are left out."""
        found = Counter(relation.status for relation in self.relations)
        return {status: found[status] for status in get_args(Status) if found[status]}

    @property
    def different(self) -> tuple[Relation, ...]:
        """The tensors that are not the same."""
        return tuple(relation for relation in self.relations if relation.status not in SAME)

    @property
    def same(self) -> bool:
        """Whether every tensor is equal, or equal after a cast."""
        return not self.different

    @property
    def exit_code(self) -> int:
        """0 where the weights are the same, 1 where they are not."""
        return int(not self.same)

    @property
    def sentence(self) -> str:
        """The verdict."""
        total = len(self.relations)
        if self.different:
            kinds = [f"{count} {status}" for status, count in self.counts.items() if status not in SAME]
            verb = "is" if len(self.different) == 1 else "are"
            return (
                f"The weights differ: {len(self.different)} of {counted(total, 'tensor')} {verb} not the same "
                f"({', '.join(kinds)})."
            )
        cast = [relation.dtype for relation in self.relations if relation.status == "equal after cast"]
        if cast:
            dtypes = " and ".join(sorted(set(cast)))
            return f"The weights are the same after a cast: {len(cast)} of {counted(total, 'tensor')} to {dtypes}."
        return f"The weights are the same: all {counted(total, 'tensor')} are equal."

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {
            "schema": 1,
            "a": self.a,
            "b": self.b,
            "same": self.same,
            "sentence": self.sentence,
            "counts": dict(self.counts),
            "tied": [list(pair) for pair in self.tied],
            "notes": list(self.notes),
            "tensors": [relation.as_dict() for relation in self.relations],
        }

    def __str__(self) -> str:
        """The verdict, a line for each tensor that is not the same, and the notes."""
        notes = [f"Note: {note}." for note in self.notes]
        return "\n".join([self.sentence, *(f"  {relation}" for relation in self.different), *notes])


def _error(value: float) -> str:
    """A relative error in two digits; below what float32 sketches can tell, only that."""
    return "below 1e-06" if value < 1e-6 else f"{value:.2g}"
