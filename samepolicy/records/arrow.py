"""A run as one Parquet file and back: one row a response, a list where a response has a value per token."""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.columns import Packed
from samepolicy.records.run import Run
from samepolicy.records.side import Side

SCHEMA = 1
"""Version of the layout of a stored run; a reader refuses a newer one."""

_KEY = b"samepolicy"


def header(run: Run) -> dict[str, Any]:
    """What is stored about a run beside its columns, JSON-ready.

    Raises:
        InputError: info or a side that JSON cannot hold.
    """
    from samepolicy import __version__

    sides = {"rollout": run.rollout.as_dict(), "trainer": run.trainer.as_dict()}
    content = {"format": "samepolicy run", "schema": SCHEMA, "created_by": f"samepolicy {__version__}", **sides}
    try:
        return dict(json.loads(json.dumps({**content, "info": dict(run.info)}, allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The run's info or sides hold something that JSON cannot ({error}); turn it to text."
        ) from error


def check_header(content: Any, path: Path) -> dict[str, Any]:
    """The header of a stored run, if this version can read what follows it.

    Raises:
        CorruptFileError: not the header of a run, or of a newer layout.
    """
    if not isinstance(content, dict) or content.get("format") != "samepolicy run":
        raise CorruptFileError(f"{path} was not written by samepolicy; give a run folder, or import the data first.")
    schema = content.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise CorruptFileError(
            f"{path} has layout version {schema!r}, but this samepolicy reads up to {SCHEMA}; update it to read on."
        )
    return content


def from_header(content: Any, columns: Mapping[str, Any]) -> Run:
    """A run of these columns with the sides and info of a header.

    Raises:
        CorruptFileError: sides or info of another form than `header` gives.
    """
    try:
        parts = [dict(content.get(name, {})) for name in ("rollout", "trainer", "info")]
        rollout, trainer = Side.from_dict(parts[0]), Side.from_dict(parts[1])
    except (TypeError, AttributeError) as error:
        raise CorruptFileError(
            f"The declared sides or info have a form that no run has ({error}); mend them."
        ) from error
    return Run(columns, rollout=rollout, trainer=trainer, info=parts[2])


def write_table(run: Run, file: IO[bytes]) -> None:
    """Write a run to an open file as Parquet: zstd, checksums on every page, the header in its metadata.

    Raises:
        InputError: text that is not valid Unicode.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        arrays = {name: _to_arrow(column) for name, column in run.columns.items()}
    except UnicodeEncodeError as error:
        raise InputError(
            f"A text column holds characters that no file can ({error}); decode it with replacement."
        ) from error
    table = pa.table(arrays).replace_schema_metadata({_KEY: json.dumps(header(run))})
    pq.write_table(table, file, compression="zstd", write_page_checksum=True, row_group_size=max(1, len(run)))


def column_names(path: Path) -> list[str]:
    """Names of the columns of one Parquet file, from its metadata alone.

    Raises:
        CorruptFileError: the file is truncated, damaged, of another format or of a newer layout.
    """
    with _opened(path) as (file, _):
        return list(file.schema_arrow.names)


def read_table(path: Path, wanted: Collection[str] | None = None) -> Run:
    """Read one Parquet file that `write_table` wrote.

    Args:
        path: the file.
        wanted: names of the columns to load, as far as the file has them; None for all.

    Raises:
        CorruptFileError: the file is truncated, damaged, of another format or of a newer layout.
    """
    with _opened(path) as (file, content):
        names = [name for name in file.schema_arrow.names if wanted is None or name in wanted]
        table = file.read(columns=names)
        return from_header(content, {name: _from_arrow(table[name]) for name in names})


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """The Parquet file, open, with its header; whatever goes wrong inside names the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            stored = (file.schema_arrow.metadata or {}).get(_KEY, b"null")
            yield file, check_header(json.loads(stored), path)
    except CorruptFileError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise CorruptFileError(
            f"{path} is truncated or damaged ({reason}); restore it, or move it away to read the other steps."
        ) from error


def _to_arrow(column: Packed) -> Any:
    """One column as an Arrow array; token values stay in one packed buffer."""
    import pyarrow as pa

    values = column.values if isinstance(column, Ragged) else column
    flat = pa.array(values.ravel(), type=pa.string() if values.dtype.kind == "O" else None)
    if values.ndim == 2:
        flat = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.LargeListArray.from_arrays(column.offsets, flat) if isinstance(column, Ragged) else flat


def _from_arrow(chunked: Any) -> Packed:
    """The inverse of `_to_arrow`."""
    import pyarrow as pa

    array = chunked.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    if not pa.types.is_large_list(array.type):
        return _values(array)
    offsets, inner = np.array(array.offsets, dtype=np.int64), array.values
    inner = inner.slice(offsets[0], offsets[-1] - offsets[0])
    if pa.types.is_fixed_size_list(inner.type):
        width = inner.type.list_size
        return Ragged(_values(inner.flatten()).reshape(-1, width), offsets - offsets[0])
    return Ragged(_values(inner), offsets - offsets[0])


def _values(array: Any) -> np.ndarray:
    """Arrow values as a NumPy array that may be written to; text as str objects."""
    values: np.ndarray = array.to_numpy(zero_copy_only=False)
    return values if values.flags.writeable else values.copy()
