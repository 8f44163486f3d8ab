"""Alarms: what lies outside its usual range, or has changed its level, said once and counted."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import numpy as np

from samepolicy.health import Reading, judge
from samepolicy.monitor.writer import Once
from samepolicy.records.declared import dtype_of
from samepolicy.records.side import Side
from samepolicy.summary import Summary
from samepolicy.trend import LEAST, WATCHED, change_point

HISTORY, LOOK_EVERY, FALSE_ALARMS = 64, 8, 0.001
"""Steps that a change of level is looked for in, how often, and how likely chance alone may make one."""


@dataclass
class Alarms:
    """Which alarms are on. One goes on at the first step outside, and off after `calm` steps in a row inside.

    Attributes:
        say: told when an alarm goes on for the first time.
        calm: steps inside the range that end an alarm.
        raised: how often an alarm went on.

    >>> alarms = Alarms(say=Once(), calm=2)
    >>> for outside in (True, False, True, False, False, True):
    ...     new = alarms.update({"k3": "too high"} if outside else {}, step=0)
    >>> alarms.raised, alarms.active
    (2, ('k3',))
    """

    say: Once
    calm: int = 3
    raised: int = 0
    _quiet: dict[str, int] = field(default_factory=dict)

    @property
    def active(self) -> tuple[str, ...]:
        """The alarms that are on, by name."""
        return tuple(sorted(self._quiet))

    def update(self, outside: Mapping[str, str], *, step: int) -> tuple[str, ...]:
        """Take in a step: for each alarm that has a reason, the sentence; gives those of alarms that go on now."""
        new = tuple(sentence for name, sentence in outside.items() if name not in self._quiet)
        for name, sentence in outside.items():
            if name not in self._quiet:
                self.raised += 1
                self.say(f"alarm at step {step}: {sentence}.", key=f"alarm {name}")
            self._quiet[name] = -1
        self._quiet = {name: quiet + 1 for name, quiet in self._quiet.items() if quiet + 1 < self.calm}
        return new


def outside_usual(summary: Summary, *, rollout: Side, trainer: Side) -> dict[str, str]:
    """The values outside every usual range that holds for them, in a sentence each.

    Ranges of several kinds of model stand side by side for some metrics; a run does not say which it is, so a value
    must lie outside all of them.
    """
    readings = judge(summary, rollout_dtype=dtype_of(rollout), trainer_dtype=dtype_of(trainer))
    groups: dict[str, list[Reading]] = {}
    for reading in readings:
        groups.setdefault(f"{reading.threshold.metric} {reading.threshold.readout}", []).append(reading)
    return {
        name: str(max(group, key=_width))
        for name, group in groups.items()
        if all(reading.state in ("low", "high") for reading in group)
    }


@dataclass
class History:
    """The last steps of what moves before a run breaks (see `trend`), and the changes of level found in them."""

    _series: dict[str, deque[tuple[int, float]]] = field(default_factory=dict)
    _steps: int = 0

    def add(self, summary: Summary, *, step: int) -> None:
        """Keep a step's values."""
        self._steps += 1
        for name, (metric, readout) in WATCHED.items():
            value = summary[metric][readout] if metric in summary else float("nan")
            if isfinite(value):
                self._series.setdefault(name, deque(maxlen=HISTORY)).append((step, value))

    def look(self, then: Callable[[str, str], Any]) -> Callable[[], None] | None:
        """Every few steps, the work of looking for a change, to be done elsewhere; `then` takes name and sentence."""
        if self._steps % LOOK_EVERY:
            return None
        series = {name: tuple(values) for name, values in self._series.items() if len(values) >= LEAST}

        def work() -> None:
            for name, values in series.items():
                if sentence := _change(name, values):
                    then(name, sentence)
                    self._series[name].clear()  # the new level is what later steps are held against

        return work if series else None


def _change(name: str, values: Iterable[tuple[int, float]]) -> str:
    """The change of a series in a sentence; empty where there is none."""
    steps, levels = zip(*values, strict=True)
    place, p = change_point(np.array(levels))
    if p > FALSE_ALARMS:
        return ""
    before, after = np.median(levels[:place]), np.median(levels[place:])
    return f"{name} changed its level from {before:.4g} to {after:.4g} at step {steps[place]} (p = {p:.2g})"


def _width(reading: Reading) -> float:
    """How wide a range is."""
    return reading.threshold.high - reading.threshold.low
