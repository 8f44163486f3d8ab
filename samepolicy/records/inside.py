"""What was seen inside the two engines of a run: how their tensors compare, and at which step of the network they part.

A run keeps both in its `info`, as the JSON-ready mappings of `samepolicy weights` and `samepolicy layers`; tests of
structure, causes and the report read them from there.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from samepolicy.errors import InputError
from samepolicy.records.run import Run

Kind: TypeAlias = Literal["weights", "layers"]
Fields: TypeAlias = Mapping[str, Callable[[Any], bool]]

LISTS: Mapping[Kind, str] = {"weights": "tensors", "layers": "taps"}
"""The list that tells one comparison from another."""


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _truth(value: Any) -> bool:
    return isinstance(value, bool)


def _count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= sys.maxsize


def _number(value: Any) -> bool:
    """Whether it is a number as JSON has it here: null for NaN, infinities as text."""
    finite = isinstance(value, int | float) and abs(value) <= sys.float_info.max
    return finite or value in (None, "inf", "-inf")


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_number, value))


TOLD: Mapping[Kind, Fields] = {
    "weights": {"a": _text, "b": _text, "same": _truth, "sentence": _text},
    "layers": {"verdict": _text, "sentence": _text, "first": _text, "longest": _count},
}
"""What a diagnosis and a report need of a comparison as a whole, and what it has to be."""

KEPT: Mapping[Kind, Fields] = {
    "weights": {"name": _text, "status": _text, "side": _text, "other": _text},
    "layers": {
        "tap": _text,
        "beyond": _truth,
        "positions": _numbers,
        **dict.fromkeys(("relative", "step", "trainer", "rollout", "floor", "ratio"), _number),
    },
}
"""The same of each entry of the list."""

OPTIONAL = ("side", "other")
"""What only tensors that need it have."""


def inside(run: Run, kind: Kind) -> Mapping[str, Any] | None:
    """A comparison that the run keeps; None where there is none.

    Raises:
        InputError: the run keeps something else in its place.
    """
    found = run.info.get(kind)
    return None if found is None else _checked(found, kind, f"info[{kind!r}] of the run")


def with_inside(run: Run, kind: Kind, found: Any) -> Run:
    """The run with a comparison of its engines.

    Args:
        run: a run.
        kind: what was compared.
        found: a `Comparison` of weights, with the trainer's as A and the rollout's as B, a `LayerComparison`, or what
            either gives as JSON.

    Returns:
        The run with it in its `info`, without what a diagnosis does not need.

    Raises:
        InputError: it is something else.
    """
    told = found.as_dict() if hasattr(found, "as_dict") else found
    return replace(run, info={**run.info, kind: _checked(told, kind, "This")})


def _checked(found: Any, kind: Kind, what: str) -> Mapping[str, Any]:
    """What is kept of a comparison, once it is known to be one."""
    entries = found.get(LISTS[kind]) if isinstance(found, Mapping) else None
    if isinstance(entries, list) and entries and all(isinstance(entry, Mapping) for entry in entries):
        told = {key: found.get(key) for key in TOLD[kind]}
        kept = [{key: entry[key] for key in KEPT[kind] if key in entry} for entry in entries]
        whole = all({*KEPT[kind]} - {*OPTIONAL} <= {*entry} and _fits(entry, KEPT[kind]) for entry in kept)
        if whole and _fits(told, TOLD[kind]) and (_agrees(told, kept) if kind == "layers" else all(map(_traced, kept))):
            return {**told, LISTS[kind]: kept}
    raise InputError(
        f"{what} is no comparison of {kind}; give what `samepolicy {kind} … --json` prints, or the object that "
        f"samepolicy.{kind}.compare returns."
    )


def _fits(given: Mapping[str, Any], fields: Fields) -> bool:
    return all(fields[key](value) for key, value in given.items())


def _traced(tensor: Mapping[str, Any]) -> bool:
    """Whether a tensor that is old says on which side, and of which checkpoint."""
    return tensor["status"] != "old" or (tensor.get("side") in ("A", "B") and "other" in tensor)


def _agrees(told: Mapping[str, Any], taps: list[dict[str, Any]]) -> bool:
    """Whether the verdict is one, names a tap where it has to, and all taps have as many positions."""
    first, verdict = told["first"], told["verdict"]
    named = first in [tap["tap"] for tap in taps] or (first == "" and verdict != "different")
    known = verdict in ("different", "rounding only", "inconclusive")
    return named and known and len({len(tap["positions"]) for tap in taps}) == 1
