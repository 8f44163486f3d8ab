"""A run folder cut into shards: pieces small enough to be measured one by one, in any process, in any order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from samepolicy.records import arrow
from samepolicy.records.arrow import from_arrow, from_header
from samepolicy.records.merge import check_sides
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
    """

    piece: Piece
    groups: tuple[int, ...] | None = None

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
    if whole or len(source.pieces) >= MANY:
        return tuple(Shard(piece) for piece in source.pieces)
    return tuple(shard for piece in source.pieces for shard in _cut(piece))


def _cut(piece: Piece) -> list[Shard]:
    """The shards of one file."""
    if piece.rows is not None:
        return [Shard(piece)]
    with opened(piece.place) as (file, _):
        groups = range(file.metadata.num_row_groups)
    if len(groups) <= GROUPS:
        return [Shard(piece)]
    return [Shard(piece, tuple(groups[first : first + GROUPS])) for first in groups[::GROUPS]]


def batches(source: Source, shard: Shard) -> Iterator[Run]:
    """The runs of a shard, a million tokens or so each, with NaN in the float columns that only other files have.

    Args:
        source: the folder that the shard was cut from; its pieces are not needed.
        shard: what to read.

    Raises:
        CorruptFileError: the file is damaged.
        InputError: it is gone, or its sides declare other things than the run.
    """
    found = source.batches(shard.piece, tokens=arrow.GROUP_TOKENS) if shard.groups is None else _groups(source, shard)
    for run in found:
        yield source.filled(run)


def _groups(source: Source, shard: Shard) -> Iterator[Run]:
    """Some row groups of a file, one by one."""
    with opened(shard.piece.place) as (file, content):
        names = [name for name in file.schema_arrow.names if name in source.needed]
        for group in shard.groups or ():
            run = from_header(content, _columns(file, group, names))
            check_sides([from_header(source.about, {}), run])
            yield run


def _columns(file: Any, group: int, names: Sequence[str]) -> dict[str, Any]:
    """Some columns of one row group."""
    table = file.read_row_groups([group], columns=names)
    return {name: from_arrow(table[name]) for name in names}
