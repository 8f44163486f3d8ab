"""SwanLab; `mode="offline"` writes a local folder that `swanlab sync` can send later."""

import os
from dataclasses import dataclass
from typing import Any

from samepolicy.integrations.images import bars
from samepolicy.integrations.loggers.base import EVENTS, Entry, Logger, package


@dataclass(kw_only=True, eq=False)
class SwanLab(Logger):
    """Logs to the open run, or to one of its own. It has no histograms of its own, so they are logged as pictures.

    Attributes:
        project: of a run of its own.
        folder: where its files go.
        mode: "online", "local" or "offline"; None leaves it to swanlab.
    """

    project: str = "samepolicy"
    folder: str | os.PathLike[str] | None = None
    mode: Any = None

    def __post_init__(self) -> None:
        self._swanlab = package("swanlab")
        self._own = not self._swanlab.has_run()
        if self._own:
            place = None if self.folder is None else os.fspath(self.folder)
            self._swanlab.init(project=self.project, log_dir=place, mode=self.mode)
        self._run = self._swanlab.get_run()

    def log(self, entry: Entry) -> None:
        """Log one step."""
        pictures = dict(entry.images)
        for name, bins in entry.histograms.items():
            pictures[name] = bars(bins.counts, bins.edges, title=f"{name} at step {entry.step}")
        said = {EVENTS: [self._swanlab.Text(sentence) for sentence in entry.events]} if entry.events else {}
        images = {name: self._swanlab.Image(pixels) for name, pixels in pictures.items()}
        self._run.log({**entry.finite, **images, **said}, step=entry.step)

    def close(self) -> None:
        """Finish a run of its own."""
        if self._own:
            self._run.finish()
