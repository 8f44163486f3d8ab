"""Files that are read only where they really are: plain files of one folder, no links out of it."""

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from samepolicy.errors import CorruptFileError
from samepolicy.records.parts import Part
from samepolicy.records.places import Place

SAFELY = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""How a file is opened: no link is followed, and nothing waits for a pipe."""

Mark = tuple[int, int, int]
"""What tells one state of a file from another: inode, bytes, and when it was last written (ns)."""


@dataclass(frozen=True)
class Inside(Place):
    """A folder, or a file in it that is opened only if it is a plain file."""

    def __truediv__(self, name: str) -> "Inside":
        """A file of this folder."""
        return Inside(str(Path(self.text) / name))

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """This file, open for reading.

        Raises:
            CorruptFileError: it is a link, a folder, a pipe or a device.
        """
        try:
            handle = os.open(self.text, SAFELY)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptFileError(f"{self} is a link, and links are not followed; put the file there.") from error
            raise
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise CorruptFileError(f"{self} is no plain file; remove it.")
            yield file

    @contextmanager
    def source(self) -> Iterator[Any]:
        """The same, for pyarrow."""
        with self.opened() as file:
            yield file


@dataclass(frozen=True)
class Listing:
    """What a run folder holds at one moment.

    Attributes:
        parts: the mark of every finished part, by name.
        writing: parts that are being written.
    """

    parts: Mapping[str, Mark]
    writing: int


def listing(folder: Path) -> Listing | None:
    """Look at a folder; None where it is not there, or is no folder any more."""
    parts, writing = {}, 0
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return None
        with os.scandir(folder) as entries:
            for entry in entries:
                if Part.of(entry.name) is not None:
                    with suppress(FileNotFoundError):  # it went meanwhile
                        parts[entry.name] = _mark(entry.stat(follow_symlinks=False))
                writing += entry.name.startswith(".part-") and entry.name.endswith(".tmp")
    except OSError:
        return None
    return Listing(parts, writing)


def mark_of(file: Path) -> Mark | None:
    """The mark of a file, or of a link itself; None where it is gone."""
    try:
        return _mark(file.lstat())
    except OSError:
        return None


def _mark(found: os.stat_result) -> Mark:
    """The mark of what the system says of a file."""
    return (found.st_ino, found.st_size, found.st_mtime_ns)
