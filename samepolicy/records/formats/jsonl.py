"""A .jsonl file with one response a line, the columns named as in a run.

Values per token are lists, and null stands for a missing number or text. A first line with the one key "run" may hold
the sides and info: {"run": {"rollout": {...}, "trainer": {...}, "info": {...}}}.
"""

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.arrow import from_header, header
from samepolicy.records.run import Run


def detect(path: Path) -> bool:
    """Whether the path is a file of that name."""
    return path.is_file() and path.suffix == ".jsonl"


def read(path: Path) -> Run:
    """All responses of a file.

    Args:
        path: the file.

    Raises:
        CorruptFileError: a line that is no JSON object; the message has its number.
        InputError: no response, or a line with other columns than the first.
    """
    lines = list(_lines(path))
    head: Any = lines.pop(0)[1]["run"] if lines and set(lines[0][1]) == {"run"} else {}
    if not lines:
        raise InputError(f"{path} holds no response; give a file with one JSON object a line.")
    names = lines[0][1].keys()
    for number, line in lines:
        if line.keys() != names:
            other = min(line.keys() ^ names)
            raise InputError(
                f"Column {other} is not on every line of {path} (see line {number}); give it on all or none."
            )
    return from_header(head, {name: [line[name] for _, line in lines] for name in names})


def write(run: Run, path: str | os.PathLike[str]) -> None:
    """Write a run as a new file, one response a line.

    Args:
        run: the run; numbers keep their value, and float32 reads back as float64.
        path: the file to make.

    Raises:
        InputError: the file exists, or info that JSON cannot hold.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write(Run.from_lists(mask=[[1, 0], [1]], reward=[0.5, np.nan]), Path(folder) / "run.jsonl")
    ...     print((Path(folder) / "run.jsonl").read_text(), end="")
    {"mask": [true, false], "reward": 0.5}
    {"mask": [true], "reward": null}
    """
    if Path(path).exists():
        raise InputError(f"{path} exists already; give a new file name.")
    about = {key: value for key, value in header(run).items() if key in ("rollout", "trainer", "info") and value}
    columns = {name: [_plain(v) for v in column] for name, column in run.columns.items()}
    rows = [{name: values[i] for name, values in columns.items()} for i in range(len(run))]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ([{"run": about}] if about else []) + rows)
    Path(path).write_text(text, encoding="utf-8")


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each line that is not blank, with its number."""
    with path.open(encoding="utf-8-sig") as file:
        number = 0
        try:
            for number, text in enumerate(file, start=1):
                if text.strip():
                    yield number, _object(json.loads(text, object_pairs_hook=_once))
        except UnicodeDecodeError as error:
            raise CorruptFileError(f"{path} is not UTF-8 after line {number} ({error}); save it in UTF-8.") from error
        except (ValueError, RecursionError) as error:
            raise CorruptFileError(f"{path} has no JSON object on line {number} ({error}); mend that line.") from error


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


def _plain(entry: Any) -> Any:
    """One response's entry as JSON values, NaN as null."""
    if isinstance(entry, np.ndarray | np.generic):
        entry = entry.tolist()
    if isinstance(entry, list):
        return [_plain(value) for value in entry]
    return None if isinstance(entry, float) and math.isnan(entry) else entry
