"""A run folder opened for reading: which rows of which parts, with which columns; each piece loads by itself.

Pieces are small and can be sent to other processes; whoever has one loads its rows and nothing else.
"""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records import lineup
from samepolicy.records.arrow import from_header
from samepolicy.records.attempts import ATTEMPT
from samepolicy.records.columns import Packed
from samepolicy.records.merge import check_sides
from samepolicy.records.overlap import LOG, last_attempts, second_copies
from samepolicy.records.parts import HEADER, Part, header, parts
from samepolicy.records.places import Place
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS, Kind
from samepolicy.records.tables import Index, index, read_groups
from samepolicy.records.where import EVERYTHING, Where

OnBad: TypeAlias = Callable[[CorruptFileError], object]
"""Called with the error of each file that cannot be read and is left out."""


@dataclass(frozen=True)
class Piece:
    """The rows of one part that count and were asked for.

    Attributes:
        place: the part's file.
        rows: which of its rows, bool [rows]; None for all.
        responses: how many these are.
        values: how many values the longest of their columns has, about; 0 where that was not looked at.
    """

    place: Place
    rows: np.ndarray | None = field(repr=False)
    responses: int
    values: int = 0


@dataclass(frozen=True)
class Source:
    """A run folder whose parts have been looked at.

    Attributes:
        place: the folder.
        about: what `run.json` says.
        pieces: what is to be read, in order.
        columns: names of the columns that any of the parts has.
        needed: those to load.
        names: the columns of each part; each set of them once.
    """

    place: Place
    about: Mapping[str, Any] = field(repr=False)
    pieces: tuple[Piece, ...]
    columns: frozenset[str]
    needed: frozenset[str]
    names: frozenset[frozenset[str]] = field(default=frozenset(), repr=False)

    def narrowed(self, columns: Iterable[str] | None) -> "Source":
        """The same folder with other columns to load, None for all; see `open_source`."""
        wanted = self.columns if columns is None else self.columns & {*columns}
        return replace(self, needed=frozenset(needed_columns(wanted, [*self.names])))

    @property
    def values(self) -> int:
        """How many values the longest column of all pieces has, about: a measure of what reading them takes."""
        return sum(piece.values for piece in self.pieces)

    def load(self, piece: Piece) -> Run:
        """The rows of one piece, as its file has them.

        Raises:
            CorruptFileError: the file is damaged.
            InputError: its sides declare other things than the run.
        """
        runs = list(self.batches(piece, tokens=None))
        return runs[0]

    def batches(self, piece: Piece, *, tokens: int | None) -> Iterator[Run]:
        """The same in runs of about so many tokens."""
        for run in read_groups(piece.place, self.needed, piece.rows, tokens=tokens):
            yield self.checked(run, piece.place)

    def checked(self, run: Run, place: Place) -> Run:
        """A run read from one of the folder's files, if its sides are the folder's.

        Raises:
            InputError: they declare other things; the message names the file.
        """
        try:
            check_sides([from_header(self.about, {}), run])
        except InputError as error:
            raise InputError(f"{place}: {error}") from error
        return run

    def filled(self, run: Run) -> Run:
        """A run of this folder with NaN in the float columns that only other parts have."""
        lacking = [n for n in sorted((self.columns & self.needed) - set(run.columns)) if n in COLUMNS]
        floats = [n for n in lacking if COLUMNS[n].dtype == "float" and not COLUMNS[n].wide]
        unknown = {n: _unknown(run, COLUMNS[n].kind) for n in floats if COLUMNS[n].kind != "own length"}
        return run.with_columns(**unknown) if unknown else run


def _unknown(run: Run, kind: Kind) -> Packed:
    """NaN for each response, or for each token, of a run."""
    if kind == "response":
        return np.full(len(run), np.nan)
    offsets = lineup.offsets(run.columns, kind)
    return Ragged(np.full(int(offsets[-1]), np.nan), offsets)


def is_run(place: Place) -> bool:
    """Whether a folder is one that `write` made."""
    return place.has(HEADER)


def open_source(
    path: "str | os.PathLike[str] | Place",
    *,
    columns: Iterable[str] | None = None,
    where: Where = EVERYTHING,
    on_bad: OnBad | None = None,
) -> Source:
    """Look at every part of a run folder that may hold what is asked for, without reading tokens.

    Args:
        path: the run folder.
        columns: names to load as far as the run has them, None for all; masks and ids that they need come along.
        where: which responses.
        on_bad: called with the error of each file that cannot be read and is left out; None raises it.

    Raises:
        InputError: there is no finished part, or none of the steps asked for.
        CorruptFileError: a file is truncated, damaged or of a newer layout; the message names it.
        MissingColumnError: a column that `where` asks about is not there.
    """
    place = Place.of(path)
    if not is_run(place):
        raise InputError(f"{place} does not exist, or is no run folder; give one that samepolicy wrote.")
    about, listed = header(place), parts(place)
    if not listed:
        raise InputError(f"{place} is a run folder without a finished part yet; read it again later.")
    hits = [p for p in listed if where.steps is None or p.step is None or p.step in where.steps]
    looked = _looked(place, hits, where, on_bad)
    pieces = _pieces([place / part.name for part, _ in looked], [found for _, found in looked], where, on_bad)
    if where.columns and not any(piece.responses for piece in pieces):
        raise _nothing(place, listed, where)
    _say_missing(place, looked, where)
    names = frozenset(frozenset(found.names) for _, found in looked)
    anywhere = frozenset(name for part in names for name in part)
    return Source(place, about, tuple(pieces), anywhere, anywhere, names).narrowed(columns)


def needed_columns(wanted: Iterable[str], names: Sequence[Collection[str]]) -> set[str]:
    """The columns to load: those asked for, the mask, and ids that give others their lengths.

    Args:
        wanted: columns asked for.
        names: the columns of each part.
    """
    anywhere = {name for part in names for name in part}
    needed = {*wanted, *({"mask"} & anywhere)}
    kinds = {COLUMNS[name].kind for name in needed if name in COLUMNS}
    if "trainer token" in kinds and "trainer_response_ids" in anywhere:
        needed |= {"response_ids", "trainer_response_ids"}
    for part in names:
        if not needed <= {*part}:
            rulers = [name for name in sorted(part) if name in COLUMNS and COLUMNS[name].kind == "token"] or sorted(
                part
            )
            needed |= {"response_ids"} if "response_ids" in rulers else {*rulers[:1]}
    return needed


def _looked(place: Place, hits: Sequence[Part], where: Where, on_bad: OnBad | None) -> list[tuple[Part, Index]]:
    """What each part's footer says; a part that cannot be read is told, or raises."""
    wanted = tuple(dict.fromkeys(("step", ATTEMPT, *where.columns)))
    found: list[tuple[Part, Index]] = []
    for part in hits:
        try:
            found.append((part, index(place / part.name, wanted)))
        except CorruptFileError as error:
            tell(error, on_bad)
    if hits and not found:
        raise CorruptFileError(f"None of the {len(hits)} parts of {place} can be read; restore one of them.")
    return found


def tell(error: CorruptFileError, on_bad: OnBad | None) -> None:
    """Hand a file's error to who asked for it, or raise it."""
    if on_bad is None:
        raise error
    on_bad(error)


def _pieces(places: Sequence[Place], indices: Sequence[Index], where: Where, on_bad: OnBad | None) -> list[Piece]:
    """The rows to read of each part; parts without any are left out, unless nothing was asked."""
    copies = second_copies(places, indices, lambda _, error: tell(error, on_bad))
    pieces = []
    for i, (found, newest) in enumerate(zip(indices, last_attempts(indices), strict=True)):
        asked = where.rows(found.small, found.rows)
        rows = [r for r in (asked, newest, ~copies[i] if i in copies else None) if r is not None]
        kept = np.logical_and.reduce(rows) if rows else None
        count = found.rows if kept is None else int(kept.sum())
        if count or not rows:
            values = found.values * count // max(found.rows, 1)
            pieces.append(Piece(places[i], None if kept is None or kept.all() else kept, count, values))
    return pieces


def _nothing(place: Place, listed: Sequence[Part], where: Where) -> InputError:
    """The sentence for a choice that no response meets."""
    if where.columns != ("step",):
        return InputError(f"No response in {place} has the {' and '.join(where.columns)} asked for; ask for others.")
    has = sorted({part.step for part in listed if part.step is not None})
    return InputError(f"{place} holds none of the steps asked for; it has {_shown(has) or 'others'}.")


def _say_missing(place: Place, looked: Sequence[tuple[Part, Index]], where: Where) -> None:
    """Say which of the steps asked for are not there."""
    held = {int(step) for _, found in looked if "step" in found.small for step in np.unique(found.small["step"])}
    absent = sorted((where.steps or frozenset()) - held)
    if absent:
        LOG.warning("%s has no step %s; the others are read.", place, _shown(absent))


def _shown(steps: Sequence[int]) -> str:
    """Steps as a list, cut after ten."""
    return ", ".join(map(str, steps[:10])) + (", …" if len(steps) > 10 else "")
