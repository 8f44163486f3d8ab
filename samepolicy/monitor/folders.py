"""Which folder a monitor writes to, so that two runs never write one."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from samepolicy.monitor.writer import Once

LOCK = ".monitor.tmp"
"""Held as long as the writing process lives; the system lets go of it however that ends."""


@dataclass
class Claim:
    """A folder that is this run's alone.

    Attributes:
        asked: the folder asked for; a run that is still alive may have it already.
        say: told where another folder is taken.
    """

    asked: Path
    say: Once
    _taken: Path | None = None
    _lock: IO[bytes] | None = field(default=None, repr=False)
    _process: int = field(default_factory=os.getpid, repr=False)
    _first: int = 1
    _number: int = 0

    def folder(self) -> Path:
        """The folder: the one asked for, or the first of `…-2`, `…-3` that no living run writes to.

        Raises:
            OSError: it cannot be made or written.
        """
        if self._process != os.getpid():  # forked: the folder is the parent's
            self._process, self._taken, self._lock = os.getpid(), None, None
        number = self._first
        while self._taken is None:
            place = self.asked if number == 1 else self.asked.with_name(f"{self.asked.name}-{number}")
            if self._lock_in(place):
                self._taken, self._number = place, number
            number += 1
        if self._number > self._first:
            self.say(f"another run writes to {self.asked}, so this one writes to {self._taken}.", key="claim")
        return self._taken

    def leave(self, why: str) -> Path:
        """Take the next folder, since the one taken holds a run that this one must not be mixed with, and say so."""
        left = self.folder()
        self.release()
        self._first = self._number + 1
        taken = self.folder()
        self.say(f"{left} is left to the run in it, and this one writes to {taken}. {why}", key=f"left {left}")
        return taken

    def release(self) -> None:
        """Let another run have it."""
        if self._lock is not None:
            self._lock.close()
        self._lock = self._taken = None

    def _lock_in(self, place: Path) -> bool:
        """Take the lock of a folder; False where another has it."""
        place.mkdir(parents=True, exist_ok=True)
        if os.name != "posix":
            return True  # no lock that a killed process lets go of
        import fcntl

        file = (place / LOCK).open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        except OSError:
            self.say(f"{place} is on a file system without locks, so nothing keeps a second run out.", key="locks")
        self._lock = file
        return True
