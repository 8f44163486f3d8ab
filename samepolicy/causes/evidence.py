"""What a cause is tested on: one side's recorded column, what the reference predicts for it, and how far rounding goes.

Parameters are fitted on one half of the prompts, by mean absolute error on a few hundred of their tokens; everything
that is said of a cause is read on the other half.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from samepolicy.causes import trial
from samepolicy.causes.reference import Clash, Reference, SideName, Unavailable
from samepolicy.causes.settings import DECLARED, Settings
from samepolicy.floor.gap import CAP
from samepolicy.records.align import align_all
from samepolicy.records.lineup import kind_of
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling
from samepolicy.semantics.predict import cut

Choice = TypeVar("Choice")

Mode: TypeAlias = Literal["rollout", "trainer", "declared", "pair"]
"""Whose column is explained: a side against its own declaration, the log-ratio against the difference of the two
declarations, or (without a reference) the trainer's column against the rollout's."""

FAR = 20.0
"""An error counts for at most this when parameters are fitted, nats."""

CLOSE = 1.1
"""Settings whose error at that first look is within this factor of the best are tried in full."""

ROUNDING = 3.0
"""Rounding takes a token this many floors off at most, but for a few in a thousand."""

SAME = 1.01
"""Errors within this factor are as good as each other."""

FORWARD = 2
"""From this cost on, a setting takes another forward."""

HELPS = 0.97
"""A setting helps where it takes the error below this share of what it was."""

LOGITS = 16_000_000
"""Logits kept to try settings of the head, in elements."""

LIKELY = 256
"""Likeliest ids that kept sets are tried on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence:
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

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Tokens of each response with its prompt."""
        prompts = self.run["prompt_ids"].lengths if "prompt_ids" in self.run else 0
        return np.asarray(self.run.lengths + prompts)

    @property
    def _floors(self) -> Float[np.ndarray, " tokens"]:
        """How far each token is from its declaration in floors, at most `CAP`."""
        with np.errstate(invalid="ignore", divide="ignore"):
            floors = np.abs(self.start().residual) / self.floor
        found: np.ndarray = np.minimum(np.nan_to_num(floors, nan=CAP), CAP)
        return found

    @cached_property
    def probe(self) -> Int[np.ndarray, " n"]:
        """The few tokens that settings are tried on, rising: whole responses of the fitted half, of all gaps."""
        most = max(LOGITS // self.reference.vocabulary(), 128)
        return trial.probe(self.row, self.fitted, self._floors, self._lengths, most=most)

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

    @cached_property
    def glance(self) -> Int[np.ndarray, " n"]:
        """The tokens of the probe's responses that are furthest from what is known; dear settings are tried on them."""
        first = trial.glance(self.row[self.probe], np.nan_to_num(self._errors(DECLARED, self.probe)), self._lengths)
        return np.asarray(self.probe[first])

    def error(self, settings: Settings = DECLARED, **changes: Any) -> float:
        """Mean absolute error of a prediction on the probe, nats; each token counts for at most `FAR`.

        What takes another forward and does not help at the `glance` is not tried further: the error is taken to change
        as it does there.
        """
        tried = settings | Settings(**changes)
        if tried.cost >= FORWARD:
            before, after = self._glanced(DECLARED), self._glanced(tried)
            if after > HELPS * before > 0:
                return self.error() * after / before
        return _mean(self._errors(tried, self.probe))

    def within(self, settings: Settings) -> float:
        """The share of the probe's tokens that a prediction meets within `ROUNDING` floors."""
        error = self._errors(settings, self.probe)
        known = np.isfinite(error)
        return float((error[known] <= ROUNDING * self.floor[self.probe][known]).mean()) if known.any() else 0.0

    def _glanced(self, settings: Settings) -> float:
        """Mean absolute error at the glance."""
        return _mean(self._errors(settings, self.glance))

    def _errors(self, settings: Settings, tokens: np.ndarray) -> np.ndarray:
        """Absolute error of a prediction at some tokens of the probe, nats, at most `FAR`; NaN at void ones."""
        predicted = self._probed(self._with(settings), tokens)
        missing = ~np.isfinite(predicted)
        if missing.any():
            predicted = np.where(missing, self._probed(self.known, tokens), predicted)
        with np.errstate(invalid="ignore"):
            found = np.abs(self.recorded[tokens] - predicted)
        capped = np.where(np.isnan(found), FAR, np.minimum(found, FAR))
        return np.where(np.isin(tokens, self.void(settings)), np.nan, capped)

    def gain(self, settings: Settings) -> float:
        """The share of the mean absolute error on the probe that these settings take away; 1 takes all of it."""
        before = self.error()
        return 1 - self.error(settings) / before if before > 0 else 0.0

    def best(self, candidates: Iterable[Settings]) -> Settings:
        """Of some settings, simplest first, the one that predicts the probe best; none is the neutral one."""
        first = [(self._glanced(one) if one.cost >= FORWARD else self.error(one), one) for one in candidates]
        limit = min((error for error, _ in first), default=0.0) * CLOSE
        close = [one for error, one in first if error <= limit]
        return simplest([(self.error(one), one) for one in close]) or DECLARED

    def fit(self, make: Callable[[float], Settings], low: float, high: float, *, grid: int = 9) -> float:
        """The parameter between two bounds (above 0) that predicts the probe best, by mean absolute error.

        A grid in equal ratios, then a bounded search around its best point, sharper where that helps at all; a round
        number nearby is preferred where it is as good.
        """
        from scipy.optimize import minimize_scalar

        def loss(value: float) -> float:
            return self.error(make(float(value)))

        values = np.geomspace(low, high, grid)
        at = int(np.argmin([loss(v) for v in values]))
        bounds = float(values[max(at - 1, 0)]), float(values[min(at + 1, grid - 1)])
        found = float(minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 3e-3 * bounds[0]}).x)
        if loss(found) > HELPS * self.error():
            return found
        near = 0.99 * found, 1.01 * found
        sharp = float(minimize_scalar(loss, bounds=near, method="bounded", options={"xatol": 1e-6 * found}).x)
        return self.rounded(min(found, sharp, key=loss), loss)

    def rounded(self, value: float, loss: Callable[[float], float]) -> float:
        """The shortest number near a fitted one that fits as well (within 1 %)."""
        limit = loss(value) * SAME + 1e-9
        short = (float(f"{value:.{digits}g}") for digits in (1, 2, 3, 4))
        return next((one for one in short if loss(one) <= limit), value)

    @cached_property
    def head_tokens(self) -> Int[np.ndarray, " n"]:
        """The tokens whose distribution tells the probe: itself, or with known array steps all of its responses'."""
        if not self.known.arrays:
            return self.probe
        return np.flatnonzero(np.isin(self.row, np.unique(self.row[self.probe])))

    def likely(
        self, *, temperature: float | None = None
    ) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, "n count"]]:
        """Log-probs at `head_tokens` of their own ids and of the `LIKELY` likeliest ids, most likely first.

        They hold what is known, but for array steps; another temperature may be tried.
        """
        if temperature not in self._distributions:
            settings = replace(self.known, arrays=(), temperature=temperature or self.known.temperature)
            count = min(LIKELY, self.reference.vocabulary())
            self._distributions[temperature] = (
                self.reference.logp(self.side, settings, self.head_tokens),
                self.reference.likely(self.side, settings, self.head_tokens, count),
            )
        return self._distributions[temperature]

    @cached_property
    def _distributions(self) -> dict[float | None, tuple[np.ndarray, np.ndarray]]:
        """What `likely` gave already, by temperature."""
        return {}

    def sampled(self, sampler: Sampling) -> Float[np.ndarray, " n"]:
        """Log-probs at `head_tokens` under a sampler in place of the declared one; -inf outside of its kept set."""
        own, likely = self.likely(temperature=None if sampler.temperature == 1 else sampler.temperature)
        return cut(np.exp(likely), own, replace(sampler, temperature=1.0))

    def distance(self, predicted: Float[np.ndarray, " n"]) -> float:
        """`error` of values that were computed by other means for `head_tokens`; known array steps are applied."""
        whole = np.full(len(self.recorded), np.nan)
        whole[self.head_tokens] = predicted
        for step in self.known.arrays:
            whole = step.apply(whole, self.reference)
        found = np.abs(self.recorded - np.where(np.isfinite(whole), whole, self.base))[self.probe]
        capped = np.minimum(np.where(np.isnan(found), FAR, found), FAR)
        return _mean(np.where(np.isin(self.probe, self.void()), np.nan, capped))

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

    def _probed(self, settings: Settings, probe: np.ndarray) -> np.ndarray:
        """A prediction at some tokens; only the head of those rows runs where nothing else is changed."""
        rows = np.unique(self.row[probe])
        wider = any(len(step.needs(rows, self.reference)) > len(rows) for step in settings.arrays)
        if self.mode == "pair" or wider or settings == DECLARED:
            return np.asarray(self._column(settings, rows)[probe])
        if not settings.arrays:
            return self.reference.logp(self.side, settings, probe)
        tokens = np.flatnonzero(np.isin(self.row, rows))
        found = np.full(len(self.recorded), np.nan)
        found[tokens] = self.reference.logp(self.side, replace(settings, arrays=()), tokens)
        for step in settings.arrays:
            found = step.apply(found, self.reference)
        return np.asarray(found[probe])


def _mean(errors: Float[np.ndarray, " n"]) -> float:
    """Their mean without void tokens; `FAR` where all are void."""
    known = errors[np.isfinite(errors)]
    return float(known.mean()) if len(known) else FAR


def simplest(tried: Sequence[tuple[float, Choice]]) -> Choice | None:
    """The first of some (error, choice) pairs that is as good as the best: its error is at most 1 % larger.

    >>> simplest([(0.5, "a"), (0.2001, "b"), (0.2, "c")])
    'b'
    """
    least = min((error for error, _ in tried), default=0.0)
    return next((choice for error, choice in tried if error <= SAME * least), None)
