"""A .parquet file with one response a row, the columns named as in a run.

Values per token are lists, and null stands for a missing number or text. Columns of other names are taken with a map
from ours to theirs. A file that samepolicy wrote, such as one part of a run folder, brings its sides and info along.
"""

import json
from pathlib import Path
from typing import Any

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.arrow import KEY, from_header, write_table
from samepolicy.records.dumps import USUAL, Options, mapped
from samepolicy.records.places import Place
from samepolicy.records.publish import publish_new
from samepolicy.records.run import Run
from samepolicy.records.tables import read_table, reason

MAPS = True
"""The reader applies the column map itself."""


def detect(path: Path) -> bool:
    """Whether the path is a file of that name."""
    return path.is_file() and path.suffix == ".parquet"


def read(path: Path, options: Options = USUAL) -> Run:
    """All responses of a file.

    Args:
        path: the file.
        options: a column map.

    Raises:
        CorruptFileError: the file is truncated, or is no Parquet file.
        InputError: no response, or a column that no run can hold.
    """
    columns, about = columns_of(path)
    if not any(len(values) for values in columns.values()):
        raise InputError(f"{path} holds no response; give a file with one response a row.")
    if about and not options.columns:
        return read_table(Place.of(path))
    return from_header(about, mapped(columns, options))


def columns_of(path: Path) -> tuple[dict[str, list[Any]], dict[str, Any]]:
    """The columns of a Parquet file as lists, and the header that samepolicy put there, if it wrote the file.

    Raises:
        CorruptFileError: the file is truncated, or is no Parquet file.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with Place.of(path).source() as source, pq.ParquetFile(source) as file:
            table, stored = file.read(), (file.schema_arrow.metadata or {}).get(KEY, b"{}")
        return {name: _lists(table[name]) for name in table.column_names}, dict(json.loads(stored))
    except (InputError, PermissionError, FileNotFoundError):
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptFileError(
            f"{path} is truncated or is no Parquet file ({reason(error)}); copy it again."
        ) from error


def write(run: Run, path: Path) -> None:
    """Write a run as one new Parquet file, compressed as in a run folder.

    Raises:
        InputError: the file exists, or text or info that no file can hold.
    """
    publish_new(path, lambda file: write_table(run, file))


def _lists(column: Any) -> list[Any]:
    """A column's entries; lists of numbers as arrays of their own type."""
    import pyarrow as pa

    kind = column.type
    nested = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if not nested or column.null_count or not pa.types.is_primitive(kind.value_type):
        return list(column.to_pylist())
    if any(chunk.flatten().null_count for chunk in column.chunks):
        return list(column.to_pylist())
    return [entry.values.to_numpy(zero_copy_only=False) for chunk in column.chunks for entry in chunk]
