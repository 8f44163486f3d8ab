"""What the gap does over the steps of a run: it lags, grows, drifts, jumps, spikes or stays."""

from dataclasses import dataclass
from math import log
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from samepolicy.jumps import clear_jump, stand_out
from samepolicy.records.align import align_all
from samepolicy.records.run import Run
from samepolicy.summary import json_number
from samepolicy.trend import change_point

Shape: TypeAlias = Literal["flat", "lags", "grows", "drifts", "jumps", "spikes", "unclear"]

LIKE: dict[Shape, tuple[str, ...]] = {
    "flat": ("precision", "kernel", "batch_variance"),
    "lags": ("stale_weights",),
    "grows": ("adapter_missing", "partial_sync"),
    "drifts": ("engine_state",),
    "jumps": (),
    "spikes": (),
    "unclear": (),
}
"""Causes that look so. A fault that is there from the first step on is flat, too."""

LEAST = 6
"""Fewer steps than this show no course."""

LEVEL, SIZE = 0.01, 1.5
"""A course is told at this level, and where the gap is this many times larger at its one end than at the other."""

SURE = 0.001
"""A spike is told at this level, since the logarithms of healthy steps have a longer tail than a normal one."""

AGREE = 2.0
"""Steps are flat whose rms is within this factor of their median; one that stands out is above it."""

CARRIED = 9
"""A spike is made up by at least as many tokens, so that its mean square is 3 standard errors above 0; so would the
shorter side of a jump be at the high level."""

NOTHING = 1e-6
"""Nats rms below which there is no gap: what float32 log-probs resolve."""


@dataclass(frozen=True)
class _Level:
    """The steps in order, the rms of d at each in nats, and how many tokens make it up, (Σ d²)² / Σ d⁴."""

    steps: Int[np.ndarray, " steps"]
    rms: Float[np.ndarray, " steps"]
    carried: Float[np.ndarray, " steps"]

    @property
    def log(self) -> Float[np.ndarray, " steps"]:
        """The logarithm of the rms."""
        found: np.ndarray = np.log(np.maximum(self.rms, NOTHING))
        return found

    @property
    def errors(self) -> Float[np.ndarray, " steps"]:
        """The standard error of the logarithm that the tokens of each step alone give it, 1 / (2 √carried)."""
        found: np.ndarray = np.divide(0.5, np.sqrt(self.carried), out=np.zeros(len(self.rms)), where=self.carried > 0)
        return found


@dataclass(frozen=True, kw_only=True)
class Course:
    """How the gap moves over the steps.

    Attributes:
        shape: "flat"; "lags", it grows with the updates since the rollout's weights were sent, and falls back when they
            are; "grows", however often they are sent; "drifts", it grows without any update; "jumps" at one step;
            "spikes", one or few steps stand out; "unclear", none of these.
        sentence: what was seen, with its numbers.
        low: rms of d where it is small: at the smallest lag, in the first steps, before the jump, or at steps that
            do not stand out, nats.
        high: rms of d where it is large, nats.
        p: how often chance alone would look so.
        step: the step that it jumps at, or that stands out most; None otherwise.
    """

    shape: Shape
    sentence: str
    low: float
    high: float
    p: float
    step: int | None = None

    @property
    def like(self) -> tuple[str, ...]:
        """Causes that look so."""
        return LIKE[self.shape]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        numbers = {"low": json_number(self.low), "high": json_number(self.high), "p": json_number(self.p)}
        return {"shape": self.shape, "sentence": self.sentence, **numbers, "step": self.step, "like": list(self.like)}

    def __str__(self) -> str:
        """What was seen, and what looks so."""
        return f"{self.sentence}, as {' or '.join(self.like)} would" if self.like else self.sentence


def course(run: Run) -> Course | None:
    """Tell what a run's gap does over its steps, from log-probs, steps and policy versions alone.

    Args:
        run: needs `step` and both sides' log-probs. `policy_version` tells which weights sampled, `trainer_version`
            which ones scored; without the latter the trainer is taken to be updated once a step.

    Returns:
        The course; None with fewer than six steps that were measured on both sides.

    >>> logp = [[-1.0, -2.0]] * 8
    >>> grown = [[-1.0 - 0.01 * i, -2.0 + 0.01 * i] for i in range(8)]
    >>> print(course(Run.from_lists(rollout_logp=logp, trainer_logp=grown, step=range(8))))
    the gap grows over the steps, from 0.0071 nats rms to 0.065 (p = 0), as adapter_missing or partial_sync would
    """
    if any(name not in run for name in ("step", "rollout_logp", "trainer_logp")):
        return None
    size, fourth = _sizes(run)
    fine = np.isfinite(size)
    step, size = run["step"][fine], size[fine]
    level = _level(step, size, fourth[fine])
    if len(level.steps) < LEAST:
        return None
    lag, updates = _lags(run, fine)
    return (
        _lags_behind(step, lag, size)
        or _jumps(level)
        or _spikes(level)
        or _grows(level.steps, level.rms, updates=updates)
        or _flat(level, _rms(size))
    )


def _sizes(run: Run) -> tuple[Float[np.ndarray, " responses"], Float[np.ndarray, " responses"]]:
    """The rms of d of each response in nats, NaN where nothing can be compared; and Σ d⁴ over its tokens squared."""
    mine = np.arange(int(run.offsets[-1]))
    trainer = np.asarray(run["trainer_logp"].values, dtype=np.float64)
    if "trainer_response_ids" in run:
        mine, theirs, _ = align_all(run["response_ids"], run["trainer_response_ids"])
        trainer = trainer[theirs]
    with np.errstate(invalid="ignore"):
        square = (trainer - np.asarray(run["rollout_logp"].values, dtype=np.float64)[mine]) ** 2
    fine = np.isfinite(square) & run.mask.values[mine]
    row = np.repeat(np.arange(len(run)), run.lengths)[mine][fine]
    count = np.bincount(row, minlength=len(run))
    total = np.bincount(row, square[fine], minlength=len(run))
    fourth = np.bincount(row, square[fine] ** 2, minlength=len(run))
    size = np.sqrt(np.divide(total, count, out=np.full(len(run), np.nan), where=count > 0))
    return size, fourth / np.maximum(count, 1) ** 2


def _level(step: np.ndarray, size: np.ndarray, fourth: np.ndarray) -> _Level:
    """What the responses show of each step."""
    steps, place = np.unique(step, return_inverse=True)
    square, fourth = np.bincount(place, size**2), np.bincount(place, fourth)
    carried = np.divide(square**2, fourth, out=np.zeros(len(steps)), where=fourth > 0)
    return _Level(steps, np.sqrt(square / np.maximum(np.bincount(place), 1)), carried)


def _lags(run: Run, rows: np.ndarray) -> tuple[Int[np.ndarray, " n"] | None, bool | None]:
    """How many updates each response's weights are behind, and whether there were any; None where nothing tells."""
    if "policy_version" not in run:
        return None, None
    first = run.offsets[:-1][rows]
    version, step = np.asarray(run["policy_version"].values)[first], run["step"][rows]
    if "trainer_version" in run:
        trainer = run["trainer_version"][rows]
        return trainer - version, bool(len(np.unique(trainer)) > 1)
    begun = {int(v): int(step[version == v].min()) for v in np.unique(version)}
    return step - np.array([begun[int(v)] for v in version]), None if len(begun) == 1 else True


def _lags_behind(step: np.ndarray, lag: np.ndarray | None, size: np.ndarray) -> Course | None:
    """A gap that goes with the lag at least as well as with the step."""
    if lag is None or len(np.unique(lag)) < 2:
        return None
    by_lag, p = _together(lag, size)
    by_step, _ = _together(step, size)
    low, high = _rms(size[lag == lag.min()]), _rms(size[lag == lag.max()])
    if p > LEVEL or by_lag <= 0 or by_lag < by_step or high < SIZE * low:
        return None
    sentence = (
        f"the gap grows with the updates that the rollout's weights are behind, from {low:.2g} nats rms at {lag.min()} "
        f"to {high:.2g} at {lag.max()} (p = {p:.1g})"
    )
    return Course(shape="lags", sentence=sentence, low=low, high=high, p=p)


def _grows(steps: np.ndarray, by_step: np.ndarray, *, updates: bool | None) -> Course | None:
    """A gap that grows with the step."""
    along, p = _together(steps, by_step)
    third = max(len(steps) // 3, 1)
    low, high = _rms(by_step[:third]), _rms(by_step[-third:])
    if p > LEVEL or along <= 0 or high < SIZE * low:
        return None
    how = "although no update came between" if updates is False else "over the steps"
    sentence = f"the gap grows {how}, from {low:.2g} nats rms to {high:.2g} (p = {p:.1g})"
    return Course(shape="drifts" if updates is False else "grows", sentence=sentence, low=low, high=high, p=p)


def _jumps(level: _Level) -> Course | None:
    """A gap with another level from one step on, which two levels describe better than a line."""
    steps, by_step = level.steps, level.rms
    place, p = change_point(by_step)
    if p > LEVEL:
        place, p = clear_jump(level.log, level.errors)
    if p > LEVEL:
        return None
    before, after = _rms(by_step[:place]), _rms(by_step[place:])
    line = np.polynomial.Polynomial.fit(steps, by_step, 1)(steps)
    levels = np.where(np.arange(len(steps)) < place, by_step[:place].mean(), by_step[place:].mean())
    if max(before, after) < SIZE * min(before, after) or _rms(by_step - levels) > _rms(by_step - line):
        return None
    many = level.carried[:place] if before > after else level.carried[place:]
    if many.mean() * min(place, len(steps) - place) < CARRIED:
        return None
    sentence = f"the gap goes from {before:.2g} nats rms to {after:.2g} at step {steps[place]} (p = {p:.1g})"
    low, high = sorted((before, after))
    return Course(shape="jumps", sentence=sentence, low=low, high=high, p=p, step=int(steps[place]))


def _spikes(level: _Level) -> Course | None:
    """One or few steps far above all others, by more than the scatter of those and by more than a few tokens."""
    few, chance = stand_out(level.log, level.errors, by=log(AGREE))
    sure = (chance <= SURE) & (level.carried[few] >= CARRIED)
    if not sure.any():
        return None
    few, p = few[sure], float(chance[sure].max())
    high, low = _rms(level.rms[few]), float(np.median(np.delete(level.rms, few)))
    found = [str(s) for s in level.steps[few]]
    who = f"steps {', '.join(found[:-1])} and {found[-1]} stand" if len(found) > 1 else f"step {found[0]} alone stands"
    whose = "the batches of those steps" if len(found) > 1 else "that step's batch"
    sentence = f"{who} out ({high:.2g} nats rms against {low:.2g} elsewhere, p = {p:.1g}): look at {whose}"
    most = int(level.steps[few[np.argmax(level.rms[few])]])
    return Course(shape="spikes", sentence=sentence, low=low, high=high, p=p, step=most)


def _flat(level: _Level, size: float) -> Course:
    """A gap that stays where all steps agree; else one without a course."""
    away = np.abs(level.log - np.median(level.log))
    if away.max() <= log(AGREE):
        sentence = f"the gap stays at {size:.2g} nats rms over the steps"
        return Course(shape="flat", sentence=sentence, low=size, high=size, p=1.0)
    low, high = float(level.rms.min()), float(level.rms.max())
    sentence = f"the gap has no clear course, its steps are between {low:.2g} and {high:.2g} nats rms"
    return Course(shape="unclear", sentence=sentence, low=low, high=high, p=1.0)


def _together(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Spearman's rank correlation and its p; (0, 1) where one of the two never changes."""
    from scipy.stats import spearmanr

    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return 0.0, 1.0
    found = spearmanr(x, y)
    return float(found.statistic), float(found.pvalue)


def _rms(values: np.ndarray) -> float:
    """The root of the mean square."""
    return float(np.sqrt(np.mean(np.square(values))))
