"""One part of a run, ready to be corrected: its columns, its log-ratios, and which prompt each token belongs to."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.corrections import Correction, Stats
from samepolicy.corrections.base import BatchMaskStep, ScaleStep
from samepolicy.errors import MissingColumnError
from samepolicy.ratio import log_ratio
from samepolicy.records.run import Run

LOADED = (
    "trainer_logp",
    "rollout_logp",
    "mask",
    "advantage",
    "current_logp",
    "turn",
    "policy_version",
    "group",
    "step",
    "sample",
)
"""The columns of a run that a what-if can use."""
GIVEN = {
    "trainer": "trainer_logp",
    "rollout": "rollout_logp",
    "current": "current_logp",
    "advantage": "advantage",
    "turn": "turn",
}
"""What corrections call a column, and what a run calls it."""


@dataclass(frozen=True, eq=False)
class Part:
    """An aligned run that has both log-probs.

    Attributes:
        run: the run.
        first: number of its first response among all.
    """

    run: Run
    first: int

    def __post_init__(self) -> None:
        """Refuse a run that lacks a side."""
        lacking = [n for n in ("trainer_logp", "rollout_logp") if n not in self.run]
        if lacking:
            raise MissingColumnError(
                f"Correcting needs the log-probs of both sides, but the run has no {lacking[0]}; add it with "
                "`samepolicy score RUN --engine …`."
            )

    @cached_property
    def columns(self) -> Mapping[str, np.ndarray]:
        """What a correction can be given, [tokens] each."""
        return {n: self.run[c].values for n, c in GIVEN.items() if c in self.run and isinstance(self.run[c], Ragged)}

    @cached_property
    def mask(self) -> np.ndarray:
        """Sampled tokens, bool [tokens]."""
        return self.run.mask.values

    @cached_property
    def measured(self) -> np.ndarray:
        """Those of them with both log-probs finite."""
        found: np.ndarray = self.mask & np.isfinite(self._difference)
        return found

    @cached_property
    def log_ratio(self) -> np.ndarray:
        """d of each token, float64 [tokens]; 0 where it was not measured."""
        return np.where(self.measured, self._difference, 0.0)

    @cached_property
    def _difference(self) -> np.ndarray:
        sides = [self.columns[s].astype(np.float64) for s in ("trainer", "rollout")]
        with np.errstate(invalid="ignore"):
            found: np.ndarray = log_ratio(trainer=sides[0], rollout=sides[1])
        return found

    @cached_property
    def usable(self) -> np.ndarray:
        """Measured tokens with an advantage; none where the run has no advantages."""
        advantage = self.columns.get("advantage", np.full(len(self.mask), np.nan))
        found: np.ndarray = self.measured & np.isfinite(advantage)
        return found

    @cached_property
    def advantage(self) -> np.ndarray:
        """A of each token, float64 [tokens]; 0 where it is not usable."""
        given = self.columns.get("advantage", np.zeros(len(self.mask)))
        return np.where(self.usable, given, 0.0).astype(np.float64)

    @cached_property
    def row(self) -> np.ndarray:
        """The response of each token, int [tokens]."""
        return np.repeat(np.arange(len(self.run)), self.run.lengths)

    @cached_property
    def lengths(self) -> np.ndarray:
        """Sampled tokens of each response, int [responses]."""
        found: np.ndarray = self.per_response(self.mask)
        return found

    @cached_property
    def mean_abs(self) -> np.ndarray:
        """Mean abs d of each response's measured tokens, nats/token [responses]; 0 where none was measured."""
        found: np.ndarray = self.per_response(np.abs(self.log_ratio)) / np.maximum(self.per_response(self.measured), 1)
        return found

    @cached_property
    def mean_advantage(self) -> np.ndarray:
        """Mean A of each response's usable tokens [responses]; NaN where there is none."""
        count = self.per_response(self.usable)
        return np.where(count > 0, self.per_response(self.advantage) / np.maximum(count, 1), np.nan)

    @cached_property
    def prompts(self) -> tuple[np.ndarray, np.ndarray]:
        """A label of each prompt, str [prompts], and the prompt of each response, int [responses]."""
        if "group" in self.run and not isinstance(self.run["group"], Ragged):
            labels, prompt = np.unique(np.asarray([str(g) for g in self.run["group"]]), return_inverse=True)
            return np.char.add("group ", labels) if len(labels) else labels.astype(str), prompt
        numbers = np.arange(len(self.run))
        return np.char.add("response ", (numbers + self.first).astype(str)), numbers

    def per_response(self, values: np.ndarray) -> Any:
        """The sum of values (or of flags) over each response."""
        if values.dtype == bool:
            return np.bincount(self.row[values], minlength=len(self.run))
        return np.bincount(self.row, weights=values, minlength=len(self.run))

    def per_prompt(self, values: np.ndarray) -> np.ndarray:
        """The sum of values (or of flags) over each prompt, float64 [prompts]."""
        labels, prompt = self.prompts
        return np.bincount(prompt, weights=self.per_response(values), minlength=len(labels)).astype(np.float64)

    def corrected(self, correction: Correction) -> tuple[np.ndarray, np.ndarray, Stats]:
        """Weights, mask and statistics; where a step looks at the whole batch, each training step is a batch."""
        together = any(isinstance(s, BatchMaskStep | ScaleStep) for s in correction.steps)
        steps = np.unique(self.run["step"]) if together and "step" in self.run else np.zeros(0)
        if len(steps) < 2:
            return correction(**self._arguments(correction, slice(None)), offsets=self.run.offsets)
        weights, keep = np.zeros(len(self.mask)), np.zeros(len(self.mask), dtype=bool)
        parts: list[Stats] = []
        for step in steps:
            rows = self.run["step"] == step
            tokens = rows[self.row]
            offsets = np.concatenate([[0], np.cumsum(self.run.lengths[rows])])
            found = correction(**self._arguments(correction, tokens), offsets=offsets)
            weights[tokens], keep[tokens] = found.weights, found.keep
            parts.append(found.stats)
        return weights, keep, sum(parts[1:], start=parts[0])

    def _arguments(self, correction: Correction, tokens: Any) -> dict[str, Any]:
        """The columns that a correction is called with; it is given `current` wherever there is one to be used."""
        wanted = {*correction.needs, "trainer", "rollout", *(("current",) if "advantage" in correction.needs else ())}
        return {n: c[tokens] for n, c in self.columns.items() if n in wanted} | {"mask": self.mask[tokens]}


def lacking(correction: Correction, run: Run) -> tuple[str, ...]:
    """The run's columns that a correction needs and the run does not have."""
    return tuple(GIVEN[n] for n in correction.needs if GIVEN[n] not in run)
