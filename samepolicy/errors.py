"""Every error samepolicy raises on purpose: one sentence with the fact, what it means, and the fix.

SamePolicyError
├── InputError(ValueError)              the data or an argument is wrong; the command line exits with status 2
│   ├── MissingColumnError(KeyError)    a column that the call needs is not in the run
│   ├── ShapeError                      arrays that should line up do not
│   ├── MaskError                       a mask with other values than 0 and 1
│   └── CorruptFileError(OSError)       a file that is truncated, of another format or version, or holds what no run can
├── MissingDependencyError(ImportError) an optional package is not installed; the message holds the pip line
└── EngineError(RuntimeError)           an engine could not load, generate or score
"""

from collections.abc import Iterable
from difflib import get_close_matches


def perhaps(name: str, names: Iterable[str], otherwise: str) -> str:
    """The end of a sentence about a name that nothing has: names that are spelled alike, or another hint.

    >>> perhaps("Numeric", ["numerics", "shift"], "there are two")
    'perhaps numerics is meant'
    """
    known = {one.lower(): one for one in names}
    near = get_close_matches(name.lower(), known, n=3, cutoff=0.5)
    return f"perhaps {' or '.join(known[one] for one in near)} is meant" if near else otherwise


class SamePolicyError(Exception):
    """Base of every deliberate error of samepolicy."""

    def __str__(self) -> str:
        """The plain sentence (KeyError would show its repr)."""
        return " ".join(str(part) for part in self.args)


class InputError(SamePolicyError, ValueError):
    """The data or an argument is wrong; the message says what and how to mend it."""


class MissingColumnError(InputError, KeyError):
    """A column that the call needs is not in the run."""


class ShapeError(InputError):
    """Arrays that should line up do not."""


class MaskError(InputError):
    """A mask holds other values than 0 and 1."""


class CorruptFileError(InputError, OSError):
    """A file is truncated, of another format, written by a newer version, or holds what no run can."""


class MissingDependencyError(SamePolicyError, ImportError):
    """An optional package is not installed; the message holds the pip line that installs it."""


class EngineError(SamePolicyError, RuntimeError):
    """An engine could not load, generate or score."""
