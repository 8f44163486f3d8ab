"""Ids that the trainer recorded beside the rollout's, and how the two differ."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar
from weakref import WeakKeyDictionary

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.causes.base import Rung
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import DECLARED, Ids, IdStep, Settings
from samepolicy.records.align import align, align_all
from samepolicy.records.run import Run


@dataclass(frozen=True)
class Recorded(IdStep):
    """The trainer's own ids: its prompts, its responses, or both."""

    order: ClassVar[int] = Rung.TOKENS.order
    prompts: bool = False
    responses: bool = False

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The recorded ids of these rows."""
        run = reference.run
        if self.prompts:
            ids = replace(ids, prompts=run["trainer_prompt_ids"].take(ids.rows))
        return replaced(ids, run["trainer_response_ids"].take(ids.rows)) if self.responses else ids


@dataclass(frozen=True)
class Edit:
    """A place where two id sequences differ.

    Attributes:
        row: the response.
        at: where, among the rollout's ids.
        ours: the rollout's ids there.
        theirs: the trainer's.
        end: whether nothing follows.
    """

    row: int
    at: int
    ours: tuple[int, ...]
    theirs: tuple[int, ...]
    end: bool


def replaced(ids: Ids, responses: Ragged) -> Ids:
    """Other response ids; tokens are found again by the longest common blocks."""
    left, right, _ = align_all(ids.responses, responses)
    at = np.full(len(ids.responses.values), -1, dtype=np.int64)
    at[left] = right
    return replace(ids, responses=responses, place=np.where(ids.place >= 0, at[ids.place], -1))


def by_position(ids: Ids, responses: Ragged) -> Ids:
    """Other response ids; a token is the one at its own place in its response, where that has so many."""
    row = np.searchsorted(ids.responses.offsets, ids.place, side="right") - 1
    position = ids.place - ids.responses.offsets[row]
    there = (ids.place >= 0) & (position < responses.lengths[row])
    return replace(ids, responses=responses, place=np.where(there, responses.offsets[row] + position, -1))


def edits(evidence: Evidence) -> tuple[Edit, ...]:
    """Where the trainer's response ids differ from the rollout's.

    Nothing where the trainer recorded none, or where the rollout's column is explained, which they say nothing about.
    """
    run = evidence.run
    if not speaks(evidence) or "response_ids" not in run or "trainer_response_ids" not in run:
        return ()
    if evidence.reference not in _FOUND:
        pairs = enumerate(zip(run["response_ids"], run["trainer_response_ids"], strict=True))
        _FOUND[evidence.reference] = tuple(edit for row, (ours, theirs) in pairs for edit in _edits(row, ours, theirs))
    return _FOUND[evidence.reference]


_FOUND: WeakKeyDictionary[Reference, tuple[Edit, ...]] = WeakKeyDictionary()
"""What `edits` found already."""


def undoing(evidence: Evidence, *, prompts: bool = False, responses: bool = False) -> Settings:
    """What scores the trainer's own ids, where this evidence is the trainer's and there is a model to score with."""
    able = evidence.mode != "pair" and evidence.reference.engine is not None
    return Settings(ids=(Recorded(prompts, responses),)) if able else DECLARED


def speaks(evidence: Evidence) -> bool:
    """Whether this evidence can hold the trainer's ids against the rollout's: they explain the trainer's column."""
    return evidence.mode != "rollout"


def prompts(run: Run) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of prompts that differ, the rollout's first; nothing where the trainer recorded none."""
    if "prompt_ids" not in run or "trainer_prompt_ids" not in run:
        return []
    pairs = zip(run["prompt_ids"], run["trainer_prompt_ids"], strict=True)
    return [(ours, theirs) for ours, theirs in pairs if not np.array_equal(ours, theirs)]


def _edits(row: int, ours: np.ndarray, theirs: np.ndarray) -> Iterator[Edit]:
    """The gaps between the common blocks of two sequences."""
    if np.array_equal(ours, theirs):
        return
    left, right = align(ours, theirs)
    left = np.concatenate([[-1], left, [len(ours)]])
    right = np.concatenate([[-1], right, [len(theirs)]])
    for i in np.flatnonzero((np.diff(left) > 1) | (np.diff(right) > 1)).tolist():
        a, b = ours[left[i] + 1 : left[i + 1]], theirs[right[i] + 1 : right[i + 1]]
        yield Edit(row, int(left[i]) + 1, tuple(a.tolist()), tuple(b.tolist()), end=i == len(left) - 2)
