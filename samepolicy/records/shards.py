"""A run folder cut into shards: pieces small enough to be measured one by one, in any process, in any order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from samepolicy.records import arrow
from samepolicy.records.arrow import from_arrow, from_header
from samepolicy.records.run import Run
from samepolicy.records.source import Piece, Source
from samepolicy.records.tables import opened

GROUPS = 4
"""Row groups of a shard of a large file: about four million tokens."""
MANY = 256
"""Pieces that are shards enough as they are, so that no footer is read a second time."""


@dataclass(frozen=True)
class Shard:
    """Rows of one file that are measured together.

    Attributes:
        piece: the file, and which of its rows count.
        groups: the row groups to read; None for all.
        first: number of its first response among all that count and were asked for.
    """

    piece: Piece
    groups: tuple[int, ...] | None = None
    first: int = 0

    def __str__(self) -> str:
        """The file, and which part of it."""
        some = f" (row groups {self.groups[0]} to {self.groups[-1]})" if self.groups else ""
        return f"{self.piece.place}{some}"


def cut(source: Source, *, whole: bool = False) -> tuple[Shard, ...]:
    """The shards of a run folder, the same whoever measures them.

    A piece is a shard; where there are few, large files are cut between row groups. A file of which only some rows
    count stays whole.

    Args:
        source: the run folder.
        whole: cut no file, so that one that turns out to be damaged can be left out as a whole.

    Raises:
        CorruptFileError: a file is truncated or damaged.
    """
    firsts = accumulate((piece.responses for piece in source.pieces), initial=0)
    if whole or len(source.pieces) >= MANY:
        return tuple(Shard(piece, first=first) for piece, first in zip(source.pieces, firsts, strict=False))
    return tuple(s for piece, first in zip(source.pieces, firsts, strict=False) for s in _cut(piece, first))


def _cut(piece: Piece, first: int) -> list[Shard]:
    """The shards of one file, whose first response has this number."""
    if piece.rows is not None:
        return [Shard(piece, first=first)]
    with opened(piece.place) as (file, _):
        rows = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    if len(rows) <= GROUPS:
        return [Shard(piece, first=first)]
    firsts, groups = list(accumulate(rows, initial=first)), range(len(rows))
    return [Shard(piece, tuple(groups[g : g + GROUPS]), firsts[g]) for g in groups[::GROUPS]]


def batches(source: Source, shard: Shard) -> Iterator[Run]:
    """The runs of a shard, a million tokens or so each, with NaN in the float columns that only other files have.

    Args:
        source: the folder that the shard was cut from; its pieces are not needed.
        shard: what to read.

    Raises:
        CorruptFileError: the file is damaged.
        InputError: it is gone, or its sides declare other things than the run.
    """
    whole, place = shard.groups is None, shard.piece.place
    found = source.batches(shard.piece, tokens=arrow.GROUP_TOKENS) if whole else _groups(source, shard)
    for run in found:
        yield source.filled(run if whole else source.checked(run, place))


def _groups(source: Source, shard: Shard) -> Iterator[Run]:
    """Some row groups of a file, one by one."""
    with opened(shard.piece.place) as (file, content):
        names = [name for name in file.schema_arrow.names if name in source.needed]
        for group in shard.groups or ():
            yield from_header(content, _columns(file, group, names))


def _columns(file: Any, group: int, names: Sequence[str]) -> dict[str, Any]:
    """Some columns of one row group."""
    table = file.read_row_groups([group], columns=names)
    return {name: from_arrow(table[name]) for name in names}
