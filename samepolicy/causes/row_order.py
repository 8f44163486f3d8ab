"""One side's rows stand in another order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy.random import Generator

from samepolicy.arrays import Ragged
from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import ROUNDING, Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import ArrayStep, Settings
from samepolicy.records.run import Run

MOST = 1024
"""Rows that are matched at once; more are matched in blocks of neighbours, or step by step."""

TOKENS = 64
"""First tokens of a row that it is matched by: every other one; those between them test the matching."""

APART = 3.0
"""A difference counts for at most this in matching, nats."""

CLOSER = 0.3
"""On the tokens between, moved rows must differ by at most this share of what they differed by in place."""

VOID = 0.5
"""If more of the moved rows' tokens stand behind the end of a shorter row, `MET` of the others must be met."""

MET = 0.9
"""So many tokens, met within rounding one by one, are no chance."""

ENOUGH = 10
"""Tokens that must test it."""

ALONE = 0.5
"""Moved rows must differ from theirs by at most this share of what they differ by from the next best one."""

EQUAL = 1e-4
"""Rows whose values differ by no more than this are one and the same, nats."""

LOOKED = 64
"""Moved rows whose next best one is looked for."""


@dataclass(frozen=True)
class Reordered(ArrayStep):
    """Row i holds the values of row source[i], and behind a shorter one what fills the rest."""

    order: ClassVar[int] = Rung.SHIFT.order
    source: tuple[int, ...]
    fill: float | None = None

    def apply(self, predicted: np.ndarray, reference: Reference) -> np.ndarray:
        """The column with its rows moved; NaN behind a shorter row unless that is filled."""
        run = reference.run
        row = np.repeat(np.arange(len(run)), run.lengths)
        position = np.arange(len(predicted)) - run.offsets[:-1][row]
        there = np.minimum(run.offsets[:-1][np.asarray(self.source)[row]] + position, len(predicted) - 1)
        found: np.ndarray = predicted[there]
        found[behind(run, self.source)] = np.nan if self.fill is None else self.fill
        return found

    def needs(self, rows: np.ndarray, reference: Reference) -> np.ndarray:
        """The rows and their sources."""
        return np.union1d(rows, np.asarray(self.source)[rows])

    def void(self, reference: Reference) -> np.ndarray:
        """What stands behind a shorter row, where that is no constant."""
        return np.zeros(0, dtype=np.int64) if self.fill is not None else behind(reference.run, self.source)


def behind(run: Run, source: Sequence[int] | Int[np.ndarray, " rows"]) -> Int[np.ndarray, " n"]:
    """The tokens that stand behind the end of the row that their own row holds."""
    row = np.repeat(np.arange(len(run)), run.lengths)
    position = np.arange(len(row)) - run.offsets[:-1][row]
    return np.flatnonzero(position >= run.lengths[np.asarray(source)][row])


class RowOrder(Cause):
    """One side's log-probs are those of other rows of the batch.

    What happens    Dynamic batching sorts responses by length and the results are not put back in their order, or the
                    rows of one tensor are shuffled and those of another are not.
    How it shows    Rows correlate with each other about as much as strangers do, and each fits another row exactly.
    How to confirm  Score one batch without dynamic batching, or with a single row per micro-batch: the gap closes.
    How to fix      Carry an index through every reordering and invert it before results leave the worker. verl: use
                    the inverse of get_seqlen_balanced_partitions, or use_dynamic_bsz=False to test; TRL: shuffle all
                    tensors of a batch with one permutation; ms-swift: no padding_free and packing to test; Megatron:
                    restore the order after the micro-batches of the pipeline. vLLM and SGLang: sort outputs by request
                    id.
    References      verl issue 2185; SkyRL pull requests 2043 and 2209
    """

    rung = Rung.SHIFT
    cost = 0
    separate = "score one batch with one row per micro-batch and no dynamic batching: the gap closes"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The matching of rows one to one, where it holds on tokens that it was not made with."""
        recorded, predicted = (_first(evidence, values) for values in (evidence.recorded, evidence.base))
        source = np.arange(len(recorded))
        second: list[float] = []
        for block in _blocks(evidence.run):
            found = _matched(recorded[block, ::2], predicted[block, ::2])
            second += _second(recorded[block], predicted[block], found)
            source[block] = block[found]
        moved = np.flatnonzero(source != np.arange(len(source)))
        if not _holds(recorded[moved, 1::2], predicted[moved, 1::2], predicted[source[moved], 1::2]):
            return
        if second and np.median(second) > ALONE:
            return
        step = Reordered(tuple(source.tolist()), _fill(evidence, source))
        there = evidence.comparable & np.isin(evidence.row, moved)
        void = int(evidence.comparable[step.void(evidence.reference)].sum())
        if void > VOID * there.sum() and not _met(evidence, step, there):
            return
        left = f"; {void} tokens behind the end of a shorter row hold what is no token's and are left out"
        yield Undone(
            settings=Settings(arrays=(step,)),
            parameters={"rows_moved": len(moved), "rows": len(source)},
            sentence=f"{len(moved)} of {len(source)} rows hold the values of another row, as row {moved[0]} those of "
            f"row {source[moved[0]]}{left if void else ''}",
        )

    def reproduce(self, rng: Generator) -> Run:
        """The trainer's rows of one length come back in another order."""
        run = toy_run(rng)
        rows = np.arange(len(run))
        for length in np.unique(run.lengths):
            same = np.flatnonzero(run.lengths == length)
            rows[same] = np.roll(same, 1)
        moved = Ragged.from_lists([run["trainer_logp"][i] for i in rows], dtype=np.float32)
        return run.with_columns(trainer_logp=moved)


def _first(evidence: Evidence, values: Float[np.ndarray, " tokens"]) -> Float[np.ndarray, "rows first"]:
    """The first tokens of every row; NaN behind its end and where nothing can be compared."""
    found = np.full((len(evidence.run), TOKENS), np.nan)
    inside = evidence.position < TOKENS
    found[evidence.row[inside], evidence.position[inside]] = values[inside]
    return found


def _blocks(run: Run) -> Iterator[Int[np.ndarray, " rows"]]:
    """Rows that may have changed places: those of a step, in blocks where they are many."""
    step = np.asarray(run["step"]) if "step" in run else np.zeros(len(run))
    for value in np.unique(step):
        rows = np.flatnonzero(step == value)
        yield from np.array_split(rows, -(-len(rows) // MOST))


def _matched(recorded: np.ndarray, predicted: np.ndarray) -> Int[np.ndarray, " rows"]:
    """For each recorded row the predicted one that it fits, one to one; a row stays where nothing fits better."""
    from scipy.optimize import linear_sum_assignment

    cost = np.full((len(recorded), len(predicted)), APART)
    for i, row in enumerate(recorded):
        cost[i] = _distance(row[None], predicted)
    cost[np.diag_indices(len(cost))] -= 1e-6
    found: np.ndarray = linear_sum_assignment(cost)[1]
    return found


def _distance(one: np.ndarray, other: np.ndarray) -> Float[np.ndarray, " rows"]:
    """Mean absolute difference of rows; `APART` where they share no token."""
    apart = np.minimum(np.abs(one - other), APART)
    known = np.isfinite(apart)
    count = known.sum(axis=1)
    sums = np.where(known, apart, 0.0).sum(axis=1)
    return np.where(count > 0, sums / np.maximum(count, 1), APART)


def _second(
    recorded: Float[np.ndarray, "rows first"],
    predicted: Float[np.ndarray, "rows first"],
    source: Int[np.ndarray, " rows"],
) -> list[float]:
    """Of some moved rows, how far each is from its own as a share of how far it is from the next best row.

    Where rows differ by little more than how sure the model is of them, each fits some other row by chance.
    """
    moved, found = np.flatnonzero(source != np.arange(len(source))), []
    for i in moved[np.linspace(0, len(moved) - 1, min(len(moved), LOOKED), dtype=np.int64)]:
        apart, own = _distance(recorded[i][None], predicted), predicted[source[i]]
        shared = np.isfinite(recorded[i] + predicted).sum(axis=1)
        others = (2 * shared >= shared[source[i]]) & (_distance(own[None], predicted) > EQUAL)
        if others.any():
            found.append(float(apart[source[i]] / max(apart[others].min(), EQUAL)))
    return found


def _holds(recorded: np.ndarray, before: np.ndarray, after: np.ndarray) -> bool:
    """Whether moved rows fit on tokens that they were not matched by."""
    apart = np.minimum(np.abs(recorded - before), APART), np.minimum(np.abs(recorded - after), APART)
    known = np.isfinite(apart[0]) & np.isfinite(apart[1])
    return bool(known.sum() >= ENOUGH and apart[1][known].mean() <= CLOSER * apart[0][known].mean())


def _met(evidence: Evidence, step: Reordered, there: Bool[np.ndarray, " tokens"]) -> bool:
    """Whether enough of these tokens have a value in the new order, and nearly all of them are met within rounding."""
    predicted, floor = (step.apply(values, evidence.reference) for values in (evidence.base, evidence.floor))
    error = np.abs(evidence.recorded - predicted) / floor
    there = there & np.isfinite(error)
    there[step.void(evidence.reference)] = False
    return bool(there.sum() >= ENOUGH and (error[there] <= ROUNDING).mean() >= MET)


def _fill(evidence: Evidence, source: np.ndarray) -> float | None:
    """The constant that stands behind shorter rows, where there is one."""
    tokens = behind(evidence.run, source)
    values = np.unique(evidence.recorded[tokens[evidence.comparable[tokens]]])
    return float(values[0]) if len(values) == 1 else None
