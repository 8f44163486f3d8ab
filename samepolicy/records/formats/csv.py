"""A .csv file with a heading: one response a row, or one token a row with the number of its response.

In a row of a response, values per token stand in one cell: a JSON list, or numbers with spaces between. In a file of
one token a row, the column `sample` (and `step` and `group` where they are) says which response a token belongs to;
its rows follow one another. An empty cell is a missing value. Columns of other names are taken with a map from ours to
theirs.
"""

import csv
import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.dumps import USUAL, Options, mapped
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS

MAPS = True
"""The reader applies the column map itself."""
RESPONSE = ("step", "group", "sample")
"""What says to which response a row of one token belongs."""


def detect(path: Path) -> bool:
    """Whether the path is a file of that name."""
    return path.is_file() and path.suffix == ".csv"


def read(path: Path, options: Options = USUAL) -> Run:
    """All responses of a file.

    Args:
        path: the file.
        options: a column map.

    Raises:
        CorruptFileError: a row with more or fewer cells than the heading; the message has its line.
        InputError: no response, two columns of one name, rows of tokens without `sample`, a response with two values
            where it has one, or text where numbers belong.
    """
    rows = list(_rows(path))
    if len(rows) < 2:
        raise InputError(f"{path} holds no response; give a file with a heading and one row for each.")
    twice = next((name for name in rows[0] if name and rows[0].count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{path} has two columns {twice}; give them names of their own.")
    columns = mapped({name: [row[i] for row in rows[1:]] for i, name in enumerate(rows[0])}, options)
    if not options.columns:
        unknown = [name for name in columns if not name]
        columns = {name: cells for name, cells in columns.items() if name not in unknown}
    made = _by_token(columns) if _one_token_a_row(columns) else {n: _entries(n, c) for n, c in columns.items()}
    return Run(made, info={"source": "csv"})


def _rows(path: Path) -> Iterator[list[str]]:
    """Every row that is not blank; all as long as the heading."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader, width = csv.reader(file, strict=True), None
        try:
            for row in reader:
                width = width or len(row)
                if row and len(row) != width:
                    raise CorruptFileError(
                        f"{path} has {len(row)} cells on line {reader.line_num} where the heading has {width}; mend it."
                    )
                if row:
                    yield row
        except (csv.Error, UnicodeDecodeError) as error:
            raise CorruptFileError(f"{path} cannot be read after line {reader.line_num} ({error}); mend it.") from error


def _one_token_a_row(columns: dict[str, list[str]]) -> bool:
    """Whether the columns of values per token hold single values."""
    per_token = [name for name in columns if name in COLUMNS and COLUMNS[name].kind == "token" and name != "token_text"]
    cells = [cell for name in per_token for cell in columns[name] if not COLUMNS[name].spread]
    return bool(cells) and not any(cell.lstrip().startswith("[") or " " in cell.strip() for cell in cells)


def _by_token(columns: dict[str, list[str]]) -> dict[str, list[Any]]:
    """Rows of tokens put together to responses."""
    if "sample" not in columns:
        raise InputError(
            "The rows hold single tokens, but no column `sample` says which belong together; name it with a map."
        )
    keys = list(zip(*(columns[name] for name in RESPONSE if name in columns), strict=True))
    groups = [[i for i, _ in found] for _, found in groupby(enumerate(keys), key=lambda pair: pair[1])]
    if len({keys[rows[0]] for rows in groups}) < len(groups):
        raise InputError("The rows of a response do not follow one another; sort them by step, sample and position.")
    return {name: [_of_tokens(name, cells, rows) for rows in groups] for name, cells in columns.items()}


def _of_tokens(name: str, cells: list[str], rows: list[int]) -> Any:
    """What one response has in a column: a value for each token, or the one value they all repeat."""
    if name in COLUMNS and COLUMNS[name].kind == "response":
        values = {cells[i] for i in rows} - {""} or {""}
        if len(values) > 1:
            raise InputError(f"The rows of one response hold {' and '.join(sorted(values)[:2])} as {name}; give one.")
        return _value(name, values.pop())
    return [_value(name, cells[i]) for i in rows]


def _entries(name: str, cells: list[str]) -> list[Any]:
    """The cells of a column of one response a row."""
    nested = name in COLUMNS and COLUMNS[name].kind != "response" and not COLUMNS[name].spread
    return [_list(name, cell) if nested or cell.startswith("[") else _value(name, cell) for cell in cells]


def _list(name: str, cell: str) -> list[Any]:
    """The values of a cell that holds a list."""
    if not cell.startswith("["):
        return [_value(name, part) for part in cell.split()]
    try:
        found = json.loads(cell)
    except (ValueError, RecursionError) as error:
        raise InputError(f"A cell of column {name} begins like a list but is none ({error}); mend it.") from error
    return list(found)


def _value(name: str, cell: str) -> Any:
    """A cell as the kind of value that its column has."""
    dtype = COLUMNS[name].dtype if name in COLUMNS else "any"
    if dtype in ("str", "label") and not (dtype == "label" and cell.lstrip("-").isdigit()):
        return cell or None
    if cell == "":
        return None
    if cell.lower() in ("true", "false"):
        return cell.lower() == "true"
    try:
        return int(cell) if cell.lstrip("+-").isdigit() else float(cell)
    except ValueError as error:
        if dtype == "any":
            return cell
        raise InputError(f"Column {name} must hold numbers, but a cell holds {cell[:40]!r}; mend it.") from error
