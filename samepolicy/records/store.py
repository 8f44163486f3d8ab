"""Runs on disk: a folder with `run.json` and one Parquet file per appended part.

A part is written under a hidden name, flushed to the disk and then renamed, and no finished file is ever written
again. So a folder can be read while it grows, and a killed writer loses the part that it was writing and nothing else.
"""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError, MissingColumnError
from samepolicy.records.arrow import from_header, header, write_table
from samepolicy.records.formats import import_run
from samepolicy.records.merge import check_sides
from samepolicy.records.parts import HEADER, label, parts
from samepolicy.records.parts import header as read_header
from samepolicy.records.places import Place, text_of
from samepolicy.records.publish import publish
from samepolicy.records.run import Run
from samepolicy.records.source import OnBad, Source, is_run, needed_columns, open_source, tell
from samepolicy.records.where import Where


def write(run: Run, path: str | os.PathLike[str], *, step: int | None = None) -> Path:
    """Append a run to a run folder as one new file; make the folder if there is none.

    Args:
        run: the responses to append, at least one column.
        path: the run folder.
        step: training step of all of them, 0 or more; fills the `step` column of a run that has none.

    Returns:
        The file written.

    Raises:
        InputError: the folder holds something else, or was written by sides that declare other things.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     file = write(Run.from_lists(rollout_logp=[[-0.5, -1.0]]), folder, step=3)
    ...     file.name, read(folder)["step"].tolist()
    ('part-00000003-000000.parquet', [3])
    """
    folder, stamped = Path(text_of(path)), _with_step(run, step)
    content = header(stamped)
    _claim_folder(folder, content)
    check_sides([from_header(read_header(Place.of(folder)), {}), from_header(content, {})])
    step_of_all = _step_of_all(stamped)
    number = _next_number(folder, step_of_all)
    while not publish(
        part := folder / f"part-{label(step_of_all)}-{number:06d}.parquet", lambda file: write_table(stamped, file)
    ):
        number += 1
    return part


def write_steps(run: Run, path: str | os.PathLike[str]) -> list[Path]:
    """Append a run to a run folder, its steps in parts of their own, in rising order.

    Args:
        run: the responses to append; one without a step column becomes one part.
        path: the run folder.

    Returns:
        The files written.
    """
    if "step" not in run or len(steps := np.unique(run["step"])) < 2:
        return [write(run, path)]
    return [write(run.select(run["step"] == step), path) for step in steps]


def read(
    path: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    steps: Iterable[int] | None = None,
    samples: Iterable[int] | None = None,
    finish_reasons: Iterable[str | None] | None = None,
    on_bad: OnBad | None = None,
) -> Run:
    """Read a run folder, or any dump that `import_run` knows.

    Parts come in the order of their steps, and within a step in the order in which they were appended. Where training
    was resumed and a step recorded again, the last writing counts; of responses that overlapping parts share, one copy
    does. Choosing responses or columns reads no others.

    Args:
        path: the folder or file; a run folder may be a URL of any file system that pyarrow or fsspec knows.
        columns: names to load, None for all; the mask and the ids that these columns' lengths follow come along.
        steps: training steps to load, None for all; those that are not there are said.
        samples: numbers within step or group to load, None for all.
        finish_reasons: load only responses whose sampling ended so ("stop", "length"); None for all.
        on_bad: called with the error of each file that is left out because it cannot be read; None raises the first.

    Returns:
        One run of everything asked for.

    Raises:
        InputError: nothing is there, or nothing that can be read.
        CorruptFileError: a file is truncated, damaged or of a newer layout; the message names it.
        MissingColumnError: a column that no part has.
    """
    place, wanted = Place.of(path), None if columns is None else tuple(columns)
    where = Where.of(steps=steps, samples=samples, finish_reasons=finish_reasons)
    if is_run(place):
        source = open_source(place, columns=wanted, where=where, on_bad=on_bad)
        run = load(source, on_bad=on_bad)
    else:
        run = where.select(_imported(place, on_bad))
    if wanted is None:
        return run
    missing = [name for name in wanted if name not in run]
    if missing:
        raise MissingColumnError(f"{place} has no column {missing[0]}; read it without columns= to see what it has.")
    return run.without(*set(run.columns) - needed_columns(wanted, [list(run.columns)]))


def load(source: Source, *, on_bad: OnBad | None = None) -> Run:
    """All pieces of an opened run folder, one after another.

    Args:
        source: the folder, with the columns to load.
        on_bad: called with the error of each file that is left out because it cannot be read; None raises the first.

    Raises:
        CorruptFileError: a file is damaged, or all that there are.
    """
    runs, error = [], None
    for piece in source.pieces:
        try:
            runs.append(source.load(piece))
        except CorruptFileError as found:
            tell(found, on_bad)
            error = found
    if not runs and error is not None:
        raise error
    return Run.concat(runs)


def _imported(place: Place, on_bad: OnBad | None) -> Run:
    """A dump of another program; such are read from local paths only."""
    if place.local is None:
        raise InputError(
            f"There is no run folder at {place}; check the address, and give a dump of another program by a local path."
        )
    if not place.local.exists():
        raise InputError(f"{place} does not exist; give the path of a run folder.")
    return import_run(place.local, on_bad=on_bad)


def _with_step(run: Run, step: int | None) -> Run:
    """The run with its step column filled in."""
    if not isinstance(run, Run):
        raise InputError(f"What is written is a Run, and this is {type(run).__name__}; make one with Run.from_lists.")
    if not run.columns:
        raise InputError("A run without any column holds nothing to write; give it columns first.")
    if step is None:
        return run
    if not isinstance(step, int | np.integer) or step < 0:
        raise InputError(f"step must be a whole number, 0 or more, but it is {step!r}.")
    if "step" in run and (run["step"] != step).any():
        raise InputError(f"step={step} contradicts the run's own step column; leave step= out or drop the column.")
    return run.with_columns(step=np.full(len(run), step))


def _claim_folder(folder: Path, content: dict[str, Any]) -> None:
    """Make the folder a run folder, unless it is one; refuse one that holds something else."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder to write a run to.")
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / HEADER).exists():
        return
    foreign = [entry.name for entry in folder.iterdir() if not _is_temporary(entry)]
    if foreign and not (folder / HEADER).exists():
        raise InputError(f"{folder} holds other files ({min(foreign)}) and no run; give a new or an empty folder.")
    publish(folder / HEADER, lambda file: file.write(json.dumps(content, indent=1).encode()), unique=True)


def _is_temporary(entry: Path) -> bool:
    """Whether a file is one that a writer has not finished."""
    return entry.name.startswith(".") and entry.name.endswith(".tmp")


def _step_of_all(run: Run) -> int | None:
    """The one step of all responses; None where there are several or none."""
    steps = np.unique(run["step"]).tolist() if "step" in run else []
    return int(steps[0]) if len(steps) == 1 and steps[0] >= 0 else None


def _next_number(folder: Path, step: int | None) -> int:
    """The number after those of the parts of this step."""
    return max((part.number for part in parts(Place.of(folder)) if part.step == step), default=-1) + 1
