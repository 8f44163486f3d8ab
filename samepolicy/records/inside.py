"""What was seen inside the two engines of a run: how their tensors compare, and at which step of the network they part.

A run keeps both in its `info`, as the JSON-ready mappings of `samepolicy weights` and `samepolicy layers`; tests of
structure, causes and the report read them from there.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

from samepolicy.errors import InputError
from samepolicy.records.run import Run

Kind: TypeAlias = Literal["weights", "layers"]

LISTS: Mapping[Kind, str] = {"weights": "tensors", "layers": "taps"}
"""The list that tells one comparison from another."""

KEPT: Mapping[Kind, tuple[str, ...]] = {
    "weights": ("name", "status", "side", "other"),
    "layers": ("tap", "relative", "step", "trainer", "rollout", "floor", "ratio", "beyond", "positions"),
}
"""What is kept of each entry of the list."""


def inside(run: Run, kind: Kind) -> Mapping[str, Any] | None:
    """A comparison that the run keeps; None where there is none."""
    found = run.info.get(kind)
    return found if isinstance(found, Mapping) else None


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
    entries = told.get(LISTS[kind]) if isinstance(told, Mapping) else None
    if not isinstance(entries, list) or not all(isinstance(entry, Mapping) for entry in entries):
        raise InputError(
            f"This is no comparison of {kind}; give what `samepolicy {kind} … --json` prints, or the object that "
            f"samepolicy.{kind}.compare returns."
        )
    kept = [{key: entry[key] for key in KEPT[kind] if key in entry} for entry in entries]
    return replace(run, info={**run.info, kind: {**told, LISTS[kind]: kept}})
