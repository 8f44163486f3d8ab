"""Parts of a run read back from Parquet: whole, some columns, some rows, or what their footers say."""

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.arrow import KEY, check_header, from_arrow, from_header
from samepolicy.records.columns import pack
from samepolicy.records.places import Place
from samepolicy.records.run import Run


@dataclass(frozen=True)
class Index:
    """What is known of a part before its tokens are read.

    Attributes:
        names: its columns.
        rows: its responses.
        small: the columns of single values that were asked for and that it has, [rows] each.
        ends: least and largest `sample` and `rank`, where its statistics tell them.
        values: how many values its longest column has, about.
    """

    names: tuple[str, ...]
    rows: int
    small: dict[str, np.ndarray]
    ends: dict[str, tuple[int, int]]
    values: int = 0


def index(place: Place, wanted: Sequence[str]) -> Index:
    """Read a part's footer, and columns of single values where its statistics do not already tell them.

    Raises:
        CorruptFileError: the file is truncated, damaged, of another format or of a newer layout, or holds what no run
            can.
    """
    with opened(place) as (file, _):
        names, rows = tuple(file.schema_arrow.names), int(file.metadata.num_rows)
        known = {name: constant(file, name) for name in wanted if name in names}
        unknown = [name for name, value in known.items() if value is None]
        table = file.read(columns=unknown) if unknown else None
        small = {name: pack(name, from_arrow(table[name])) for name in unknown} if table is not None else {}
        small |= {name: pack(name, _repeated(value, rows)) for name, value in known.items() if value is not None}
        known_ends = {name: ends_of(file, name) for name in ("sample", "rank")}
        ends = {name: found for name, found in known_ends.items() if found and type(found[0]) is int}
        values = sum(max(_values_in(file, group), default=0) for group in range(file.metadata.num_row_groups))
        arrays = {name: column for name, column in small.items() if isinstance(column, np.ndarray)}
        return Index(names, rows, arrays, ends, values)


def _repeated(value: Any, rows: int) -> np.ndarray:
    """One value for all rows."""
    return np.full(rows, value, dtype=object if isinstance(value, str) else None)


@contextmanager
def opened(place: Place) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The Parquet file, open, with its header; whatever goes wrong inside names the file.

    Raises:
        CorruptFileError: the file is truncated, damaged, of another format or of a newer layout, or holds what no run
            can.
        InputError: it may not be read, or is no longer there.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with (
            place.source() as source,
            pq.ParquetFile(source, page_checksum_verification=True, pre_buffer=False) as file,
            _naming(place),
        ):
            yield file, _header(file, place)
    except InputError:
        raise
    except (PermissionError, FileNotFoundError) as error:
        raise refused(place, error) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(
            f"{place} is truncated or damaged ({reason(error)}); restore it, or leave it out (--skip-bad)."
        ) from error


@contextmanager
def _naming(place: Place) -> Iterator[None]:
    """What no run can hold is told with the file's name.

    Raises:
        CorruptFileError: the file is whole, but its contents are wrong.
    """
    try:
        yield
    except CorruptFileError:
        raise
    except InputError as error:
        raise CorruptFileError(
            f"{place} is whole, but its contents are wrong ({reason(error)}); write it again, or leave it out "
            "(--skip-bad)."
        ) from error


def _header(file: Any, place: Place) -> dict[str, Any]:
    """The header of an open file, if each of its columns has a name of its own."""
    names = Counter(file.schema_arrow.names)
    twice = [name for name, times in names.items() if times > 1]
    if twice:
        raise InputError(f"column {twice[0]} is there {names[twice[0]]} times")
    try:
        content = json.loads((file.schema_arrow.metadata or {}).get(KEY, b"null"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"its header is no JSON: {reason(error)}") from error
    return check_header(content, place)


def refused(place: object, error: OSError) -> InputError:
    """The sentence for a file that is there but cannot be had."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{place} is gone since the folder was listed; read the folder again.")
    return InputError(f"{place} may not be read (permission denied); ask for the right to read it.")


def reason(error: Exception) -> str:
    """What an error says, in one line without a full stop."""
    return str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__


def read_table(place: Place, wanted: Collection[str] | None = None, rows: np.ndarray | None = None) -> Run:
    """Read one Parquet file that `write_table` wrote.

    Args:
        place: the file.
        wanted: names of the columns to load, as far as the file has them; None for all.
        rows: which rows to keep, bool [rows]; row groups without any are not touched. None keeps all.

    Raises:
        CorruptFileError: the file is truncated, damaged, of another format or of a newer layout, or holds what no run
            can.
        ShapeError: columns that do not line up.
    """
    runs = list(read_groups(place, wanted, rows, tokens=None))
    return runs[0] if len(runs) == 1 else Run.concat(runs)


def read_groups(
    place: Place, wanted: Collection[str] | None, rows: np.ndarray | None, *, tokens: int | None
) -> Iterator[Run]:
    """Read one Parquet file in runs of about so many tokens, each of whole row groups; None for one run.

    A file of which no row is kept gives one empty run.

    Raises:
        CorruptFileError: the file is damaged, or has other rows than when it was looked at.
    """
    with opened(place) as (file, content):
        names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
        if rows is not None and len(rows) != file.metadata.num_rows:
            raise CorruptFileError(f"{place} was changed while it was read; read it again.")
        kept = kept_rows(file, rows)
        for groups in _batches(file, kept, tokens):
            table = file.read_row_groups(groups, columns=names, use_threads=False)
            if rows is not None:
                table = table.filter(np.concatenate([kept[g] for g in groups] or [rows[:0]]))
            yield from_header(content, {name: from_arrow(table[name]) for name in names})


def kept_rows(file: Any, rows: np.ndarray | None) -> list[np.ndarray]:
    """Which rows of each row group to keep, bool [rows of the group]; all where `rows` is None."""
    sizes = [file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)]
    every = np.ones(sum(sizes), dtype=bool) if rows is None else rows
    return [every[first:end] for first, end in pairwise(accumulate(sizes, initial=0))]


def _batches(file: Any, kept: Sequence[np.ndarray], tokens: int | None) -> Iterator[list[int]]:
    """Numbers of the row groups with a kept row, some at a time; at least one batch, if an empty one."""
    groups = [group for group, rows in enumerate(kept) if rows.any()]
    batch: list[int] = []
    held = 0
    for group in groups:
        size = max((_values_in(file, group)), default=0)
        if batch and tokens is not None and held + size > tokens * 3 // 2:
            yield batch
            batch, held = [], 0
        batch.append(group)
        held += size
    if batch or not groups:
        yield batch


def _values_in(file: Any, group: int) -> list[int]:
    """How many values each column has in a row group."""
    meta = file.metadata.row_group(group)
    return [meta.column(i).num_values for i in range(meta.num_columns)]


def constant(file: Any, name: str) -> Any:
    """The one value that a column of single values has in the whole file, from its statistics; None where unknown."""
    ends = ends_of(file, name)
    return ends[0] if ends is not None and ends[0] == ends[1] else None


def ends_of(file: Any, name: str) -> tuple[Any, Any] | None:
    """The least and the largest value of a column of single values, from its statistics; None where unknown."""
    if name not in file.schema_arrow.names or not file.metadata.num_row_groups:
        return None
    least, largest = [], []
    for g in range(file.metadata.num_row_groups):
        meta = file.metadata.row_group(g)
        column = next((c for c in (meta.column(i) for i in range(meta.num_columns)) if c.path_in_schema == name), None)
        known = column.statistics if column is not None else None
        if known is None or not known.has_min_max or known.null_count:
            return None
        least.append(known.min)
        largest.append(known.max)
    return min(least), max(largest)
