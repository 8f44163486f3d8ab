"""A run as one Parquet file and back: one row a response, a list where a response has a value per token."""

import json
import os
from collections.abc import Mapping
from io import BytesIO
from typing import IO, Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.columns import Packed
from samepolicy.records.places import Place
from samepolicy.records.run import Run
from samepolicy.records.side import Side

SCHEMA = 1
"""Version of the layout of a stored run; a reader refuses a newer one."""

GROUP_TOKENS = 1 << 20
"""Tokens of a row group, about: what is read, or passed by, as one."""
CODEC = "zstd, floats split by byte"
"""How columns are compressed; nothing is rounded."""

KEY = b"samepolicy"
"""Where the header stands in a Parquet file's metadata."""


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


def check_header(content: Any, path: "os.PathLike[str] | Place") -> dict[str, Any]:
    """The header of a stored run, if this version can read what follows it.

    Raises:
        CorruptFileError: not the header of a run, of a newer layout, or with sides or info that no run has.
    """
    if not isinstance(content, dict) or content.get("format") != "samepolicy run":
        raise CorruptFileError(f"{path} was not written by samepolicy; give a run folder, or import the data first.")
    schema = content.get("schema")
    if type(schema) is not int or not 1 <= schema <= SCHEMA:
        raise CorruptFileError(
            f"{path} has layout version {schema!r}, but this samepolicy reads up to {SCHEMA}; update it to read on."
        )
    try:
        from_header(content, {})
    except InputError as error:
        raise CorruptFileError(f"The header of {path} is damaged: {error}") from error
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


def write_table(run: Run, file: IO[bytes] | BytesIO) -> None:
    """Write a run to an open file as Parquet, compressed, with checksums on every page and the header in its metadata.

    Raises:
        InputError: text that is not valid Unicode.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        arrays = {name: to_arrow(column) for name, column in run.columns.items()}
    except UnicodeEncodeError as error:
        raise InputError(
            f"A text column holds characters that no file can ({error}); decode it with replacement."
        ) from error
    table = pa.table(arrays).replace_schema_metadata({KEY: json.dumps(header(run))})
    leaves = {_leaf(field): _scalar(field.type) for field in table.schema}
    split = [name for name, kind in leaves.items() if pa.types.is_floating(kind)]
    pq.write_table(
        table,
        file,
        compression="zstd",
        write_page_checksum=True,
        use_byte_stream_split=split,
        use_dictionary=[name for name in leaves if name not in split],
        row_group_size=max(1, len(run) * GROUP_TOKENS // max(GROUP_TOKENS, int(run.offsets[-1]))),
    )


def _leaf(field: Any) -> str:
    """The name under which Parquet keeps the values of a column."""
    depth, kind = 0, field.type
    while hasattr(kind, "value_type"):
        depth, kind = depth + 1, kind.value_type
    return str(field.name) + ".list.element" * depth


def _scalar(kind: Any) -> Any:
    """The type of a column's single values."""
    while hasattr(kind, "value_type"):
        kind = kind.value_type
    return kind


def to_arrow(column: Packed) -> Any:
    """One column as an Arrow array; token values stay in one packed buffer."""
    import pyarrow as pa

    values = column.values if isinstance(column, Ragged) else column
    flat = pa.array(values.ravel(), type=pa.string() if values.dtype.kind == "O" else None)
    if values.ndim == 2:
        flat = pa.FixedSizeListArray.from_arrays(flat, values.shape[1])
    return pa.LargeListArray.from_arrays(column.offsets, flat) if isinstance(column, Ragged) else flat


def from_arrow(chunked: Any) -> Packed:
    """The inverse of `to_arrow`."""
    import pyarrow as pa

    array = chunked.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    if not pa.types.is_large_list(array.type):
        return _values(array)
    offsets, inner = _values(array.offsets), array.values
    inner = inner.slice(offsets[0], offsets[-1] - offsets[0])
    if pa.types.is_fixed_size_list(inner.type):
        width = inner.type.list_size
        return Ragged(_values(inner.flatten()).reshape(-1, width), offsets - offsets[0])
    return Ragged(_values(inner), offsets - offsets[0])


def _values(array: Any) -> np.ndarray:
    """Arrow values as a NumPy array that may be written to; text as str objects."""
    import pyarrow as pa

    if array.null_count or not pa.types.is_primitive(array.type):
        values: np.ndarray = array.to_numpy(zero_copy_only=False)
        return values if values.flags.writeable else values.copy()
    if pa.types.is_boolean(array.type):  # DLPack has no single bits
        return np.from_dlpack(array.cast(pa.uint8())).view(bool).copy()
    return np.from_dlpack(array).copy()  # `to_numpy` would load pandas
