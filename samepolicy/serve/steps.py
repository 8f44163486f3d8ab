"""One step of a run folder: which rows of which parts it is, and what they measure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from operator import add
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError, SamePolicyError
from samepolicy.health import Reading, judge
from samepolicy.monitor.alarms import outside_usual
from samepolicy.records.arrow import GROUP_TOKENS
from samepolicy.records.attempts import ATTEMPT
from samepolicy.records.declared import dtype_of
from samepolicy.records.overlap import Bad, last_attempts, second_copies
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.records.source import Piece, Source, needed_columns
from samepolicy.records.tables import Index, index
from samepolicy.report.data import summary_of
from samepolicy.serve.inside import Inside
from samepolicy.summary import MEASURED, Summary

NO_STEP = -1
"""Stands for the responses of a run that say no step."""

OnBad = Callable[[str, str], object]
"""Called with the name of a part that cannot be read and a sentence about it."""


class Values(Mapping[str, float]):
    """Numbers by name, in 8 bytes each; the names are shared by all steps that have the same.

    >>> Values({"k3.mean": 0.5})["k3.mean"]
    0.5
    """

    __slots__ = ("_numbers", "_place")

    def __init__(self, given: Mapping[str, float]) -> None:
        self._place = _places(tuple(given))
        self._numbers = np.fromiter(given.values(), dtype=np.float64, count=len(given))

    def __getitem__(self, name: str) -> float:
        """One number."""
        return float(self._numbers[self._place[name]])

    def __iter__(self) -> Iterator[str]:
        """The names."""
        return iter(self._place)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._place)


@cache
def _places(names: tuple[str, ...]) -> Mapping[str, int]:
    """Where each name stands."""
    return {name: i for i, name in enumerate(names)}


@dataclass(frozen=True, eq=False)
class Row:
    """What is kept of a step.

    Attributes:
        responses: how many there are.
        tokens: how many of their tokens were measured.
        values: each readout of each metric, by "metric.readout".
        outside: the values outside every usual range that holds for them, a sentence each.
        parts: files that it comes from.
        damaged: files of it that cannot be read.
    """

    responses: int
    tokens: int
    values: Mapping[str, float]
    outside: Mapping[str, str]
    parts: int
    damaged: int


@dataclass(frozen=True)
class Measured:
    """A step's row, what its sides declare, and its values beside usual ranges."""

    row: Row
    rollout: Side
    trainer: Side
    readings: tuple[Reading, ...]


def steps_in(place: Inside) -> tuple[int, ...]:
    """The steps of a part; `NO_STEP` where its responses say none.

    Raises:
        CorruptFileError: it is damaged.
    """
    small = index(place, ("step",)).small
    return tuple(np.unique(small["step"]).tolist()) if "step" in small else (NO_STEP,)


def open_step(
    folder: Inside,
    about: Mapping[str, Any],
    step: int,
    names: Iterable[str],
    *,
    columns: Collection[str] | None,
    on_bad: OnBad,
) -> Source | None:
    """The rows of a step that count: those of its last attempt, and of responses that parts share one copy.

    Args:
        folder: the run folder.
        about: what its `run.json` says.
        step: the step, or `NO_STEP`.
        names: the parts that hold rows of it, in order.
        columns: what to load; None for all.
        on_bad: told of each part that is left out because it cannot be read.

    Returns:
        The rows; None where no part can be read.
    """
    looked: dict[str, Index] = {}
    for name in names:
        try:
            looked[name] = index(folder / name, ("step", ATTEMPT))
        except (CorruptFileError, InputError) as error:
            on_bad(name, str(error))
    if not looked:
        return None
    places = [folder / name for name in looked]
    pieces = _pieces(places, list(looked.values()), step, lambda i, error: on_bad([*looked][i], str(error)))
    held = [found.names for found in looked.values()]
    anywhere = frozenset(name for part in held for name in part)
    needed = needed_columns(anywhere if columns is None else anywhere & {*columns}, held)
    return Source(folder, about, tuple(pieces), anywhere, frozenset(needed))


def _pieces(places: list[Inside], indices: list[Index], step: int, bad: Bad) -> list[Piece]:
    """The rows of each part that count."""
    copies = second_copies(places, indices, bad) if len(places) > 1 else {}
    found = []
    for i, (place, part, newest) in enumerate(zip(places, indices, last_attempts(indices), strict=True)):
        rows = np.ones(part.rows, dtype=bool)
        if "step" in part.small:
            rows &= part.small["step"] == step
        rows = rows if newest is None else rows & newest
        rows = rows & ~copies[i] if i in copies else rows
        if rows.any():
            found.append(Piece(place, None if rows.all() else rows, int(rows.sum())))
    return found


def load(source: Source) -> Run:
    """All rows of a step as one run.

    Raises:
        CorruptFileError: a part is damaged.
        InputError: the parts do not fit together.
    """
    return Run.concat([source.load(piece) for piece in source.pieces])


class Measurer:
    """Measures steps; a part that was measured with the same rows is not read again.

    Args:
        keep: how many parts' summaries are kept (50 kB each); an older part is read again where its step gets a new
            part.
    """

    def __init__(self, folder: Inside, *, keep: int = 256) -> None:
        self.folder, self.keep = folder, keep
        self.read = 0
        self._known: dict[tuple[Any, ...], tuple[Summary, Run]] = {}

    def measure(
        self, about: Mapping[str, Any], step: int, marks: Mapping[str, Any], *, on_bad: OnBad
    ) -> Measured | None:
        """Measure a step.

        Args:
            about: what `run.json` says.
            step: the step.
            marks: the names of its parts, in order, with the mark of each.
            on_bad: told of each part that is left out.

        Returns:
            What it comes to; None where no part of it can be read.
        """
        bad: dict[str, str] = {}
        source = open_step(self.folder, about, step, marks, columns=MEASURED, on_bad=bad.__setitem__)
        found: list[tuple[Summary, Run]] = []
        for piece in source.pieces if source else ():
            name = piece.place.text.rpartition("/")[2].rpartition("\\")[2]
            try:
                found.append(self._piece(source, piece, (name, marks[name])))  # type: ignore[arg-type]
            except (SamePolicyError, OSError) as error:
                bad[name] = str(error)
        for name, sentence in bad.items():
            on_bad(name, sentence)
        return _measured(found, parts=len(marks), damaged=len(bad)) if found else None

    def _piece(self, source: Source, piece: Piece, who: tuple[str, Any]) -> tuple[Summary, Run]:
        """The summary of one piece, and an empty run with its sides."""
        key = (*who, b"" if piece.rows is None else np.packbits(piece.rows).tobytes())
        if key in self._known:
            self._known[key] = self._known.pop(key)
            return self._known[key]
        self.read += 1
        summaries, sides = [], Run({})
        for run in source.batches(piece, tokens=GROUP_TOKENS):
            summaries.append(summary_of(run))
            sides = Run({}, rollout=run.rollout, trainer=run.trainer)
        self._known[key] = (reduce(add, summaries, Summary.empty()), sides)
        while len(self._known) > self.keep:
            self._known.pop(next(iter(self._known)))
        return self._known[key]


def _measured(found: list[tuple[Summary, Run]], *, parts: int, damaged: int) -> Measured:
    """The pieces of a step together."""
    summary = reduce(add, (s for s, _ in found), Summary.empty())
    rollout, trainer = found[-1][1].rollout, found[-1][1].trainer
    values = {f"{n}.{k}": v for n, m in summary.metrics.items() for k, v in m.items() if k != "count"}
    row = Row(
        responses=summary.counts.sequences,
        tokens=summary.counts.measured,
        values=Values(values),
        outside=outside_usual(summary, rollout=rollout, trainer=trainer),
        parts=parts,
        damaged=damaged,
    )
    readings = judge(summary, rollout_dtype=dtype_of(rollout), trainer_dtype=dtype_of(trainer))
    return Measured(row, rollout, trainer, readings)
