"""A run folder as names: `run.json`, and parts that say their step and number."""

import json
import re
from dataclasses import dataclass
from typing import Any

from samepolicy.errors import CorruptFileError
from samepolicy.records.arrow import check_header
from samepolicy.records.places import Place
from samepolicy.records.tables import refused

HEADER = "run.json"
_NAME = re.compile(r"part-(any|\d+)-(\d+)\.parquet")


@dataclass(frozen=True)
class Part:
    """One finished part of a run folder.

    Attributes:
        name: its file's name.
        step: the step of all its responses; None where it holds several steps or none.
        number: how many parts of that step were there before it.

    >>> Part.of("part-00000003-000001.parquet")
    Part(name='part-00000003-000001.parquet', step=3, number=1)
    """

    name: str
    step: int | None
    number: int

    @classmethod
    def of(cls, name: str) -> "Part | None":
        """The part of this name; None where the name is not one of a part."""
        found = _NAME.fullmatch(name)
        return found and cls(name, None if found[1] == "any" else int(found[1]), int(found[2]))

    @property
    def order(self) -> tuple[int, int]:
        """Where it comes when the folder is read: those of no single step first, then by step and number."""
        return (-1 if self.step is None else self.step, self.number)


def label(step: int | None) -> str:
    """How a part's name says its step."""
    return "any" if step is None else f"{step:08d}"


def parts(folder: Place) -> list[Part]:
    """The finished parts of a run folder, in the order in which they are read."""
    found = [part for name in folder.names() if (part := Part.of(name)) is not None]
    return sorted(found, key=lambda part: part.order)


def header(folder: Place) -> dict[str, Any]:
    """What `run.json` says, if it is a run that this version reads.

    Raises:
        CorruptFileError: it is damaged, or of a newer layout.
        InputError: it may not be read.
    """
    place = folder / HEADER
    try:
        content = json.loads(place.read_bytes())
    except (PermissionError, FileNotFoundError) as error:
        raise refused(place, error) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CorruptFileError(f"{place} is damaged ({error}); restore it to read the folder.") from error
    return check_header(content, place)
