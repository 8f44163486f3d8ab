"""The parts that views are made of: numbers as text, headings, and tables that read well with and without colour."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.padding import Padding
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

STATUS = {"passed": "green", "failed": "bold red", "not checked": "yellow"}
WORD = 10
"""The least width of a column of text."""

STATE = {"normal": "green", "low": "bold yellow", "high": "bold yellow", "no value": "dim"}


def number(value: float | None, digits: int = 4) -> str:
    """A number in four significant digits, or one less with an exponent; a dash where there is none.

    >>> number(0.00012345), number(0.00012345, 3), number(1024), number(float("inf")), number(None)
    ('1.23e-04', '1.2e-04', '1024', 'inf', '–')
    """
    if value is None or math.isnan(value):
        return "–"
    if isinstance(value, int):
        return str(value)
    tiny = value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e5) and math.isfinite(value)
    return f"{value:.{digits - 2}e}" if tiny else f"{value:.{digits}g}"


def interval(low: float, high: float) -> str:
    """A range in words; an open end has no number.

    >>> interval(0.5, 2.0), interval(float("-inf"), 0.01), interval(0.3, float("nan"))
    ('0.5 to 2', 'up to 0.01', '–')
    """
    if math.isnan(low) or math.isnan(high):
        return "–"
    if math.isinf(low):
        return f"up to {high:g}"
    return f"{low:g} or more" if math.isinf(high) else f"{low:.3g} to {high:.3g}"


def times(value: float) -> str:
    """A multiple in a few places, such as G / floor².

    >>> times(0.6449), times(58.94), times(0.0008), times(float("nan"))
    ('0.64', '58.9', '0.00', '–')
    """
    if math.isnan(value):
        return "–"
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def reflow(text: str) -> str:
    r"""A docstring with one line per paragraph and per argument, to be broken anew; examples stay as they are.

    >>> reflow("One\nparagraph.\n\nArgs:\n    a: the\n        first.\n    b: another.")
    'One paragraph.\n\nArgs:\n    a: the first.\n    b: another.'
    """
    blocks = text.split("\n\n")
    return "\n\n".join(block if ">>> " in block else "\n".join(_joined(block.splitlines())) for block in blocks)


def _joined(lines: Iterable[str]) -> list[str]:
    """Lines that go on with the one before, put behind it."""
    whole: list[str] = []
    for line in lines:
        indent = len(line) - len(line.lstrip())
        begun = len(whole[-1]) - len(whole[-1].lstrip()) if whole else 0
        goes_on = whole and not whole[-1].endswith(":") and (indent > begun or indent == begun == 0)
        if goes_on and not line.lstrip().startswith("- "):
            whole[-1] += f" {line.strip()}"
        else:
            whole.append(line)
    return whole


def heading(title: str, remark: str = "") -> Text:
    """A title with a remark behind it."""
    return Text.assemble(("\n" + title, "bold"), (f" ({remark})" if remark else "", "dim"))


def inline(title: str, text: str) -> Text:
    """A title with its text in the same line."""
    return Text.assemble((f"\n{title}: ", "bold"), text)


def paragraph(text: str, style: str = "") -> "Indented":
    """Text under a title."""
    return Indented(Text(text, style))


@dataclass(frozen=True)
class Indented:
    """A text or table under a title, one place to the right.

    Where a terminal is too narrow for a table's numbers, its lines get longer than the terminal: no number is cut.
    """

    part: Text | Table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Render in the terminal's width, or in what the numbers need."""
        width = max(options.max_width, self._needed())
        yield from console.render(Padding(self.part, (0, 0, 0, 1)), options.update(width=width))

    def _needed(self) -> int:
        """The least width in which no number is cut and a word of text fits."""
        if isinstance(self.part, Text):
            return 0
        return 1 + sum(_width(column) + 2 for column in self.part.columns)


def table(*columns: str, numbers: Sequence[str] = (), fixed: Sequence[str] = ()) -> Table:
    """An empty table.

    Args:
        *columns: headings.
        numbers: columns that hold numbers: to the right, never broken.
        fixed: columns whose text is never broken.
    """
    made = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=True, padding=(0, 1, 0, 0), header_style="dim")
    for name in columns:
        whole = name in numbers or name in fixed
        made.add_column(name, justify="right" if name in numbers else "left", no_wrap=whole, overflow="fold")
    return made


def rows(made: Table, content: Iterable[Sequence[str | Text]]) -> Table:
    """The table with these rows; no text is read as markup."""
    for row in content:
        made.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in row))
    return made


def _width(column: Column) -> int:
    """The least width of a column."""
    widest = max((cell_len(str(cell)) for cell in (column.header, *column.cells)), default=0)
    return widest if column.no_wrap else min(widest, WORD)
