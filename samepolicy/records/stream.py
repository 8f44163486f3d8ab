"""A run part by part, for what is larger than memory."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.errors import InputError
from samepolicy.records.arrow import column_names, from_header, read_table
from samepolicy.records.merge import check_sides
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS
from samepolicy.records.store import _HEADER, _header, _needed, _parts, read


def stream(path: str | os.PathLike[str], *, columns: Iterable[str] | None = None) -> Iterator[Run]:
    """Read a run folder one part after another, in the order of `read`; only one part is in memory at a time.

    What takes runs one by one (`whatif`, `trend`) gives the same from this as from the whole run. A dump of another
    program is read as a whole.

    Args:
        path: the folder or file.
        columns: names to load as far as the run has them, None for all; masks and ids that they need come along.

    Yields:
        One run per part; a float column that only other parts have is NaN there.

    Raises:
        InputError: nothing is there, or nothing that can be read, or the parts' sides declare different things.
        CorruptFileError: a file is truncated, damaged or of a newer layout; the message names it.

    >>> from samepolicy.demo import RECORDED
    >>> [len(part) for part in stream(RECORDED)]
    [16]
    """
    folder = Path(path)
    if not (folder / _HEADER).is_file():
        yield read(folder)
        return
    header, parts = _header(folder), _parts(folder)
    if not parts:
        raise InputError(f"{folder} is a run folder without a finished part yet; read it again later.")
    names = [column_names(part) for part in parts]
    anywhere = {name for part in names for name in part}
    needed = _needed(anywhere if columns is None else anywhere & set(columns), names)
    for part in parts:
        run = read_table(part, needed)
        check_sides([from_header(header, {}), run])
        yield _filled(run, anywhere & needed)


def _filled(run: Run, names: set[str]) -> Run:
    """The run with NaN in the float columns that it lacks."""
    lacking = [n for n in sorted(names - set(run.columns)) if n in COLUMNS and COLUMNS[n].dtype == "float"]
    offsets = run.offsets
    per_token = Ragged(np.full(int(offsets[-1]), np.nan), offsets)
    single = np.full(len(run), np.nan)
    tokens = {n: per_token for n in lacking if COLUMNS[n].kind == "token" and not COLUMNS[n].wide}
    return run.with_columns(**tokens, **{n: single for n in lacking if COLUMNS[n].kind == "response"})
