"""Long prompts are cut on one side."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from jaxtyping import Int
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import POSSIBLE, Cause, Check, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy, toy_run
from samepolicy.causes.recorded import by_position, prompts, speaks, undoing
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import Ids, IdStep, Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

Side: TypeAlias = Literal["left", "right", "middle"]

LEAST = 4
"""A prompt that is cut to fewer ids is a hidden one."""

TRIED = 12
"""Lengths that are tried at first at most, of more the roundest; those between are tried near the best."""

ROWS, FIRST = 2, 32
"""Cut responses that a length is fitted on, and how many of their first ids."""

CLEAN = 3.0
"""A response is clean where its mean absolute error is below this many floors."""


@dataclass(frozen=True)
class Cut(IdStep):
    """Prompts of at most so many ids; the left, the right or the middle of longer ones is missing."""

    order: ClassVar[int] = Rung.TOKENS.order
    most: int
    side: Side

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """The cut prompts."""
        return replace(ids, prompts=Ragged.from_lists([self.of(row) for row in ids.prompts], dtype=np.int64))

    def of(self, prompt: np.ndarray) -> np.ndarray:
        """One prompt."""
        size, most = len(prompt), self.most
        if size <= most:
            return prompt
        head = {"left": 0, "right": most, "middle": most // 2}[self.side]
        return np.concatenate([prompt[:head], prompt[size - (most - head) :]])


@dataclass(frozen=True)
class Beginning(IdStep):
    """The first ids of every response alone: what a cut prompt moves most."""

    order: ClassVar[int] = len(Rung)
    most: int

    def apply(self, ids: Ids, reference: Reference) -> Ids:
        """Shorter responses."""
        return by_position(ids, Ragged.from_lists([row[: self.most] for row in ids.responses], dtype=np.int64))


class PromptTruncated(Cause):
    """Long prompts are cut on one side only.

    What happens    The trainer (or the dataset behind it) cuts prompts at a maximal length and the engine does not, or
                    the two cut at different ends.
    How it shows    Only responses whose prompt is longer than the limit, with all their tokens, most at the beginning.
    How to confirm  Plot the mean gap of a response over the length of its prompt: it jumps at the limit.
    How to fix      Filter long prompts before both sides rather than cutting them on one. verl:
                    data.filter_overlong_prompts=True, data.truncation="error"; TRL: no max_prompt_length, filter the
                    dataset; ms-swift: --truncation_strategy delete and one --max_length; vLLM:
                    truncate_prompt_tokens=None; SGLang: allow_auto_truncate off; Megatron: a seq_length that holds
                    prompt and response.
    References      TRL pull request 3601; verl issue 1015; verl pull request 1488; ms-swift pull request 6942
    """

    rung = Rung.TOKENS
    cost = 2
    separate = "plot the gap of a response over the length of its prompt, or print the last prompt ids on both sides"

    def check(self, evidence: Evidence) -> Check:
        """Recorded prompts of which the trainer holds a part, or no prompt that could be cut."""
        found = prompts(evidence.run) if speaks(evidence) else []
        sizes = {len(theirs) for _, theirs in found}
        if not found or len(sizes) > 1 or min(sizes) < LEAST:
            return POSSIBLE
        most = sizes.pop()
        fitting = [s for s in ("left", "right", "middle") if all(_same(Cut(most, s), *pair) for pair in found)]
        longer = int((evidence.run["prompt_ids"].lengths > most).sum())
        if not fitting or longer != len(found) or all(len(ours) == most + 1 for ours, _ in found):
            return POSSIBLE
        sentence = (
            f"the trainer read {most} ids of each of the {len(found)} prompts that are longer, the {fitting[0]} cut"
        )
        return Check(
            status="proved",
            sentence=sentence,
            side="trainer",
            settings=undoing(evidence, prompts=True),
            parameters={"longest": most, "cut": fitting[0]},
        )

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The length and the end that are cut, fitted on the longest prompts whose responses are off."""
        if prompts(evidence.run):
            return
        if "prompt_ids" not in evidence.run:
            raise Unavailable("the run's prompt_ids, to cut them")
        span = _limits(evidence)
        if span is None:
            return
        rows, lengths = _longest(evidence, span[1]), _lengths(*span)
        for side in _SIDES:
            step = _fitted(evidence, side, lengths, rows)
            cut = int((evidence.run["prompt_ids"].lengths > step.most).sum())
            yield Undone(
                settings=Settings(ids=(step,)),
                parameters={"longest": step.most, "cut": side, "responses": cut},
                sentence=f"with prompts of more than {step.most} ids cut on the {side}, which are {cut} of "
                f"{len(evidence.run)}, the reference gives what was recorded",
            )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer keeps the last 14 ids of every prompt."""
        run = toy_run(rng)
        short = Ragged.from_lists([row[-14:] for row in run["prompt_ids"]], dtype=np.int64)
        logp = toy().score(short, run["response_ids"], sampling=run.rollout.sampling or Sampling()).logp
        return run.with_columns(trainer_logp=logp)


_SIDES: tuple[Side, ...] = ("left", "right", "middle")


def _same(cut: Cut, ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether a cut makes the trainer's prompt."""
    return np.array_equal(cut.of(ours), theirs)


def _off(evidence: Evidence) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the fitted half with their mean absolute error in floors."""
    tokens = np.flatnonzero(evidence.fitted)
    error = np.minimum(np.abs(evidence.residual[tokens]) / evidence.floor[tokens], 100.0)
    rows, place = np.unique(evidence.row[tokens], return_inverse=True)
    return rows, np.bincount(place, weights=np.nan_to_num(error)) / np.bincount(place)


def _limits(evidence: Evidence) -> tuple[int, int] | None:
    """Between which lengths the limit lies; None where short prompts are as bad as long ones, or none are cut."""
    rows, error = _off(evidence)
    length = evidence.run["prompt_ids"].lengths[rows]
    bad = error > CLEAN
    if not bad.any() or length[bad].max() <= LEAST:
        return None
    thresholds = np.unique(np.concatenate([[LEAST], length]))
    wrong = [int(((length > t) != bad).sum()) for t in thresholds]
    at = int(np.argmin(wrong))
    if wrong[at] > 0.2 * len(rows):
        return None
    low = int(thresholds[at])
    longer = length[length > low]
    return (max(low, LEAST), int(longer.min()) - 1) if len(longer) else None


def _longest(evidence: Evidence, limit: int) -> Int[np.ndarray, " rows"]:
    """Rows with prompts above the limit, of the fitted half."""
    rows = np.unique(evidence.row[evidence.fitted])
    long = rows[evidence.run["prompt_ids"].lengths[rows] > limit]
    found: np.ndarray = long[np.linspace(0, len(long) - 1, min(ROWS, len(long)), dtype=np.int64)]
    return found


def _fitted(evidence: Evidence, side: Side, lengths: list[int], rows: np.ndarray) -> Cut:
    """The length that predicts best: of a few first, then of those beside it by steps that halve."""
    known = {n: _error(evidence, Cut(n, side), rows) for n in lengths}
    step = int(max(np.diff(lengths), default=1))
    while step > 1:
        step = step // 2
        best = min(known, key=lambda n: known[n])
        near = [n for n in (best - step, best + step) if lengths[0] <= n <= lengths[-1] and n not in known]
        known |= {n: _error(evidence, Cut(n, side), rows) for n in near}
    return Cut(min(known, key=lambda n: known[n]), side)


def _lengths(low: int, high: int) -> list[int]:
    """Lengths in a span, the roundest where they are many."""
    for step in (1, 2, 5, 8, 10, 16, 32, 64, 100, 128, 256, 512, 1000, 1024):
        found = [n for n in range(low, high + 1) if n % step == 0]
        if len(found) <= TRIED:
            return sorted({low, high, *found})
    return [low, high]


def _error(evidence: Evidence, step: Cut, rows: np.ndarray) -> float:
    """Mean absolute error of a cut at the beginning of some rows."""
    tokens = evidence.fitted & np.isin(evidence.row, rows) & (evidence.position < FIRST)
    predicted = evidence.rescore(Settings(ids=(step, Beginning(FIRST))), rows=rows)
    apart = np.abs(evidence.recorded - predicted)[tokens]
    return float(np.minimum(np.nan_to_num(apart, nan=20.0), 20.0).mean())
