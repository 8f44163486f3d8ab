"""Foreign dumps, one file each: a module here with `detect(path)` and `read(path)` is a format, found by itself."""

import importlib
import os
import pkgutil
from pathlib import Path
from typing import Any, Protocol, cast

from samepolicy.errors import InputError
from samepolicy.records.run import Run


class Format(Protocol):
    """What a module of this package offers; the first line of its docstring says what it reads."""

    __doc__: str | None

    def detect(self, path: Path) -> bool:
        """Whether the path looks like this format; looks at names and first bytes only, and never raises."""
        ...

    def read(self, path: Path) -> Run:
        """The dump as a run; InputError or CorruptFileError where it cannot be read."""
        ...


def all_formats() -> dict[str, Format]:
    """Every format by name, found by walking this package.

    >>> sorted(all_formats())
    ['jsonl', 'verl_npy']
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    modules: dict[str, Any] = {name: importlib.import_module(f"{__name__}.{name}") for name in names}
    return {name: cast("Format", module) for name, module in modules.items()}


def import_run(src: str | os.PathLike[str]) -> Run:
    """Read a dump of another program.

    Args:
        src: a file or folder in one of the formats of this package.

    Returns:
        The run that it holds.

    Raises:
        InputError: nothing is there, or no known format; the message lists those that are known.
        CorruptFileError: the format is known but a file is damaged.
    """
    path = Path(src)
    if not path.exists():
        raise InputError(f"{path} does not exist; give the path of a dump to read.")
    formats = all_formats()
    for candidate in formats.values():
        if candidate.detect(path):
            return candidate.read(path)
    known = "; ".join(f"{name}: {(f.__doc__ or '').splitlines()[0].rstrip('.')}" for name, f in formats.items())
    raise InputError(f"{path} is neither a run folder nor a dump of a known format; known formats are {known}.")
