"""Weights & Biases; `mode="offline"` writes a local file that `wandb sync` can send later."""

import os
from dataclasses import dataclass
from typing import Any

from samepolicy.integrations.loggers.base import EVENTS, Entry, Logger, package

STEP = "samepolicy/step"
"""The step is logged as a number, since wandb's own counter belongs to whoever opened the run."""


@dataclass(kw_only=True, eq=False)
class WeightsAndBiases(Logger):
    """Logs to the open run, or to one of its own.

    Attributes:
        project: of a run of its own.
        folder: where its files go.
        mode: "online" or "offline"; None leaves it to wandb.
        run: a run that is open already; by default the one that `wandb.init` opened.
    """

    project: str = "samepolicy"
    folder: str | os.PathLike[str] | None = None
    mode: str | None = None
    run: Any = None

    def __post_init__(self) -> None:
        self._wandb = package("wandb")
        self.run = self.run or self._wandb.run
        self._own = self.run is None
        if self._own:
            place = None if self.folder is None else os.fspath(self.folder)
            self.run = self._wandb.init(project=self.project, dir=place, mode=self.mode)
        self.run.define_metric(STEP)
        self.run.define_metric("*" if self._own else "samepolicy/*", step_metric=STEP)

    def log(self, entry: Entry) -> None:
        """Log one step."""
        pictures = {name: self._wandb.Image(pixels) for name, pixels in entry.images.items()}
        bins = {name: self._wandb.Histogram(np_histogram=(b.counts, b.edges)) for name, b in entry.histograms.items()}
        self.run.log({STEP: entry.step, **entry.scalars, **{f"{n}_histogram": b for n, b in bins.items()}, **pictures})
        for sentence in entry.events:
            self.run.alert(title=EVENTS, text=f"step {entry.step}: {sentence}", wait_duration=0)

    def close(self) -> None:
        """Finish a run of its own."""
        if self._own:
            self.run.finish()
