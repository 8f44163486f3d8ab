"""Runs on disk: a folder with `run.json` and one Parquet file per appended part.

A part is written under a hidden name, flushed to the disk and then renamed, and no finished file is ever written
again. So a folder can be read while it grows, and a killed writer loses the part that it was writing and nothing else.
"""

import json
import os
import re
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError, MissingColumnError
from samepolicy.records.arrow import check_header, column_names, from_header, header, read_table, write_table
from samepolicy.records.formats import import_run
from samepolicy.records.merge import check_sides
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS

_HEADER = "run.json"
_PART = re.compile(r"part-(any|\d+)-(\d+)\.parquet")


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
    folder, stamped = Path(path), _with_step(run, step)
    content = header(stamped)
    _claim_folder(folder, content)
    check_sides([from_header(_header(folder), {}), from_header(content, {})])
    number = _next_number(folder, label := _step_label(stamped))
    while not _publish(part := folder / f"part-{label}-{number:06d}.parquet", lambda file: write_table(stamped, file)):
        number += 1
    return part


def read(
    path: str | os.PathLike[str], *, columns: Iterable[str] | None = None, steps: Iterable[int] | None = None
) -> Run:
    """Read a run folder, or any dump that `import_run` knows.

    Parts come in the order of their steps, and within a step in the order in which they were appended.

    Args:
        path: the folder or file.
        columns: names to load, None for all; the mask and the ids that these columns' lengths follow come along.
        steps: training steps to load, None for all.

    Returns:
        One run of everything asked for.

    Raises:
        InputError: nothing is there, or nothing that can be read.
        CorruptFileError: a file is truncated, damaged or of a newer layout; the message names it.
        MissingColumnError: a column that no part has.
    """
    folder = Path(path)
    wanted = None if columns is None else tuple(columns)
    chosen = None if steps is None else {int(step) for step in steps}
    if not folder.exists():
        raise InputError(f"{folder} does not exist; give the path of a run folder.")
    parts = (
        _read_parts(folder, wanted, chosen) if (folder / _HEADER).is_file() else [_of_steps(import_run(folder), chosen)]
    )
    run = Run.concat(parts)
    if wanted is None:
        return run
    missing = [name for name in wanted if name not in run]
    if missing:
        raise MissingColumnError(f"{folder} has no column {missing[0]}; read it without columns= to see what it has.")
    return run.without(*set(run.columns) - _needed(wanted, [list(run.columns)]))


def _read_parts(folder: Path, wanted: Sequence[str] | None, steps: set[int] | None) -> list[Run]:
    """The parts of a run folder that may hold these steps, with the columns that are needed."""
    _header(folder)
    labels = {part: _label(part) for part in _parts(folder)}
    if not labels:
        raise InputError(f"{folder} is a run folder without a finished part yet; read it again later.")
    hits = [part for part, (step, _) in labels.items() if steps is None or step is None or step in steps]
    stepped = None if wanted is None else (*wanted, *(("step",) if steps is not None else ()))
    needed = None if stepped is None else _needed(stepped, [column_names(part) for part in hits])
    runs = [_of_steps(read_table(part, needed), steps) for part in hits]
    found = [run for run in runs if steps is None or len(run)]
    if not found:
        has = sorted({step for step, _ in labels.values() if step is not None})
        raise InputError(f"{folder} holds none of the steps asked for; it has {', '.join(map(str, has)) or 'others'}.")
    return found


def _needed(wanted: Iterable[str], parts: Sequence[Sequence[str]]) -> set[str]:
    """The columns to load: those asked for, the mask, and ids that give others their lengths."""
    anywhere = {name for names in parts for name in names}
    needed = {*wanted, *({"mask"} & anywhere)}
    kinds = {COLUMNS[name].kind for name in needed if name in COLUMNS}
    if "trainer token" in kinds and "trainer_response_ids" in anywhere:
        needed |= {"response_ids", "trainer_response_ids"}
    for names in parts:
        if not needed <= {*names}:
            rulers = [name for name in names if name in COLUMNS and COLUMNS[name].kind == "token"] or list(names)
            needed |= {"response_ids"} if "response_ids" in rulers else {*rulers[:1]}
    return needed


def _of_steps(run: Run, steps: set[int] | None) -> Run:
    """The responses of these steps; a run that has no step column has none of them."""
    if steps is None:
        return run
    if "step" not in run:
        raise MissingColumnError("This run has no column step, so steps= cannot choose among its responses.")
    return run.select(np.isin(run["step"], list(steps)))


def _with_step(run: Run, step: int | None) -> Run:
    """The run with its step column filled in."""
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
    if (folder / _HEADER).exists():
        return
    foreign = [entry.name for entry in folder.iterdir() if not _is_temporary(entry)]
    if foreign and not (folder / _HEADER).exists():
        raise InputError(f"{folder} holds other files ({min(foreign)}) and no run; give a new or an empty folder.")
    _publish(folder / _HEADER, lambda file: file.write(json.dumps(content, indent=1).encode()), unique=True)


def _header(folder: Path) -> dict[str, Any]:
    """What `run.json` says, if it is a run that this version reads."""
    try:
        content = json.loads((folder / _HEADER).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{folder / _HEADER} is damaged ({error}); restore it to read the folder.") from error
    return check_header(content, folder / _HEADER)


def _parts(folder: Path) -> list[Path]:
    """The finished parts of a run folder, in the order in which they are read."""
    parts = [entry for entry in folder.iterdir() if _PART.fullmatch(entry.name)]
    return sorted(parts, key=lambda part: (-1 if _label(part)[0] is None else _label(part)[0], _label(part)[1]))


def _label(part: Path) -> tuple[int | None, int]:
    """Step (None where a part holds several or none) and number of a part, from its name."""
    step, number = re.findall(_PART, part.name)[0]
    return (None if step == "any" else int(step)), int(number)


def _is_temporary(entry: Path) -> bool:
    """Whether a file is one that a writer has not finished."""
    return entry.name.startswith(".") and entry.name.endswith(".tmp")


def _step_label(run: Run) -> str:
    """What a part is called after: its step, or "any" where it has several or none."""
    steps = np.unique(run["step"]).tolist() if "step" in run else []
    return f"{steps[0]:08d}" if len(steps) == 1 and steps[0] >= 0 else "any"


def _next_number(folder: Path, label: str) -> int:
    """The number after those of the parts that have this label."""
    taken = [_label(part)[1] for part in _parts(folder) if part.name.startswith(f"part-{label}-")]
    return max(taken, default=-1) + 1


def _publish(target: Path, fill: Callable[[IO[bytes]], Any], *, unique: bool = False) -> bool:
    """Write a file so that it appears whole or not at all; False if another writer has the name.

    The hidden file is made exclusively, so that of several writers only one holds a name at a time.
    """
    hidden = target.with_name(f".{target.name}{f'.{uuid.uuid4().hex}' if unique else ''}.tmp")
    try:
        file = hidden.open("xb")
    except FileExistsError:
        return False
    try:
        with file:
            if target.exists():
                return False
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)
    _flush_folder(target.parent)
    return True


def _flush_folder(folder: Path) -> None:
    """Have the folder's list of names on the disk, too (on systems that can)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
