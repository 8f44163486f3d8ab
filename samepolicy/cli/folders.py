"""Run folders that commands write: always new ones, so that nothing is lost or overwritten."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.records.run import Run


def refuse(out: Path | None) -> None:
    """Refuse, before any work is done, a folder that could not be written to.

    Raises:
        InputError: a file, a folder with something in it, or a place where nothing may be written.
    """
    if out is None:
        return
    there = next(place for place in (out, *out.absolute().parents) if place.exists())
    if not there.is_dir():
        raise InputError(f"{there} is a file; give a new folder to write the run to.")
    if there == out and any(out.iterdir()):
        raise InputError(f"{out} is not empty, and nothing is ever overwritten; give a new folder.")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"Nothing may be written in {there}; give a folder in another place.")


def keep(run: "Run", out: Path) -> None:
    """Write a run that is not finished, so that what comes next cannot lose it."""
    from samepolicy.records.store import write

    write(run, out)


def finish(run: "Run", out: Path) -> None:
    """Put the finished run in the place of the one that was kept; at every moment the folder holds a whole run."""
    from samepolicy.records.store import write

    fresh = out / ".finished.tmp"
    write(run, fresh)
    for file in sorted(fresh.iterdir()):  # the part, which keeps its name, before run.json
        file.replace(out / file.name)
    fresh.rmdir()
