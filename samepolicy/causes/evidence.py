"""What a cause is tested on: a target, and a few hundred of its tokens on which settings are tried and fitted.

Parameters are fitted by mean absolute error. What takes another forward is tried on fewer tokens first.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float, Int

from samepolicy.causes import trial
from samepolicy.causes.settings import DECLARED, Settings
from samepolicy.causes.target import Target
from samepolicy.records.side import Sampling
from samepolicy.semantics.predict import cut

Choice = TypeVar("Choice")

FAR = 20.0
"""An error counts for at most this when parameters are fitted, nats."""

CLOSE = 1.1
"""Settings whose error at that first look is within this factor of the best are tried in full."""

FULL = 4
"""Of these, so many at most, and those that are as good as the best."""

ROUNDING = 3.0
"""Rounding takes a token this many floors off at most, but for a few in a thousand."""

SAME = 1.01
"""Errors within this factor are as good as each other."""

FORWARD = 2
"""From this cost on, a setting takes another forward."""

SHARPLY = 0.5
"""A parameter is fitted to the last digit where it takes the error below this share of what it was."""

HELPS = 0.97
"""A setting helps where it takes the error below this share of what it was."""

ALIKE = 0.5
"""At a first look, a way that takes this part of what the best one takes is tried in full."""

LOGITS = 16_000_000
"""Logits kept to try settings of the head, in elements."""

LIKELY = 256
"""Likeliest ids that kept sets are tried on."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evidence(Target):
    """A target on which settings can be tried."""

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Tokens of each response with its prompt."""
        prompts = self.run["prompt_ids"].lengths if "prompt_ids" in self.run else 0
        return np.asarray(self.run.lengths + prompts)

    @cached_property
    def probe(self) -> Int[np.ndarray, " n"]:
        """The few tokens that settings are tried on, rising: whole responses of the fitted half, of all gaps."""
        most = max(LOGITS // self.reference.vocabulary(), 128)
        return trial.probe(self.row, self.fitted, self._floors, self._lengths, most=most)

    @cached_property
    def glance(self) -> Int[np.ndarray, " n"]:
        """The part of the probe that dear settings meet first: the response furthest from what is known, or a few."""
        off = np.nan_to_num(self._errors(DECLARED, self.probe))
        first = trial.glance(self.row[self.probe], off, self.run.lengths)
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

    def gain(self, settings: Settings) -> float:
        """The share of the mean absolute error on the probe that these settings take away; 1 takes all of it."""
        before = self.error()
        return 1 - self.error(settings) / before if before > 0 else 0.0

    def promising(self, ways: Iterable[Sequence[Settings]]) -> list[Settings]:
        """All settings of those ways, each from a small step to a large one, that a first look finds worth trying.

        Looked at are the first, the middle and the last step of each way, on a few tokens; a way is worth trying where
        one of them helps, and takes about as much as the best one of all ways.
        """
        before = self._glanced(DECLARED)
        looked = []
        for way in ways:
            steps = dict.fromkeys((way[0], way[len(way) // 2], way[-1]))
            looked.append((before - min(self._glanced(one) for one in steps), way))
        least = max([(1 - HELPS) * before, *(ALIKE * taken for taken, _ in looked)])
        return [one for taken, way in looked if taken > least for one in way]

    def best(self, candidates: Iterable[Settings]) -> Settings:
        """Of some settings, simplest first, the one that predicts the probe best; none is the neutral one."""
        first = [(self._glanced(one) if one.cost >= FORWARD else self.error(one), one) for one in candidates]
        nearest = sorted(error for error, _ in first)[:FULL] or [0.0]
        limit = min(CLOSE * nearest[0], max(SAME * nearest[0], nearest[-1]))
        close = [one for error, one in first if error <= limit]
        return simplest([(self.error(one), one) for one in close]) or DECLARED

    def fit(self, make: Callable[[float], Settings], low: float, high: float, *, grid: int = 9) -> float:
        """The parameter between two bounds (above 0) that predicts the probe best, by mean absolute error.

        A grid in equal ratios at the glance, then a bounded search around its best point; where that helps at all, one
        on the whole probe, and a sharper one where it helps much. A round number nearby is preferred if it is as good.
        """
        from scipy.optimize import minimize_scalar

        def rough(value: float) -> float:
            return self._glanced(make(float(value)))

        def loss(value: float) -> float:
            return self.error(make(float(value)))

        def least(of: Callable[[float], float], bounds: tuple[float, float], sharp: float) -> float:
            return float(minimize_scalar(of, bounds=bounds, method="bounded", options={"xatol": sharp * bounds[0]}).x)

        values = np.geomspace(low, high, grid)
        at = int(np.argmin([rough(v) for v in values]))
        bounds = float(values[max(at - 1, 0)]), float(values[min(at + 1, grid - 1)])
        found = least(rough, bounds, 3e-3)
        if loss(found) > HELPS * self.error():
            return found
        found = min(found, least(loss, bounds, 3e-3), key=loss)
        if loss(found) < SHARPLY * self.error():
            found = min(found, least(loss, (0.99 * found, 1.01 * found), 1e-6), key=loss)
        return self.rounded(found, loss)

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
        return _mean(self._apart(np.where(np.isfinite(whole), whole, self.base)[self.probe], self.probe, DECLARED))

    def _glanced(self, settings: Settings) -> float:
        """Mean absolute error at the glance."""
        return _mean(self._errors(settings, self.glance))

    def _errors(self, settings: Settings, tokens: np.ndarray) -> np.ndarray:
        """Absolute error of settings at some tokens of the probe, nats, at most `FAR`; NaN at void ones."""
        predicted = self._probed(self._with(settings), tokens)
        missing = ~np.isfinite(predicted)
        if missing.any():
            predicted = np.where(missing, self._probed(self.known, tokens), predicted)
        return self._apart(predicted, tokens, settings)

    def _apart(self, predicted: np.ndarray, tokens: np.ndarray, settings: Settings) -> np.ndarray:
        """Absolute error of what settings predict at some tokens, nats, at most `FAR`; NaN at void ones."""
        with np.errstate(invalid="ignore"):
            found = np.abs(self.recorded[tokens] - predicted)
        capped = np.where(np.isnan(found), FAR, np.minimum(found, FAR))
        return np.where(np.isin(tokens, self.void(settings)), np.nan, capped)

    def _probed(self, settings: Settings, probe: np.ndarray) -> np.ndarray:
        """A prediction at some tokens; only the head of those rows runs where nothing else is changed."""
        rows = np.unique(self.row[probe])
        wider = any(len(step.needs(rows, self.reference)) > len(rows) for step in settings.arrays)
        if self.mode == "pair" or wider or replace(settings, arrays=()) == DECLARED:
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
