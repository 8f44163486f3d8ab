"""Files that appear whole or not at all."""

import os
import uuid
from collections.abc import Callable
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
            if target.exists():
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
    if target.exists() or not publish(target, fill, unique=True):
        raise InputError(f"{target} exists already; give a new file name.")


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
