"""What comparisons of the two engines' tensors and layers prove about a cause."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from samepolicy.causes.base import POSSIBLE, Check, SideWord
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.model import changeable
from samepolicy.causes.settings import DECLARED, Settings
from samepolicy.engines.change import Change
from samepolicy.errors import SamePolicyError
from samepolicy.floor.gap import LIMIT_FEW, measure
from samepolicy.records.inside import inside

SIDES: Mapping[str, SideWord] = {"A": "trainer", "B": "rollout"}
"""Whose weights are which in a comparison."""

OTHERS = 3.0
"""A side whose error in a step is so many times the other's is the one that is wrong there."""


class Old(NamedTuple):
    """Tensors that are equal to an earlier checkpoint.

    Attributes:
        side: who holds them.
        checkpoint: what they are equal to.
        names: their names.
        partial: the same part of another layer, or all that lies in layers, is not old.
    """

    side: SideWord
    checkpoint: str
    names: tuple[str, ...]
    partial: bool


def old_weights(evidence: Evidence) -> Old | None:
    """Old tensors of this column's side, where all that differs is of one checkpoint."""
    found = inside(evidence.run, "weights")
    tensors = found["tensors"] if found else []
    old = [t for t in tensors if t["status"] == "old"]
    whose = {(t["side"], t["other"]) for t in old}
    if len(whose) != 1 or any(t["status"] not in ("old", "equal", "equal after cast") for t in tensors):
        return None
    (letter, checkpoint), names = whose.pop(), tuple(t["name"] for t in old)
    current = {_part(t["name"]) for t in tensors if t["status"] != "old"}
    layered = [name for name in names if _part(name) != name]
    partial = bool(current) and (not layered or any(_part(name) in current for name in layered))
    side = SIDES[letter]
    return Old(side, checkpoint, names, partial) if evidence.mode in (side, "declared", "pair") else None


def proved(evidence: Evidence, found: Old, sentence: str, **parameters: Any) -> Check:
    """Old tensors as the proof of a cause, undone where the reference can take them over from the same checkpoint."""
    settings = Settings(change=Change(weights=found.checkpoint, tensors=found.names))
    return Check(
        status="proved",
        sentence=sentence,
        side=found.side,
        settings=settings if _can_hold(evidence, found) else DECLARED,
        parameters={"checkpoint": found.checkpoint, **parameters},
    )


def same_weights(evidence: Evidence) -> Check:
    """Excluded where the tensors were compared and are the same; else possible."""
    found = inside(evidence.run, "weights")
    return Check(status="excluded", sentence=found["sentence"]) if found and found["same"] else POSSIBLE


def parts_at(evidence: Evidence, *parts: str) -> Check:
    """Proved where the engines part first at a step of such a part, and the gap is beyond rounding.

    Args:
        evidence: one column.
        *parts: of a layer, such as "attention"; see `samepolicy.layers`.
    """
    found = inside(evidence.run, "layers")
    if not found or found["verdict"] != "different" or found["first"].rpartition(".")[2] not in parts:
        return POSSIBLE
    if not _beyond(evidence):
        return POSSIBLE
    tap = next(t for t in found["taps"] if t["tap"] == found["first"])
    sentence = f"on the same inputs both sides part first at {tap['tap']}, by {_floors(tap['ratio'])}"
    return Check(status="proved", sentence=sentence, side=_whose(tap), parameters={"first": tap["tap"]})


def _part(name: str) -> str:
    """A tensor's name with its layer's number left out."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)


def _can_hold(evidence: Evidence, old: Old) -> bool:
    """Whether the reference stands for the side with the old tensors, and has the checkpoint that they are of."""
    try:
        known, tensors = evidence.checkpoints, changeable(evidence, "").tensors
    except SamePolicyError:
        return False
    return old.side == evidence.mode and old.checkpoint in known and {*old.names} <= {*tensors}


def _beyond(evidence: Evidence) -> bool:
    """Whether what is not explained is more than rounding."""
    left = np.where(evidence.comparable, evidence.residual, np.nan)
    return measure(left, evidence.floor**2, evidence.prompt).ratio > LIMIT_FEW


def _floors(ratio: Any) -> str:
    """How far beyond rounding a step is."""
    return f"{ratio:.3g} floors" if isinstance(ratio, int | float) else "what is no number"


def _whose(tap: Mapping[str, Any]) -> SideWord:
    """The side whose error against a wider dtype is by far the larger."""
    ours, theirs = (tap.get(side) for side in ("trainer", "rollout"))
    if not isinstance(ours, int | float) or not isinstance(theirs, int | float):
        return "unknown"
    if theirs > OTHERS * ours:
        return "rollout"
    return "trainer" if ours > OTHERS * theirs else "unknown"
