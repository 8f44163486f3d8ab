"""What one fault of the bench is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

Columns: TypeAlias = dict[str, Any]
"""Columns of a run as lists of rows."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault at one severity, or with one seed.

    Attributes:
        name: what it is called in the results.
        cause: the name that the diagnosis should give; "" for one on no list, "numerics" for a healthy run.
        severity: its parameter, in words.
        rollout: how the tokens are sampled: fields of `Sampling`, and those that `Rollouts` takes beside them.
        dtype: what the trainer computes in.
        trainer: the mistake: keyword arguments of `Trainer.score`.
        arrays: the mistake on the recorded columns: from columns and a generator to the same.
        declared: what both sides say of the sampling, where that is not the rollout's own.
        checkpoint: the earlier weights that are given to the diagnosis, by their name in `models.CHECKPOINTS`.
        adapter: scale and dropout of the LoRA adapter that the trainer's engine has.
        expected: the parameter to be found and its true value.
    """

    name: str
    cause: str
    severity: str = ""
    rollout: dict[str, Any] = field(default_factory=dict)
    dtype: str = "bfloat16"
    trainer: dict[str, Any] = field(default_factory=dict)
    arrays: Callable[[Columns, np.random.Generator], Columns] | None = None
    declared: dict[str, Any] | None = None
    checkpoint: str = ""
    adapter: tuple[float, float] | None = None
    expected: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Name and severity."""
        return f"{self.name} {self.severity}".strip()
