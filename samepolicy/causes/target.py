"""What causes are to explain: a recorded column, what the reference predicts for it, and how far rounding goes.

Everything that is said of a cause is read on one half of the prompts; the other half is for fitting.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias

import numpy as np
from jaxtyping import Bool, Float, Int

from samepolicy.causes import trial
from samepolicy.causes.reference import Reference, SideName
from samepolicy.causes.settings import DECLARED, Settings
from samepolicy.causes.unavailable import Clash, Unavailable
from samepolicy.floor.gap import CAP
from samepolicy.records.align import align_all
from samepolicy.records.lineup import kind_of
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

Mode: TypeAlias = Literal["rollout", "trainer", "declared", "pair"]
"""Whose column is explained: a side against its own declaration, the log-ratio against the difference of the two
declarations, or (without a reference) the trainer's column against the rollout's."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Target:
    """One column to explain.

    Attributes:
        reference: scores under any settings; has the run.
        mode: whose column it is.
        recorded: the column Y of all response tokens, nats [tokens]; NaN where it cannot be compared.
        floor: rms of rounding at each token, nats [tokens].
        prompt: number of each token's prompt, int [tokens].
        known: what was found already: every prediction holds it.
        measured: whether the floor was measured, not assumed.
    """

    reference: Reference
    mode: Mode
    recorded: Float[np.ndarray, " tokens"]
    floor: Float[np.ndarray, " tokens"]
    prompt: Int[np.ndarray, " tokens"]
    known: Settings = DECLARED
    measured: bool = True

    @property
    def run(self) -> Run:
        """The run, not aligned."""
        return self.reference.run

    @property
    def side(self) -> SideName:
        """Whose declaration the predictions start from."""
        return "trainer" if self.mode == "trainer" else "rollout"

    @property
    def sampling(self) -> Sampling:
        """The sampling that reaches this column's log-probs, as declared."""
        return self.reference.sampling(self.side)

    @property
    def checkpoints(self) -> tuple[str, ...]:
        """Earlier weights of the trainer, oldest first; raises `Unavailable` where there are none."""
        return self.reference.checkpoints

    @cached_property
    def row(self) -> Int[np.ndarray, " tokens"]:
        """The response of each token."""
        found: np.ndarray = np.repeat(np.arange(len(self.run)), self.run.lengths)
        return found

    @cached_property
    def position(self) -> Int[np.ndarray, " tokens"]:
        """The place of each token in its response, from 0."""
        found: np.ndarray = np.arange(len(self.recorded)) - self.run.offsets[:-1][self.row]
        return found

    def column(self, name: str) -> Float[np.ndarray, " tokens"]:
        """A per-token column of the run at the sampled tokens, float64; NaN where the trainer lacks one."""
        values = np.asarray(self.run[name].values, dtype=np.float64)
        if len(values) == len(self.recorded) and "trainer_response_ids" not in self.run:
            return values
        if kind_of(name, self.run[name]) != "trainer token":
            return values
        mine, theirs, _ = align_all(self.run["response_ids"], self.run["trainer_response_ids"])
        found = np.full(len(self.recorded), np.nan)
        found[mine] = values[theirs]
        return found

    @cached_property
    def comparable(self) -> Bool[np.ndarray, " tokens"]:
        """Tokens that count: under the mask, with values on both sides and a floor."""
        return np.asarray(np.isfinite(self.recorded) & np.isfinite(self.floor))

    @cached_property
    def fitted(self) -> Bool[np.ndarray, " tokens"]:
        """Tokens of the prompts that parameters are fitted on."""
        return self._halves[0]

    @cached_property
    def read(self) -> Bool[np.ndarray, " tokens"]:
        """Tokens of the prompts that everything is read on."""
        return self._halves[1]

    @cached_property
    def _halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens to fit on, and tokens to read on."""
        return trial.halves(self.prompt, self.comparable, self._floors)

    @property
    def _floors(self) -> Float[np.ndarray, " tokens"]:
        """How far each token is from its declaration in floors, at most `CAP`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            floors = np.abs(self.start().residual) / self.floor
        found: np.ndarray = np.minimum(np.nan_to_num(floors, nan=CAP), CAP)
        return found

    @cached_property
    def base(self) -> Float[np.ndarray, " tokens"]:
        """What is predicted with what is known already, S(c0) at first; NaN where there is no prediction."""
        return self._column(self.known, np.arange(len(self.run)))

    @property
    def residual(self) -> Float[np.ndarray, " tokens"]:
        """Y - base: what is not explained yet."""
        return np.asarray(self.recorded - self.base)

    def given(self, settings: Settings) -> Self:
        """The same evidence where these settings are known, too; raises `InputError` where they clash."""
        return replace(self, known=self.known | settings)

    def start(self) -> Self:
        """The same evidence where nothing is known."""
        return self if self.known == DECLARED else replace(self, known=DECLARED)

    def rescore(
        self, settings: Settings = DECLARED, *, rows: Int[np.ndarray, " rows"] | None = None, **changes: Any
    ) -> Float[np.ndarray, " tokens"]:
        """The prediction S(known | settings) for all tokens (of some rows), nats; NaN where there is none.

        Args:
            settings: what the side may have done.
            rows: responses to score; all by default.
            **changes: fields of `Settings`, in its place.

        Raises:
            Unavailable: this takes something that is not there, such as the trainer's model.
        """
        chosen = np.arange(len(self.run)) if rows is None else rows
        return self._column(self._with(settings | Settings(**changes)), chosen)

    def void(self, settings: Settings = DECLARED) -> Int[np.ndarray, " n"]:
        """Tokens whose recorded value is that of no token, by what is known or by these settings, rising."""
        arrays = (*self.known.arrays, *settings.arrays)
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(step.void(self.reference) for step in arrays)]))

    def squares(self, settings: Settings = DECLARED) -> Float[np.ndarray, " read"]:
        """Squared error of a prediction at the tokens that are read, each capped at (8 floors)², nats².

        Where these settings predict nothing, a token counts as it does without them; a void one counts as the others
        do, in floors.
        """
        floor = self.floor[self.read]
        found = np.minimum(np.abs(self.recorded - self.predicted(settings))[self.read], CAP * floor) ** 2
        void = np.isin(np.flatnonzero(self.read), self.void(settings))
        others = float((floor[~void] ** 2).sum())
        found[void] = floor[void] ** 2 * (found[~void].sum() / others if others else CAP**2)
        return np.asarray(found)

    def predicted(self, settings: Settings = DECLARED) -> Float[np.ndarray, " tokens"]:
        """`rescore` at the tokens that are read, filled up with the base where it says nothing; NaN at void ones."""
        rows = np.unique(self.row[self.read])
        found = self.rescore(settings, rows=rows)
        found = np.where(np.isfinite(found), found, self.base)
        found[self.void(settings)] = np.nan
        return found

    def _with(self, settings: Settings) -> Settings:
        """What is known and these settings; what clashes cannot be tried."""
        if self.known.clashes(settings):
            raise Clash("another value of a setting that is known already")
        return self.known | settings

    def _column(self, settings: Settings, rows: np.ndarray) -> np.ndarray:
        """A whole column; without a reference the rollout's own column is the prediction."""
        if self.mode != "pair":
            return self.reference.column(self.side, settings, rows)
        if settings != Settings(arrays=settings.arrays):
            raise Unavailable("the trainer's model: diagnose(run, trainer=…), or --trainer on the command line")
        found: np.ndarray = np.asarray(self.run["rollout_logp"].values, dtype=np.float64)
        for step in settings.arrays:
            found = step.apply(found, self.reference)
        return found
