"""Which responses are asked for, said in values of their columns of single values."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import index
from typing import Any

import numpy as np

from samepolicy.errors import InputError, MissingColumnError
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
        """From any iterables of values, or None.

        Raises:
            InputError: something else is given.
        """
        return cls(
            steps=_listed("steps", steps, "whole numbers", index),
            samples=_listed("samples", samples, "whole numbers", index),
            finish_reasons=_listed("finish_reasons", finish_reasons, "texts", _reason),
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


def _listed(name: str, values: Any, kind: str, of: Callable[[Any], Any]) -> frozenset[Any] | None:
    """What `of` makes of each value, as a set; None where nothing is asked for."""
    try:
        if isinstance(values, str):
            raise TypeError("one text")
        return None if values is None else frozenset(map(of, values))
    except TypeError as error:
        raise InputError(f"{name} must be a list of {kind}, but it is {values!r}.") from error


def _reason(value: Any) -> str | None:
    """A finish reason, if it is one."""
    if not isinstance(value, str | None):
        raise TypeError("no text")
    return value
