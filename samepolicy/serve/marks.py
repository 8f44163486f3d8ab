"""Alarms and changes of level over the steps of a run, found as a monitor finds them while training."""

from collections import deque
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from samepolicy.monitor.alarms import FALSE_ALARMS, HISTORY, LOOK_EVERY, Alarms
from samepolicy.monitor.writer import Once
from samepolicy.serve.steps import Row
from samepolicy.trend import LEAST, WATCHED, Change, change_point

STORE_EVERY = 256
"""Steps between states that a replay can go back to."""


class Silent(Once):
    """Says nothing; the page does."""

    def __call__(self, sentence: str, *, key: str = "", level: int = 0) -> None:
        """Say nothing."""


@dataclass(frozen=True)
class Mark:
    """An alarm that went on, or a series that changed its level.

    Attributes:
        kind: "alarm" or "change".
        step: where.
        series: "metric.readout".
        sentence: what happened.
    """

    kind: str
    step: int
    series: str
    sentence: str


@dataclass
class _State:
    """Everything that depends on the steps before."""

    alarms: Alarms = field(default_factory=lambda: Alarms(Silent()))
    levels: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    seen: int = 0
    marks: list[Mark] = field(default_factory=list)

    def add(self, step: int, row: Row) -> None:
        """Take in a step."""
        before = {*self.alarms.active}
        self.alarms.update(row.outside, step=step)
        for name, sentence in row.outside.items():
            if name not in before:
                self.marks.append(Mark("alarm", step, name.replace(" ", "."), f"{sentence}."))
        self.seen += 1
        for place in WATCHED.values():
            series = ".".join(place)
            value = row.values.get(series, float("nan"))
            if isfinite(value):
                self.levels.setdefault(series, deque(maxlen=HISTORY)).append((step, value))
        if self.seen % LOOK_EVERY == 0:
            self.marks += [mark for series, values in self.levels.items() if (mark := _changed(series, values))]

    def copy(self) -> "_State":
        """A state of its own; the marks so far are shared, since none is ever changed."""
        return _State(deepcopy(self.alarms), deepcopy(self.levels), self.seen, [*self.marks])


def _changed(series: str, values: deque[tuple[int, float]]) -> Mark | None:
    """The change of a series; what came before it is forgotten, since the new level is what later steps are held to."""
    if len(values) < LEAST:
        return None
    steps, levels = zip(*values, strict=True)
    place, p = change_point(np.array(levels))
    if p > FALSE_ALARMS:
        return None
    before, after = (float(np.median(part)) for part in (levels[:place], levels[place:]))
    found = Change(step=steps[place], before=before, after=after, p=p)
    values.clear()
    sentence = f"level {found.before:.4g} before, {found.after:.4g} from this step on (p = {found.p:.2g})."
    return Mark("change", found.step, series, sentence)


class Replay:
    """The marks of a growing list of steps; only steps after the first one that differs are gone through again.

    >>> row = Row(1, 1, {}, {"k3 mean": "k3 is high"}, 1, 0)
    >>> [mark.step for mark in Replay().marks([(3, row), (4, row)])]
    [3]
    """

    def __init__(self) -> None:
        self._rows: list[tuple[int, Row]] = []
        self._state = _State()
        self._stored = [(0, _State())]

    @property
    def active(self) -> tuple[str, ...]:
        """The alarms that are on after the last step, "metric.readout" each."""
        return tuple(name.replace(" ", ".") for name in self._state.alarms.active)

    def new(self, rows: Sequence[tuple[int, Row]]) -> int:
        """How many of these steps would have to be gone through."""
        return len(rows) - self._same(rows)

    def marks(self, rows: Sequence[tuple[int, Row]]) -> list[Mark]:
        """The marks of these steps, in order."""
        same = self._same(rows)
        if same < len(self._rows):
            self._stored = [(at, state) for at, state in self._stored if at <= same]
            same, state = self._stored[-1]
            self._state = state.copy()
        for at in range(same, len(rows)):
            if at and at % STORE_EVERY == 0 and at > self._stored[-1][0]:
                self._stored.append((at, self._state.copy()))
            self._state.add(*rows[at])
        self._rows = list(rows)
        return sorted(self._state.marks, key=lambda mark: mark.step)

    def _same(self, rows: Sequence[tuple[int, Row]]) -> int:
        """How many steps at the beginning are those of before."""
        pairs = zip(self._rows, rows, strict=False)
        return next(
            (i for i, (a, b) in enumerate(pairs) if a[0] != b[0] or a[1] is not b[1]), min(len(self._rows), len(rows))
        )


def counted(marks: Sequence[Mark]) -> Mapping[str, int]:
    """How many marks of each kind there are."""
    return {kind: sum(mark.kind == kind for mark in marks) for kind in ("alarm", "change")}
