"""Which responses are asked for, said in values of their columns of single values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from samepolicy.errors import MissingColumnError
from samepolicy.records.run import Run

_COLUMN = {"steps": "step", "samples": "sample", "finish_reasons": "finish_reason"}


@dataclass(frozen=True, kw_only=True)
class Where:
    """Responses with one of these values in each of the columns; None does not ask.

    Attributes:
        steps: training steps.
        samples: numbers within the step or group.
        finish_reasons: why sampling ended, such as "stop"; None among them is "not recorded".

    >>> Where.of(steps=[1, 2], samples=None, finish_reasons=["stop"]).columns
    ('step', 'finish_reason')
    """

    steps: frozenset[int] | None = None
    samples: frozenset[int] | None = None
    finish_reasons: frozenset[str | None] | None = None

    @classmethod
    def of(cls, *, steps: Any, samples: Any, finish_reasons: Any) -> "Where":
        """From any iterables of values, or None."""
        return cls(
            steps=_whole(steps),
            samples=_whole(samples),
            finish_reasons=None if finish_reasons is None else frozenset(finish_reasons),
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that decide."""
        return tuple(_COLUMN[f.name] for f in fields(self) if getattr(self, f.name) is not None)

    def rows(self, columns: Mapping[str, Any], rows: int) -> np.ndarray | None:
        """Which rows are asked for, bool [rows]; None for all.

        Raises:
            MissingColumnError: a column that decides is not there.
        """
        found: np.ndarray | None = None
        for f in fields(self):
            values, name = getattr(self, f.name), _COLUMN[f.name]
            if values is None:
                continue
            if name not in columns:
                raise MissingColumnError(f"This run has no column {name}, so {f.name}= cannot choose among it.")
            hit = np.fromiter((v in values for v in columns[name].tolist()), dtype=bool, count=rows)
            found = hit if found is None else found & hit
        return found

    def select(self, run: Run) -> Run:
        """The responses of a run that are asked for.

        Raises:
            MissingColumnError: a column that decides is not there.
        """
        rows = self.rows(run.columns, len(run))
        return run if rows is None else run.select(rows)


EVERYTHING = Where()
"""Every response."""


def _whole(values: Iterable[Any] | None) -> frozenset[int] | None:
    """Whole numbers as a set."""
    return None if values is None else frozenset(int(value) for value in values)
