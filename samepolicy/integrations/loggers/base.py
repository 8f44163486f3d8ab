"""What a logger is: one method that takes a step's entry, and how an entry is made of what a monitor saw."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int, UInt8

from samepolicy.arrays import to_bool, to_numpy
from samepolicy.errors import MissingDependencyError
from samepolicy.integrations.images import heat_map
from samepolicy.monitor.prob_diff import difference
from samepolicy.monitor.seen import Seen
from samepolicy.ratio import log_ratio

LOG_RATIO, HEAT_MAP, EVENTS = "samepolicy/log_ratio", "samepolicy/heat_map", "samepolicy/events"
BINS = 64


class Bins(NamedTuple):
    """A histogram.

    Attributes:
        counts: how many values fell into each bin.
        edges: where each bin begins and the last ends.
        sums: the sum of the values and of their squares.
    """

    counts: Int[np.ndarray, " bins"]
    edges: Float[np.ndarray, " edges"]
    sums: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What is logged of one step.

    Attributes:
        step: training step.
        scalars: numbers by name; NaN where one does not exist.
        histograms: the log-ratios of the step's tokens.
        images: RGB pixels by name.
        events: alarms that went on, and doubts about the settings, a sentence each.
    """

    step: int
    scalars: Mapping[str, float] = field(default_factory=dict)
    histograms: Mapping[str, Bins] = field(default_factory=dict)
    images: Mapping[str, UInt8[np.ndarray, "height width 3"]] = field(default_factory=dict)
    events: tuple[str, ...] = ()

    @property
    def finite(self) -> dict[str, float]:
        """The scalars that are numbers, for loggers that take nothing else."""
        return {name: value for name, value in self.scalars.items() if np.isfinite(value)}


@dataclass(kw_only=True, eq=False)
class Logger:
    """Takes each step that a monitor saw. Subclass it, as a dataclass with `log` and, where needed, `close`.

    Attributes:
        scalars: log the numbers, too; a framework that logs them itself needs only the rest.
        pictures: histograms and images at the first step, every so many steps, and at steps with an event; 0 has none.
    """

    scalars: bool = True
    pictures: int = 10

    def __call__(self, seen: Seen) -> None:
        """Log what a monitor saw."""
        first, self._begun = not getattr(self, "_begun", False), True
        drawn = self.pictures > 0 and bool(first or seen.events or seen.step % self.pictures == 0)
        self.log(entry_of(seen, scalars=self.scalars, pictures=drawn))

    def log(self, entry: Entry) -> None:
        """Log one step."""
        raise NotImplementedError

    def close(self) -> None:
        """Finish what this logger opened itself."""


def entry_of(seen: Seen, *, scalars: bool = True, pictures: bool = True) -> Entry:
    """What of a step is logged.

    Args:
        seen: the step.
        scalars: with its numbers.
        pictures: with histograms and images; packed batches have no heat map.

    Returns:
        The entry.

    >>> logp = np.log([[0.5, 0.25]])
    >>> batch = {"trainer": logp, "rollout": logp, "mask": np.ones((1, 2))}
    >>> entry = entry_of(Seen(step=1, metrics={"k3": 0.0}, batch=batch), pictures=False)
    >>> entry.scalars, entry.histograms, entry.images
    ({'k3': 0.0}, {}, {})
    """
    drawn = dict(seen.batch) if pictures else {}
    return Entry(
        step=seen.step,
        scalars=dict(seen.metrics) if scalars else {},
        histograms=dict(_histograms(drawn)),
        images=dict(_images(drawn, seen.step)),
        events=seen.events,
    )


def package(name: str) -> Any:
    """A logger's package.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return import_module(name)
    except ImportError as error:
        top = name.partition(".")[0]
        raise MissingDependencyError(
            f"This logger needs {top}, which is not installed; run pip install {top}."
        ) from error


def _histograms(batch: Mapping[str, Any]) -> Iterator[tuple[str, Bins]]:
    """The log-ratios under the mask."""
    if not batch:
        return
    mask = to_numpy(to_bool(batch["mask"])).astype(bool)
    sides = {name: to_numpy(batch[name])[mask].astype(np.float64) for name in ("trainer", "rollout")}
    d = log_ratio(**sides)
    d = d[np.isfinite(d)]
    if d.size:
        counts, edges = np.histogram(d, bins=BINS)
        yield LOG_RATIO, Bins(counts, edges, (float(d.sum()), float((d * d).sum())))


def _images(batch: Mapping[str, Any], step: int) -> Iterator[tuple[str, UInt8[np.ndarray, "height width 3"]]]:
    """The heat map of the first samples' first positions."""
    if not batch or batch.get("offsets") is not None:
        return
    sides = {name: batch[name] for name in ("trainer", "rollout", "mask")}
    mask = to_numpy(to_bool(batch["mask"])).astype(bool)
    yield HEAT_MAP, heat_map(to_numpy(difference(**sides)), mask, title=f"abs(exp T - exp R) at step {step}")
