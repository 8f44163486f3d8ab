"""Files that appear whole or not at all."""

import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from samepolicy.errors import InputError


def publish(target: Path, fill: Callable[[IO[bytes]], Any], *, unique: bool = False) -> bool:
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
            if os.path.lexists(target):
                return False
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)
    flush_folder(target.parent)
    return True


def flush_folder(folder: Path) -> None:
    """Have the folder's list of names on the disk, too (on systems that can)."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def publish_new(target: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write a file of a name that must not exist yet.

    Raises:
        InputError: the file exists already.
    """
    if os.path.lexists(target) or not publish(target, fill, unique=True):
        raise InputError(f"{target} exists already; give a new file name.")


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A hidden folder to fill, which takes the target's name once everything is written, and is removed otherwise.

    Args:
        target: the folder to make; an empty one may be there already.

    Raises:
        InputError: it is there already and not empty, or is a file.
    """
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InputError(f"{target} is there already; give a new folder.")
    place = target.absolute()
    hidden = place.with_name(f".{place.name}.{uuid.uuid4().hex}.tmp")
    hidden.mkdir(parents=True)
    try:
        yield hidden
        flush_folder(hidden)
        hidden.replace(place)
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    flush_folder(place.parent)


def replace_with(target: Path, fill: Callable[[IO[bytes]], Any], *, check: Callable[[Path], Any] | None = None) -> None:
    """Put a new content in the place of a file: who opens it meets the old or the new one, whole.

    Args:
        target: the file.
        fill: writes the new content.
        check: looks at the new file before it takes the old one's place, and raises to keep the old one.
    """
    hidden = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        with hidden.open("xb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(hidden)
        hidden.replace(target)
    finally:
        hidden.unlink(missing_ok=True)
    flush_folder(target.parent)
