"""trackio, which keeps its runs in a local database (`TRACKIO_DIR`)."""

from dataclasses import dataclass
from typing import Any

from samepolicy.integrations.loggers.base import EVENTS, Entry, Logger, package


@dataclass(kw_only=True, eq=False)
class Trackio(Logger):
    """Logs to the open run, or to one of its own.

    Attributes:
        project: of a run of its own.
        name: of a run of its own; None lets trackio choose.
        run: a run that is open already; by default the one that `trackio.init` opened in this thread.
    """

    project: str = "samepolicy"
    name: str | None = None
    run: Any = None

    def __post_init__(self) -> None:
        self._trackio = package("trackio")
        self.run = self.run or package("trackio.context_vars").current_run.get()
        self._own = self.run is None
        if self._own:
            self.run = self._trackio.init(self.project, name=self.name, embed=False)

    def log(self, entry: Entry) -> None:
        """Log one step."""
        pictures = {name: self._trackio.Image(pixels) for name, pixels in entry.images.items()}
        bins = {n: self._trackio.Histogram(np_histogram=(b.counts, b.edges)) for n, b in entry.histograms.items()}
        logged = {**entry.scalars, **{f"{n}_histogram": b for n, b in bins.items()}, **pictures}
        if logged:
            self.run.log(logged, step=entry.step)
        for sentence in entry.events:
            self.run.alert(EVENTS, sentence, step=entry.step)

    def close(self) -> None:
        """Finish a run of its own."""
        if self._own:
            self.run.finish()
