"""What is measured so far, in a file, so that a run that was interrupted goes on from there."""

import base64
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.blocks import Counts
from samepolicy.errors import InputError
from samepolicy.fleet.kept import pack, unpack
from samepolicy.fleet.measured import Measured, Task
from samepolicy.metrics import all_metrics
from samepolicy.records.places import Place
from samepolicy.records.publish import replace_with
from samepolicy.records.shards import Shard
from samepolicy.summary import Summary

FORMAT = "samepolicy measurement 1"
_FOREIGN = (ValueError, KeyError, TypeError, AttributeError, ImportError, RecursionError)
"""What reading the content of any other file may raise."""


@dataclass(frozen=True)
class Journal:
    """A file that keeps merged results of one measurement.

    Attributes:
        file: the file; made when there is something to keep.
        what: tells this measurement from any other.
    """

    file: Path
    what: str

    def load(self) -> dict[tuple[int, int], Measured]:
        """The nodes that an earlier call kept; none where there is no file.

        Raises:
            InputError: it is no such file or damaged, was kept for other data or another question, or cannot be written
            there.
        """
        folder = self.file.absolute().parent
        if not (folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)):
            raise InputError(f"Nothing can be written in {folder}, so {self.file} cannot keep anything; give another.")
        if not self.file.exists():
            return {}
        try:
            content = json.loads(self.file.read_bytes())
            known = content["format"] == FORMAT and content["sum"] == _digest(content["nodes"])
            nodes = [((int(n["level"]), int(n["number"])), _measured(n)) for n in content["nodes"]]
        except (*_FOREIGN, IsADirectoryError) as error:
            raise InputError(f"{self.file} is no file that --resume wrote; give a new file name.") from error
        if not known:
            raise InputError(f"{self.file} is damaged, or of another version; remove it, or give a new file name.")
        if content["what"] != self.what:
            raise InputError(
                f"{self.file} was kept for another measurement, or the run has changed since, so its numbers cannot "
                "go into this one; remove it, or give a new file name."
            )
        return dict(nodes)

    def keep(self, nodes: Mapping[tuple[int, int], Measured]) -> None:
        """Put these nodes in the place of those that were kept before."""
        kept = [{"level": level, "number": number, **_json(found)} for (level, number), found in nodes.items()]
        content = {"format": FORMAT, "what": self.what, "sum": _digest(kept), "nodes": kept}
        replace_with(self.file, lambda file: file.write(json.dumps(content).encode()))

    def close(self) -> None:
        """Remove the file: everything is measured."""
        self.file.unlink(missing_ok=True)


def identity(task: Task, shards: tuple[Shard, ...]) -> str:
    """A fingerprint of what is measured how: the files with sizes and times, their rows, groups, names, metrics."""
    made = blake2b(digest_size=16)
    metrics = [(name, [s.__name__ for s in m.statistics]) for name, m in all_metrics().items()]
    made.update(repr((task.by, task.names, task.skip_bad, metrics)).encode())
    made.update(repr((task.also, task.measured)).encode() if task.also else b"")
    sizes = {place: _stamp(place) for place in dict.fromkeys(shard.piece.place for shard in shards)}
    for shard in shards:
        made.update(repr((shard.piece.place.text, sizes[shard.piece.place], shard.groups)).encode())
        made.update(b"" if shard.piece.rows is None else np.packbits(shard.piece.rows).tobytes())
    return made.hexdigest()


def _digest(nodes: object) -> str:
    """A checksum of what is kept, so that a damaged number never goes into a result."""
    return blake2b(json.dumps(nodes).encode(), digest_size=16).hexdigest()


def _stamp(place: Place) -> tuple[int, ...]:
    """The size of a file, and when it was written where that is known."""
    if place.local is not None:
        found = place.local.stat()
        return (found.st_size, found.st_mtime_ns)
    with place.opened() as file:
        return (file.seek(0, 2),)


def _json(found: Measured) -> dict[str, Any]:
    """A result as JSON; states keep every bit."""
    return {
        "summary": _of_summary(found.summary),
        "groups": {label: _of_summary(group) for label, group in found.groups.items()},
        "dtypes": sorted(found.dtypes, key=repr),
        "skipped": found.skipped,
        "also": pack(found.also),
    }


def _measured(value: Mapping[str, Any]) -> Measured:
    """The inverse of `_json`."""
    groups = {label: _summary(group) for label, group in value["groups"].items()}
    dtypes = frozenset((rollout, trainer) for rollout, trainer in value["dtypes"])
    skipped, also = tuple(value["skipped"]), unpack(value.get("also", {"tuple": []}))
    return Measured(_summary(value["summary"]), groups, dtypes, skipped, also)


def _of_summary(summary: Summary) -> dict[str, Any]:
    """A summary as JSON."""
    states = {
        name: [base64.b64encode(s.state.astype("<f8").tobytes()).decode() for s in statistics]
        for name, statistics in summary.statistics.items()
    }
    return {"counts": asdict(summary.counts), "states": states, "missing": summary.missing}


def _summary(value: Mapping[str, Any]) -> Summary:
    """The inverse of `_of_summary`."""
    known = all_metrics()
    statistics = {
        name: tuple(
            kind(np.frombuffer(base64.b64decode(state), dtype="<f8").astype(np.float64))
            for kind, state in zip(known[name].statistics, states, strict=True)
        )
        for name, states in value["states"].items()
    }
    missing = {name: tuple(needs) for name, needs in value["missing"].items()}
    return Summary(Counts(**value["counts"]), statistics, missing)
