"""What the readers of other programs' dumps share: lines of JSON, files by number, padding, and the column map."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError, MissingColumnError, SamePolicyError
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS
from samepolicy.records.side import Side
from samepolicy.records.source import OnBad, tell


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a dump is to be read.

    Attributes:
        columns: for a column of a run, the name that the dump gives it.
        unsafe_pickle: whether a pickle may be read at all.
        on_bad: called with the error of each file that cannot be read and is left out; None raises it.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    unsafe_pickle: bool = False
    on_bad: OnBad | None = None


USUAL = Options()
"""Nothing is asked for."""


def mapped(columns: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """The columns under the names of a run.

    With a map, what is neither in it nor known to the schema is left out. Without one everything stays.

    Raises:
        MissingColumnError: the map names a column that is not there, or no column is one of a run; the message lists
            those that are there.

    >>> mapped({"old_lp": [[-1.0]], "mask": [[1]], "x": [3]}, Options(columns={"trainer_logp": "old_lp"}))
    {'trainer_logp': [[-1.0]], 'mask': [[1]]}
    """
    if not options.columns:
        if not COLUMNS.keys() & columns.keys():
            raise MissingColumnError(
                f"No column has the name of one of a run; there are {', '.join(map(str, columns)) or 'none'}, so say "
                "what they are with a map, such as trainer_logp=NAME."
            )
        return dict(columns)
    absent = [theirs for theirs in options.columns.values() if theirs not in columns]
    if absent:
        raise MissingColumnError(f"There is no column {absent[0]} to take; there are {', '.join(sorted(columns))}.")
    taken = {ours: columns[theirs] for ours, theirs in options.columns.items()}
    used = set(options.columns.values())
    rest = {n: c for n, c in columns.items() if n not in used and n not in taken and n in COLUMNS}
    return {**taken, **rest}


def renamed(run: Run, options: Options) -> Run:
    """A run whose reader knows its columns, with those of the map under the names asked for."""
    if not options.columns:
        return run
    taken = mapped(run.columns, options)
    used = set(options.columns.values())
    return replace(run, columns={**{n: c for n, c in run.columns.items() if n not in used}, **taken})


def is_json_lines(path: Path, keys: Iterable[str]) -> bool:
    """Whether a file's first line is a JSON object with all of these keys; never raises."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            first = json.loads(file.readline(1 << 24))
        return isinstance(first, dict) and {*keys} <= first.keys()
    except (OSError, ValueError, RecursionError):
        return False


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line of a .jsonl file that is not blank, with its number; lines that are added meanwhile are not read.

    Raises:
        CorruptFileError: a line that is no JSON object; the message has its number.
    """
    end, number = path.stat().st_size, 0
    with path.open("rb") as file:
        try:
            while file.tell() < end and (line := file.readline()):
                number += 1
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if text.strip():
                    yield number, _object(json.loads(text, object_pairs_hook=_once))
        except UnicodeDecodeError as error:
            raise CorruptFileError(
                f"{path} is not UTF-8 after line {number - 1} ({error}); save it in UTF-8."
            ) from error
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(_bad_line(path, number, error, whole=line.endswith(b"\n"))) from error


def _bad_line(path: Path, number: int, error: Exception, *, whole: bool) -> str:
    """The sentence about a line that cannot be read; the last one may still be on its way."""
    if whole:
        return f"{path} has no JSON object on line {number} ({error}); mend that line."
    return (
        f"{path} has no JSON object on line {number}, its last ({error}); it was cut off or is still being written, so "
        "read it again later or remove that line."
    )


def _object(value: Any) -> dict[str, Any]:
    """The value, if it is a JSON object."""
    if not isinstance(value, dict):
        raise ValueError(f"it holds {type(value).__name__}")
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, if no name stands in it twice."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None) if len({*names}) < len(names) else None
    if twice is not None:
        raise ValueError(f"it gives {twice!r} twice")
    return dict(pairs)


def numbered(folder: Path, pattern: str) -> list[tuple[int, Path]]:
    """The files of a folder, or the one file, whose name fits; by the number in it.

    Args:
        folder: a folder, or a file.
        pattern: a regular expression with one group, the number.
    """
    files = folder.iterdir() if folder.is_dir() else [folder]
    found = [(int(match[1]), file) for file in files if (match := re.fullmatch(pattern, file.name))]
    return sorted(found, key=lambda pair: (pair[0], pair[1].name))


def each(files: Sequence[Path], read: Callable[[Path], Run], options: Options) -> Run:
    """The runs of several files, one after another; one that cannot be read is told, or raises.

    Raises:
        CorruptFileError: a file cannot be read, and nobody asked to be told; or none of them can.
        InputError: there is no file, or one holds what no run can; the message names it.
    """
    if not files:
        raise InputError("No file of that format is there; give the folder or file that its program wrote.")
    runs = []
    for file in files:
        try:
            runs.append(named(file, read))
        except CorruptFileError as error:
            tell(error, options.on_bad)
    if not runs:
        raise CorruptFileError(f"None of the {len(files)} files such as {files[0]} can be read; copy them again.")
    return runs[0] if len(runs) == 1 else Run.concat(runs)


def named(file: Path, read: Callable[[Path], Run]) -> Run:
    """What a reader makes of a file, with the file's name in whatever it refuses."""
    try:
        return read(file)
    except SamePolicyError as error:
        if str(file) in str(error):
            raise
        raise type(error)(f"{file}: {error}") from error
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise CorruptFileError(
            f"{file} is not as its writer builds it ({what}); give the file as it was written."
        ) from error


def begins(mask: Sequence[Any]) -> int:
    """Where the response begins: at the first position that the policy sampled; the length where there is none.

    >>> begins([0, 0, 1, 0, 1])
    2
    """
    return next((i for i, value in enumerate(mask) if value), len(mask))


def number(value: Any) -> float:
    """A number, NaN where it is missing."""
    return np.nan if value is None else float(value)


def numbers(values: Iterable[Any]) -> np.ndarray:
    """Numbers as float32, NaN where one is missing."""
    return np.array([number(value) for value in values], dtype=np.float32)


def gathered(rows: Sequence[Mapping[str, Any]], *, source: str, rollout: Side = Side(), **info: Any) -> Run:
    """A run of one mapping for each response; None stands for what a response does not have.

    A column that only some responses have is left out, and named in `info["left_out"]`: nothing is made up.

    Args:
        rows: columns of each response.
        source: the format's name.
        rollout: what the rollout side declares.
        **info: anything else worth keeping.

    Raises:
        InputError: there is no response.
    """
    if not rows:
        raise InputError("There is no response in it; give a dump with at least one.")
    names = dict.fromkeys(name for row in rows for name, value in row.items() if value is not None)
    partial = [name for name in names if any(row.get(name) is None for row in rows)]
    columns = {name: [row[name] for row in rows] for name in names if name not in partial}
    more = {"left_out": partial} if partial else {}
    return Run(columns, rollout=rollout, info={"source": source, **info, **more})
