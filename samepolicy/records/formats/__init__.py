"""Foreign dumps, one file each: a module here with `detect(path)` and `read(path)` is a format, found by itself.

One that also has `write(run, path)` can be exported to.
"""

import importlib
import os
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from samepolicy.errors import InputError
from samepolicy.records.dumps import USUAL, Options, named, renamed
from samepolicy.records.places import Place, text_of
from samepolicy.records.run import Run
from samepolicy.records.source import OnBad, is_run

PLAIN = ("csv", "jsonl", "parquet")
"""Formats that name their columns freely; a file is one of them if it is of no program's own format."""


class Format(Protocol):
    """What a module of this package offers; the first line of its docstring says what it reads."""

    __doc__: str | None

    def detect(self, path: Path) -> bool:
        """Whether the path looks like this format; looks at names and first bytes only, and never raises."""
        ...

    def read(self, path: Path, options: Options = USUAL) -> Run:
        """The dump as a run; InputError or CorruptFileError where it cannot be read."""
        ...


class Target(Format, Protocol):
    """A format that can be written, too."""

    def write(self, run: Run, path: Path) -> None:
        """Write a run as a new file or folder; what is there already is never overwritten."""
        ...


def all_formats() -> dict[str, Format]:
    """Every format by name, found by walking this package.

    >>> {"jsonl", "prime_rl", "verl_npy"} <= set(all_formats())
    True
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules: dict[str, Any] = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: cast("Format", module) for name, module in modules.items()}


def targets() -> dict[str, Target]:
    """The formats that a run can be exported to.

    >>> sorted(targets())
    ['jsonl', 'parquet', 'verl_npy']
    """
    return {name: cast("Target", module) for name, module in all_formats().items() if hasattr(module, "write")}


def import_run(
    src: str | os.PathLike[str],
    *,
    columns: Mapping[str, str] | None = None,
    kind: str | None = None,
    unsafe_pickle: bool = False,
    on_bad: OnBad | None = None,
) -> Run:
    """Read a dump of another program.

    Args:
        src: a file or folder in one of the formats of this package.
        columns: for a column of a run, the name that the dump gives it, such as {"trainer_logp": "old_lp"}.
        kind: the format's name; found from the path unless given.
        unsafe_pickle: read formats that are Python pickles; off unless given, since a pickle can run code.
        on_bad: called with the error of each file that is left out because it cannot be read; None raises the first.

    Returns:
        The run that it holds.

    Raises:
        InputError: nothing is there, or no known format; the message lists those that are known.
        CorruptFileError: the format is known but a file is damaged.
        MissingColumnError: `columns` names what is not there.
    """
    path, formats = Path(text_of(src)), all_formats()
    if not (path.is_file() or path.is_dir()):
        what = "is neither a file nor a folder" if path.exists() else "does not exist"
        raise InputError(f"{path} {what}; give the path of a dump to read.")
    options = Options(columns=columns or {}, unsafe_pickle=unsafe_pickle, on_bad=on_bad)
    name = kind if kind is not None else _detected(path, formats)
    if name not in formats:
        raise InputError(f"There is no format {name!r}; the formats are {', '.join(formats)}.")
    run = named(path, lambda file: formats[name].read(file, options))
    return run if hasattr(formats[name], "MAPS") else renamed(run, options)


def _detected(path: Path, formats: Mapping[str, Format]) -> str:
    """The name of the format that a path is in; programs' own formats come before plain ones."""
    if is_run(Place.of(path)):
        raise InputError(f"{path} is a run folder already; every command takes it as it is.")
    for name in sorted(formats, key=lambda name: (name in PLAIN, name)):
        if formats[name].detect(path):
            return name
    known = "; ".join(f"{name}: {(f.__doc__ or '').splitlines()[0].rstrip('.')}" for name, f in formats.items())
    raise InputError(f"{path} is neither a run folder nor a dump of a known format; known formats are {known}.")
