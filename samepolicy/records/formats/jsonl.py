"""A .jsonl file with one response a line, the columns named as in a run.

Values per token are lists, and null stands for a missing number or text. Columns of other names are taken
with a map from ours to theirs. A first line with the one key "run" may hold
the sides and info: {"run": {"rollout": {...}, "trainer": {...}, "info": {...}}}.
"""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.arrow import from_header, header
from samepolicy.records.dumps import USUAL, Options, json_lines, mapped
from samepolicy.records.publish import publish_new
from samepolicy.records.run import Run
from samepolicy.records.source import tell

MAPS = True
"""The reader applies the column map itself."""


def detect(path: Path) -> bool:
    """Whether the path is a file of that name."""
    return path.is_file() and path.suffix == ".jsonl"


def read(path: Path, options: Options = USUAL) -> Run:
    """All responses of a file.

    Args:
        path: the file.
        options: a column map, and who is told of a line that cannot be read; lines before it are kept then.

    Raises:
        CorruptFileError: a line that is no JSON object; the message has its number.
        InputError: no response, or a line with other columns than the first.
    """
    lines = _whole_lines(path, options)
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
    return from_header(head, mapped({name: [line[name] for _, line in lines] for name in names}, options))


def _whole_lines(path: Path, options: Options) -> list[tuple[int, dict[str, Any]]]:
    """Every line, or those before the first that cannot be read, if somebody is told of that."""
    lines: list[tuple[int, dict[str, Any]]] = []
    try:
        for pair in json_lines(path):
            lines.append(pair)
    except CorruptFileError as error:
        tell(error, options.on_bad)
    return lines


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
    about = {key: value for key, value in header(run).items() if key in ("rollout", "trainer", "info") and value}
    columns = {name: [_plain(v) for v in column] for name, column in run.columns.items()}
    rows = [{name: values[i] for name, values in columns.items()} for i in range(len(run))]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ([{"run": about}] if about else []) + rows)
    publish_new(Path(path), lambda file: file.write(text.encode()))


def _plain(entry: Any) -> Any:
    """One response's entry as JSON values, NaN as null."""
    if isinstance(entry, np.ndarray | np.generic):
        entry = entry.tolist()
    if isinstance(entry, list):
        return [_plain(value) for value in entry]
    return None if isinstance(entry, float) and math.isnan(entry) else entry
