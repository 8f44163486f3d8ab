"""What is known of a run folder, with a number for every change, so that a page asks only for what is new."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from secrets import token_hex
from typing import Any

from samepolicy.health import Reading
from samepolicy.metrics import all_metrics
from samepolicy.report.packed import packed
from samepolicy.serve.marks import Mark, counted
from samepolicy.serve.steps import NO_STEP, Row
from samepolicy.summary import json_number

LISTED = 1000
"""Marks that a page is told of, the latest."""

NAMED = 200
"""Damaged parts that a page is told of by name."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The folder as a whole.

    Attributes:
        title: what the run is called.
        there: whether the folder is there.
        problem: what keeps all of it from being read; empty where nothing does.
        parts: finished parts.
        writing: parts that are being written.
        waiting: steps that are still to be measured.
        damaged: a sentence for each part that cannot be read, by name.
        sides: what each side declares, in a line.
    """

    title: str = ""
    there: bool = True
    problem: str = ""
    parts: int = 0
    writing: int = 0
    waiting: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)
    sides: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        named = dict(list(self.damaged.items())[:NAMED])
        return asdict(replace(self, damaged={})) | {"damaged": len(self.damaged), "bad": named}


class History:
    """The steps of a run as far as they are known; filled by one thread, read by others.

    >>> history = History()
    >>> history.put({3: Row(1, 5, {"k3.mean": 0.5}, {}, 1, 0)})
    >>> history.everything(["k3.mean"])["rows"]["steps"]
    {'dtype': 'f8', 'bdata': 'AAAAAAAACEA='}
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[int, Row] = {}
        self._changed: dict[int, int] = {}
        self._marks: tuple[list[Mark], tuple[str, ...], int] = ([], (), 0)
        self._state: tuple[State, int] = (State(), 0)
        self._ranges: dict[str, list[dict[str, Any]]] = {}
        self._names: dict[str, None] = {}
        self.epoch, self.revision = token_hex(4), 0
        self.told: Callable[[], object] = lambda: None

    def put(self, rows: Mapping[int, Row | None]) -> None:
        """Take in steps; one without a row is no longer there."""
        if not rows:
            return
        with self._lock:
            self.revision += 1
            for step, row in rows.items():
                if row is None:
                    self._rows.pop(step, None)
                    self._changed.pop(step, None)
                    self.epoch = token_hex(4)  # pages begin anew
                else:
                    self._rows[step], self._changed[step] = row, self.revision
                    self._names |= dict.fromkeys(row.values)
        self.told()

    def mark(self, marks: Sequence[Mark], active: tuple[str, ...]) -> None:
        """Take in all alarms and changes, and which alarms are on."""
        with self._lock:
            if (list(marks), active) == self._marks[:2]:
                return
            self.revision += 1
            self._marks = (list(marks), active, self.revision)
        self.told()

    def say(self, state: State) -> None:
        """Take in what the folder is like."""
        with self._lock:
            if state == self._state[0]:
                return
            self.revision += 1
            self._state = (state, self.revision)
        self.told()

    def usual(self, readings: Iterable[Reading]) -> None:
        """Take in the usual ranges that hold for this run."""
        found: dict[str, list[dict[str, Any]]] = {}
        for t in (reading.threshold for reading in readings):
            low, high = (end if isfinite(end) else None for end in (t.low, t.high))
            said = {"low": low, "high": high, "source": t.source, "models": t.models, "meaning": t.meaning}
            found.setdefault(f"{t.metric}.{t.readout}", []).append(said)
        with self._lock:
            if any(self._ranges.get(k) != v for k, v in found.items()):
                self._ranges, self.epoch = self._ranges | found, token_hex(4)

    @property
    def state(self) -> State:
        """What the folder is like."""
        return self._state[0]

    def rows(self) -> list[tuple[int, Row]]:
        """Every step that has a number, in order."""
        with self._lock:
            return sorted((item for item in self._rows.items() if item[0] != NO_STEP), key=lambda item: item[0])

    def steps(self) -> list[int]:
        """The numbers of all steps, in order."""
        with self._lock:
            return sorted(self._rows)

    def everything(self, series: Sequence[str]) -> dict[str, Any]:
        """All of it, columns packed as in a report.

        Args:
            series: the "metric.readout" to give the values of.
        """
        with self._lock:
            steps = sorted(self._rows)
            rows = [self._rows[step] for step in steps]
            values = {name: packed([row.values.get(name, float("nan")) for row in rows]) for name in series}
            columns = {
                "steps": packed(steps, "f8"),
                **{name: packed([getattr(row, name) for row in rows], "u4") for name in COUNTS},
                "outside": packed([len(row.outside) for row in rows], "u4"),
            }
            return {
                "epoch": self.epoch,
                "revision": self.revision,
                "names": {name: _about(name) for name in self._names},
                "ranges": self._ranges,
                "rows": columns,
                "values": values,
                "marks": self._said(),
                "state": self._state[0].as_dict(),
            }

    def since(self, epoch: str, revision: int, series: Sequence[str]) -> dict[str, Any] | None:
        """What has changed since a page was told; None where nothing has, {"again": True} where it must ask for all."""
        with self._lock:
            if epoch != self.epoch:
                return {"again": True, "epoch": self.epoch, "revision": self.revision}
            if revision >= self.revision:
                return None
            steps = sorted(step for step, changed in self._changed.items() if changed > revision)
            found: dict[str, Any] = {"epoch": epoch, "revision": self.revision}
            if steps:
                found["rows"] = [self._row(step, series) for step in steps]
            if self._marks[2] > revision:
                found["marks"] = self._said()
            if self._state[1] > revision:
                found["state"] = self._state[0].as_dict()
            return found

    def _row(self, step: int, series: Sequence[str]) -> list[Any]:
        """A step as a list: its number, the columns, and the values."""
        row = self._rows[step]
        values = [json_number(row.values.get(name, float("nan"))) for name in series]
        return [step, *(getattr(row, name) for name in COUNTS), len(row.outside), *values]

    def _said(self) -> dict[str, Any]:
        """The latest marks."""
        marks, active, _ = self._marks
        listed = [[m.kind, m.step, m.series, m.sentence] for m in marks[-LISTED:]]
        return {"active": list(active), "counts": counted(marks), "listed": listed}


COUNTS = ("responses", "tokens", "parts", "damaged")
"""Whole numbers of a row."""


def _about(name: str) -> dict[str, Any]:
    """What a series is."""
    metric, _, readout = name.partition(".")
    known = all_metrics().get(metric)
    return {"unit": known.unit if known else "", "says": known.summary if known else "", "readout": readout}
