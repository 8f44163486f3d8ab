"""Watches a run folder: finds parts as they appear, measures each once, and keeps the history up to date."""

import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from samepolicy.errors import SamePolicyError
from samepolicy.records import parts as names
from samepolicy.records.parts import Part
from samepolicy.records.side import Side
from samepolicy.serve.history import History, State
from samepolicy.serve.inside import Inside, Listing, Mark, listing, mark_of
from samepolicy.serve.marks import Replay
from samepolicy.serve.steps import NO_STEP, Measured, Measurer, Row, steps_in

SLICE = 0.3
"""Seconds of measuring after which pages are told."""

SETTLED = 2.0
"""Seconds after which a folder's time tells whether it has changed; some file systems count in whole seconds."""

SHORT = 64
"""Steps that alarms may be gone through for while others still wait."""


class Watch:
    """Keeps a history of a run folder. `look` does one round; `start` does so in the background until `stop`.

    Attributes:
        folder: the run folder, resolved.
        history: what is known of it.
        interval: seconds between rounds with nothing to do.
    """

    def __init__(self, folder: Path, *, title: str, interval: float = 0.5) -> None:
        self.folder, self.interval, self.history = folder, interval, History()
        self.measurer = Measurer(Inside(str(folder)))
        self._title, self._replay, self._gone_through = title, Replay(), -1
        self._marks: dict[str, Mark] = {}
        self._held: dict[int, dict[str, Mark]] = {}
        self._spread: dict[str, tuple[int, ...]] = {}
        self._dirty: set[int] = set()
        self._bad: dict[str, tuple[Mark | None, str]] = {}
        self._sides: dict[str, str] = {}
        self._seen: tuple[int, float] = (-1, 0.0)
        self._list: Listing | None = Listing({}, 0)
        self._lock, self._end = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="samepolicy-watch", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End watching; what is being measured is left."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join(2.0)

    def parts_of(self, step: int) -> dict[str, Mark]:
        """The parts that hold rows of a step, in order, each with its mark; nothing where there is no such step."""
        with self._lock:
            return dict(sorted(self._held.get(step, {}).items(), key=lambda item: _order(item[0])))

    def about(self) -> dict[str, Any]:
        """What the folder's `run.json` says.

        Raises:
            CorruptFileError: it is damaged.
            InputError: it is not there.
        """
        return names.header(Inside(str(self.folder)))

    def look(self) -> bool:
        """One round: look at the folder, measure for a while, tell; True while steps still wait."""
        self._scan()
        problem, rows = "", {}
        if self._dirty and self._list is not None:
            try:
                rows = self._measure(self.about())
            except SamePolicyError as error:
                problem = str(error)
        self.history.put(rows)
        self._mark()
        self._say(problem)
        return bool(rows) and bool(self._dirty)

    def _run(self) -> None:
        """The thread."""
        busy = False
        while not self._end.wait(0.0 if busy else self.interval):
            try:
                busy = self.look()
            except Exception as error:  # a page that says so is better than one that stands still
                busy = False
                self._say(f"The folder could not be looked at ({type(error).__name__}: {error}).")

    def _scan(self) -> None:
        """Find what has come, changed or gone."""
        found = self._listed()
        if found is None:
            return  # what was measured is still shown
        old, new = self._marks, found.parts
        gone, come = old.keys() - new.keys(), {name for name, mark in new.items() if old.get(name) != mark}
        for name in gone | (come & old.keys()):
            self._drop(name)
        for name in sorted(come):
            self._add(name, new[name])
        self._marks = dict(new)

    def _listed(self) -> Listing | None:
        """The folder; None where it has not changed, or is not there."""
        mark = mark_of(self.folder)
        stale = [name for name, (seen, _) in self._bad.items() if mark_of(self.folder / name) != seen]
        fresh = time.time() - self._seen[1] < SETTLED
        if mark is not None and mark[2] == self._seen[0] and not stale and not fresh:
            return None
        self._list = listing(self.folder)
        changed = time.time() if mark is None or mark[2] != self._seen[0] else self._seen[1]
        self._seen = (mark[2] if mark else -1, changed)
        return self._list

    def _add(self, name: str, mark: Mark) -> None:
        """A part that is new, or new again."""
        part = Part.of(name)
        try:
            steps = (part.step,) if part and part.step is not None else steps_in(Inside(str(self.folder)) / name)
        except SamePolicyError as error:
            self._bad[name] = (mark, short(str(error), self.folder))
            return
        with self._lock:
            self._spread[name] = steps
            for step in steps:
                self._held.setdefault(step, {})[name] = mark
        self._dirty.update(steps)

    def _drop(self, name: str) -> None:
        """A part that is gone, or another one now."""
        self._bad.pop(name, None)
        with self._lock:
            steps = self._spread.pop(name, ())
            for step in steps:
                self._held[step].pop(name, None)
        self._dirty.update(steps)

    def _measure(self, about: Mapping[str, Any]) -> dict[int, Row | None]:
        """Measure steps for a while, the newest first."""
        end, rows = time.monotonic() + SLICE, dict[int, Row | None]()
        while self._dirty and not self._end.is_set() and (not rows or time.monotonic() < end):
            step = max(self._dirty)
            self._dirty.discard(step)
            rows[step] = self._row(about, step)
        return rows

    def _row(self, about: Mapping[str, Any], step: int) -> Row | None:
        """The row of a step; None where nothing is left of it."""
        marks = self.parts_of(step)
        for name in marks:
            self._bad.pop(name, None)
        found = self.measurer.measure(about, step, marks, on_bad=lambda name, why: self._refuse(name, marks[name], why))
        if found is not None:
            self._note(found)
            return found.row
        damaged = sum(name in self._bad for name in marks)
        return Row(0, 0, {}, {}, len(marks), damaged) if damaged else None

    def _refuse(self, name: str, mark: Mark, why: str) -> None:
        """A part that cannot be read; one that has just gone is found by the next look."""
        if mark_of(self.folder / name) is not None:
            self._bad[name] = (mark, short(why, self.folder))

    def _note(self, found: Measured) -> None:
        """Keep what the run says of itself, and what is usual for it."""
        self._sides = {"rollout": _side(found.rollout), "trainer": _side(found.trainer)}
        self.history.usual(found.readings)

    def _mark(self) -> None:
        """Go through the alarms, unless that has to be done again soon anyway."""
        if self.history.revision == self._gone_through:
            return
        rows = self.history.rows()
        if not self._dirty or self._replay.new(rows) <= SHORT:
            self.history.mark(self._replay.marks(rows), self._replay.active)
            self._gone_through = self.history.revision

    def _say(self, problem: str) -> None:
        """Tell what the folder is like."""
        there = self._list is not None
        state = State(
            title=self._title,
            there=there,
            problem=problem,
            parts=len(self._marks),
            writing=self._list.writing if self._list else 0,
            waiting=len(self._dirty),
            damaged={name: why for name, (_, why) in sorted(self._bad.items())},
            sides=self._sides,
        )
        self.history.say(state)


def _order(name: str) -> tuple[int, int]:
    """Where a part stands among others."""
    part = Part.of(name)
    return part.order if part else (NO_STEP, 0)


def short(why: str, folder: Path) -> str:
    """A sentence about a part, without what a page need not say: the folder's path, and an option of commands."""
    return why.replace(f"{folder}{os.sep}", "").replace(", or leave it out (--skip-bad)", "")


def _side(side: Side) -> str:
    """What a side declares, in a line."""
    return " · ".join(str(value)[:120] for value in (side.engine, side.model, side.dtype) if value)
