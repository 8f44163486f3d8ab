"""MLflow. It has no histograms of its own, so they are logged as pictures and their numbers as JSON."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from samepolicy.integrations.images import bars
from samepolicy.integrations.loggers.base import EVENTS, Entry, Logger, package

BATCH = 1000
"""Numbers that one call of MLflow takes."""


@dataclass(kw_only=True, eq=False)
class MLflow(Logger):
    """Logs to the active run, or to one of its own.

    Attributes:
        folder: where the files of a run of its own go, which MLflow has to be allowed
            (`MLFLOW_ALLOW_FILE_STORE`) and then is; None leaves it to MLflow's tracking URI.
        experiment: of a run of its own.
        run_id: a run that is there already; by default the active one of this thread.
    """

    folder: str | os.PathLike[str] | None = None
    experiment: str = "samepolicy"
    run_id: str | None = None

    def __post_init__(self) -> None:
        mlflow = package("mlflow")
        uri = None if self.folder is None else Path(self.folder).absolute().as_uri()
        if uri is not None:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        active = mlflow.active_run() if uri is None else None
        if self.run_id is None and active is not None:
            self.run_id = str(active.info.run_id)
        self._own = self.run_id is None
        if self._own:
            self.run_id = str(self._client.create_run(self._experiment()).info.run_id)

    def log(self, entry: Entry) -> None:
        """Log one step."""
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        numbers = [Metric(name, value, now, entry.step) for name, value in entry.scalars.items()]
        for first in range(0, len(numbers), BATCH):
            self._client.log_batch(self.run_id, metrics=numbers[first : first + BATCH])
        pictures = dict(entry.images)
        for name, bins in entry.histograms.items():
            pictures[name] = bars(bins.counts, bins.edges, title=f"{name} at step {entry.step}")
            numbers_of = {"counts": bins.counts.tolist(), "edges": bins.edges.tolist()}
            self._client.log_dict(self.run_id, numbers_of, f"{name}_step_{entry.step}.json")
        for name, pixels in pictures.items():
            self._client.log_image(self.run_id, pixels, key=name, step=entry.step)
        if entry.events:
            self._client.log_text(self.run_id, "\n".join(entry.events), f"{EVENTS}_step_{entry.step}.txt")

    def close(self) -> None:
        """End a run of its own."""
        if self._own:
            self._client.set_terminated(self.run_id)

    def _experiment(self) -> str:
        """The experiment, made if it is not there."""
        found = self._client.get_experiment_by_name(self.experiment)
        return str(found.experiment_id if found else self._client.create_experiment(self.experiment))
