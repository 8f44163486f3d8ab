"""One JSON object per line, and pictures beside it: needs no package but Pillow for the pictures."""

import errno
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

from samepolicy.integrations.loggers.base import Entry, Logger
from samepolicy.monitor.folders import Claim
from samepolicy.monitor.writer import Once

FILE = "metrics.jsonl"


@dataclass(kw_only=True, eq=False)
class JsonLines(Logger):
    """Writes `metrics.jsonl` into a folder, and each picture as a PNG file beside it.

    A line holds `step`, `metrics` (null where a number does not exist), `histograms`, `images` (their files) and
    `events`. Lines are appended whole. A folder that another living run writes to is left to it, and `…-2` is taken.

    Attributes:
        folder: where to; made if it is not there.
    """

    folder: str | os.PathLike[str]
    _claim: Claim = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._claim = Claim(Path(self.folder), Once())

    def log(self, entry: Entry) -> None:
        """Append a line."""
        place = self._claim.folder()
        line = {
            "step": entry.step,
            "metrics": {**dict.fromkeys(entry.scalars), **entry.finite},
            "histograms": {
                n: {"counts": h.counts.tolist(), "edges": h.edges.tolist()} for n, h in entry.histograms.items()
            },
            "images": {name: self._save(place, name, entry) for name in entry.images},
            "events": list(entry.events),
        }
        _append(place / FILE, (json.dumps(line, allow_nan=False) + "\n").encode())

    def close(self) -> None:
        """Let another run have the folder."""
        self._claim.release()

    def _save(self, place: Path, name: str, entry: Entry) -> str:
        """Write a picture; its file's name."""
        from PIL import Image

        file = f"{name.replace('/', '_')}_step_{entry.step}.png"
        hidden = place / f".{file}.tmp"
        try:
            Image.fromarray(entry.images[name]).save(hidden, format="PNG")
            hidden.replace(place / file)
        finally:
            hidden.unlink(missing_ok=True)
        return file


def _append(path: Path, line: bytes) -> None:
    """Add a line to a file in one piece; a full disk leaves the file as it was."""
    with path.open("ab", buffering=0) as file:
        end = file.tell()
        if file.write(line) != len(line):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path))
