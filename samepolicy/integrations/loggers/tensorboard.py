"""TensorBoard."""

import os
from dataclasses import dataclass
from typing import Any

from samepolicy.integrations.loggers.base import EVENTS, Entry, Logger, package


@dataclass(kw_only=True, eq=False)
class TensorBoard(Logger):
    """Writes an event file.

    Attributes:
        folder: where to, for a writer of its own.
        writer: a `SummaryWriter` that is open already.
    """

    folder: str | os.PathLike[str] | None = None
    writer: Any = None

    def __post_init__(self) -> None:
        self._own = self.writer is None
        if self._own:
            package("tensorboard")
            folder = None if self.folder is None else os.fspath(self.folder)
            self.writer = package("torch.utils.tensorboard").SummaryWriter(folder)

    def log(self, entry: Entry) -> None:
        """Write one step."""
        for name, value in entry.scalars.items():
            self.writer.add_scalar(name, value, entry.step)
        for name, bins in entry.histograms.items():
            self.writer.add_histogram_raw(
                name,
                min=float(bins.edges[0]),
                max=float(bins.edges[-1]),
                num=int(bins.counts.sum()),
                sum=bins.sums[0],
                sum_squares=bins.sums[1],
                bucket_limits=bins.edges[1:].tolist(),
                bucket_counts=bins.counts.tolist(),
                global_step=entry.step,
            )
        for name, pixels in entry.images.items():
            self.writer.add_image(name, pixels, entry.step, dataformats="HWC")
        for sentence in entry.events:
            self.writer.add_text(EVENTS, sentence, entry.step)
        self.writer.flush()

    def close(self) -> None:
        """Close a writer of its own."""
        if self._own:
            self.writer.close()
