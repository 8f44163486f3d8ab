"""What reaches the terminal: results on stdout; progress, notes and errors on stderr."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how many parts are done, and how many there are."""


def show(view: "RenderableType", value: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a result: the view of it, or with `as_json` the value itself as the only thing on stdout."""
    if as_json:
        line(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))
        return
    from rich.console import Console

    console = Console(highlight=False)
    with console.capture() as captured:
        console.print(view, crop=False)
    text = captured.get()
    line(text.rstrip("\n") if console.is_terminal else "\n".join(row.rstrip() for row in text.rstrip().splitlines()))


def line(text: str) -> None:
    """Print text on stdout; a reader that has gone away is no error, and the status stays what it is."""
    try:
        print(text, flush=True)  # noqa: T201 - this is the place that prints
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def note(sentence: str) -> None:
    """Say something beside the result, on stderr where there is one."""
    if sys.stderr is not None:
        print(sentence, file=sys.stderr)  # noqa: T201


def _on_terminal() -> bool:
    """Whether stderr is there, and is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def fail(sentence: str) -> int:
    """Say on stderr why there is no result; the status for it."""
    mark = "\x1b[1;31mError:\x1b[0m" if _on_terminal() and not os.environ.get("NO_COLOR") else "Error:"
    note(f"{mark} {sentence}")
    return 2


@contextmanager
def progress(*, quiet: bool) -> Iterator[Tell]:
    """Show on stderr what is going on, if that is a terminal and nobody asked for quiet.

    Yields:
        The function to call with each step.
    """
    if quiet or not _on_terminal():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    looks = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*looks, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("starting", total=None)
        yield lambda what, done, total: bar.update(
            task, description=what, completed=done, total=total if total > 1 else None
        )


def _silent(what: str, done: int, total: int) -> None:
    """Progress that nobody sees."""
    del what, done, total
