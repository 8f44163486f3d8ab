"""What recorded log-probs are of: raw or processed, at which temperature, over which kept set; told by their values.

The trainer's own distribution at each token says what every reading predicts for the sampled id. The simplest reading
that fits is the answer, whatever the flags say. A repetition penalty cannot be read off log-probs, since it acts on the
sign of a logit; no reading fits then.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.engines.base import Engine
from samepolicy.records.declared import effective
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling
from samepolicy.semantics.predict import Known, cut, predicted, tempered
from samepolicy.summary import json_number

Status: TypeAlias = Literal["agrees", "disagrees", "unclear"]

ELEMENTS = 12_000_000
"""Log-probs of the trainer held at once; it decides how many tokens are read."""

SEQUENCES = 64
"""Sequences whose beginnings are read at most."""

MOST = 640
"""Tokens that are read at most, spread over the run."""

HEAD, CHUNKS = 256, 64
"""Likeliest ids that are kept one by one, and chunks that the rest of a vocabulary is summed up in."""

CAP = 0.5
"""No token counts for more than this distance from a reading, nats."""

NEAR = 0.25
"""Settings are confirmed where what was recorded is this near to them, nats rms; bf16 is at 0.06 at most."""

NEEDED = 16
"""Tokens that a reading takes at least."""

ONE, NOTHING = (1.0,), (Sampling(),)
TEMPERATURES: tuple[float, ...] = tuple(np.geomspace(0.25, 4.0, 17).round(6).tolist())
KEPT = (
    *(Sampling(top_k=k) for k in (1, 2, 3, 5, 8, 10, 16, 20, 32, 40, 50, 64, 100, 128, 200, 256)),
    *(Sampling(top_p=p) for p in (0.3, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.92, 0.95, 0.97, 0.98, 0.99)),
    *(Sampling(min_p=p) for p in (0.01, 0.02, 0.05, 0.1, 0.2, 0.3)),
)
"""The grid of readings."""


@dataclass(frozen=True, kw_only=True)
class Semantics:
    """What the recorded log-probs are of.

    Attributes:
        tokens: tokens that were read.
        found: the simplest settings that give what was recorded; neutral for raw log-probs.
        rms: distance of the recorded values from those settings, nats; each token capped.
        declared: the settings that the rollout says its log-probs are of.
        rms_declared: their distance.
        status: whether the two agree; "unclear" where the values do not tell.
    """

    tokens: int
    found: Sampling
    rms: float
    declared: Sampling
    rms_declared: float
    status: Status

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        sizes = {"rms": json_number(self.rms), "rms_declared": json_number(self.rms_declared)}
        settings = {"found": self.found.changed, "declared": self.declared.changed}
        return {**asdict(self), **sizes, **settings, "sentence": str(self)}

    def __str__(self) -> str:
        """What was found, and whether it is what was declared."""
        if self.status == "unclear":
            what = f"cannot be told from {self.tokens} tokens ({named(self.declared)} declared)"
            return f"what the recorded log-probs are of {what}"
        if self.status == "agrees":
            return (
                f"the recorded log-probs are those of {named(self.declared)}, as declared (rms {self.rms_declared:.2g})"
            )
        return (
            f"the recorded log-probs fit {named(self.found)} (rms {self.rms:.2g}), "
            f"not what is declared, {named(self.declared)} (rms {self.rms_declared:.2g})"
        )


def named(sampling: Sampling) -> str:
    """Settings in words.

    >>> named(Sampling()), named(Sampling(temperature=0.7, top_k=20))
    ("the model's own distribution", 'temperature 0.7, top-k 20')
    """
    told = [f"{name.replace('_', '-')} {value:.3g}" for name, value in sampling.changed.items()]
    return ", ".join(told).replace("repetition-penalty", "repetition penalty") or "the model's own distribution"


def infer(run: Run, *, trainer: Engine | None = None) -> Semantics | None:
    """Read off what the rollout's log-probs are of.

    Args:
        run: a run with `response_ids` and `rollout_logp`; without an engine also with `trainer_top_ids` and
            `trainer_top_logp` under neutral settings.
        trainer: scores the model's own distribution on the first of the run's tokens.

    Returns:
        The reading; None where there is no distribution, or fewer than `NEEDED` tokens.

    Raises:
        InputError: ids that the engine does not have.
    """
    if "rollout_logp" not in run or "response_ids" not in run or not len(run):
        return None
    found = _recorded(run) if trainer is None else _scored(run, trainer)
    if found is None or len(found.own) < NEEDED:
        return None
    return read(found, effective(run.rollout.sampling or Sampling()))


def noted(run: Run, *, trainer: Engine | None = None) -> Run:
    """The run with what `infer` finds in `info["semantics"]`, where it finds something."""
    found = infer(run, trainer=trainer)
    return run if found is None else replace(run, info={**run.info, "semantics": found.as_dict()})


def read(known: Known, declared: Sampling) -> Semantics:
    """The simplest settings that give what was recorded, and whether they are the declared ones.

    A richer reading replaces a simpler one only if it halves the mean square, and by 4 standard errors clustered by
    sequence; so does another reading than the declared one.
    """
    best, loss = Sampling(), _loss(known, Sampling())
    for temperatures, kept in ((TEMPERATURES, NOTHING), (ONE, KEPT), (TEMPERATURES, KEPT)):
        candidate = _refined(known, _closest(known, temperatures, kept))
        other = _loss(known, candidate)
        if _better(other, loss, known.owner):
            best, loss = candidate, other
    claimed = _loss(known, declared)
    if declared.repetition_penalty != 1:
        status: Status = "unclear"
    else:
        near = claimed.mean() <= NEAR**2
        status = "disagrees" if _better(loss, claimed, known.owner) else "agrees" if near else "unclear"
        if (
            status == "agrees"
            and declared != Sampling()
            and not _better(claimed, _loss(known, Sampling()), known.owner)
        ):
            status = "unclear"
    rms, rms_declared = (float(np.sqrt(values.mean())) for values in (loss, claimed))
    return Semantics(
        tokens=len(known.own), found=best, rms=rms, declared=declared, rms_declared=rms_declared, status=status
    )


def _closest(known: Known, temperatures: Sequence[float], kept: Sequence[Sampling]) -> Sampling:
    """The settings of a grid that come closest to what was recorded."""
    best, least = Sampling(), np.inf
    for temperature in temperatures:
        base = tempered(known, temperature)
        for one in kept:
            loss = _capped(known.recorded - cut(*base, one)).mean()
            if loss < least:
                best, least = replace(one, temperature=float(temperature)), loss
    return best


def _refined(known: Known, sampling: Sampling) -> Sampling:
    """The same kind of settings with the best numbers nearby; a temperature of 1 stays 1."""
    from scipy.optimize import minimize_scalar

    near = ONE if sampling.temperature == 1 else tuple((sampling.temperature * np.linspace(0.84, 1.2, 13)).tolist())
    best = _closest(known, near, _nearby(replace(sampling, temperature=1.0)))
    if best.temperature == 1:
        return best

    def loss(temperature: float) -> float:
        return float(_loss(known, replace(best, temperature=float(temperature))).mean())

    bounds = (best.temperature * 0.95, best.temperature * 1.05)
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-4})
    return replace(best, temperature=float(f"{found.x:.3g}"))


def _nearby(kept: Sampling) -> list[Sampling]:
    """Kept sets of the same kind with numbers close by."""
    if kept.top_k:
        return [Sampling(top_k=k) for k in range(max(1, int(kept.top_k * 0.75)), int(kept.top_k * 1.25) + 2)]
    if kept.top_p < 1:
        return [Sampling(top_p=p) for p in (kept.top_p + np.linspace(-0.05, 0.05, 11)).round(3).tolist() if p < 1]
    if kept.min_p:
        return [Sampling(min_p=float(f"{m:.2g}")) for m in kept.min_p * np.geomspace(0.7, 1.4, 9)]
    return [kept]


def _loss(known: Known, sampling: Sampling) -> np.ndarray:
    """Squared distance of each token from what settings predict, capped, nats²."""
    return _capped(known.recorded - predicted(known, sampling))


def _capped(distance: np.ndarray) -> np.ndarray:
    """The square, but no more than that of `CAP`."""
    found: np.ndarray = np.square(np.minimum(np.abs(distance), CAP))
    return found


def _better(one: np.ndarray, other: np.ndarray, owner: np.ndarray) -> bool:
    """Whether the first loss is at most half of the second, and clearly so."""
    gain = other - one
    _, place = np.unique(owner, return_inverse=True)
    sums = np.bincount(place, weights=gain - gain.mean())
    error = np.sqrt(np.square(sums).sum()) / len(gain) if len(sums) > 1 else gain.std() / np.sqrt(len(gain))
    return bool(one.mean() <= 0.5 * other.mean() and gain.mean() > max(4 * error, 1e-8))


def _scored(run: Run, trainer: Engine) -> Known | None:
    """The first tokens of the run under the trainer's own distribution."""
    if not trainer.capabilities.top or "prompt_ids" not in run:
        return None
    size = int(trainer.describe(Sampling()).extra.get("vocab_size", 0))
    if not size:
        return None
    rows = np.linspace(0, len(run) - 1, min(len(run), SEQUENCES), dtype=np.int64)
    first = max(ELEMENTS // size // len(rows), 1)
    chosen = run.select(rows)
    beginning = {
        name: Ragged.from_lists([row[:first] for row in chosen[name]]) for name in ("response_ids", "rollout_logp")
    }
    mask = Ragged.from_lists([row[:first] for row in chosen.mask])
    some = Run({"prompt_ids": chosen["prompt_ids"], **beginning, "mask": mask})
    if not len(some["response_ids"].values):
        return None
    scores = trainer.score(some["prompt_ids"], some["response_ids"], top=size)
    assert scores.top_logp is not None
    return _known(some, scores.logp.values, scores.top_logp.values, whole=True)


def _recorded(run: Run) -> Known | None:
    """Tokens whose trainer's most likely ids are recorded; those hold nearly all of the mass."""
    neutral = run.trainer.sampling is not None and effective(run.trainer.sampling) == Sampling()
    needed = ("trainer_logp", "trainer_top_ids", "trainer_top_logp")
    if not neutral or not all(name in run for name in needed) or run["trainer_top_logp"].values.ndim != 2:
        return None
    return _known(run, run["trainer_logp"].values, run["trainer_top_logp"].values, whole=False)


def _known(run: Run, own: np.ndarray, top: np.ndarray, *, whole: bool) -> Known:
    """Tokens that can be read."""
    recorded = run["rollout_logp"].values.astype(np.float64)
    owner = np.repeat(np.arange(len(run)), run.lengths)
    with np.errstate(invalid="ignore"):
        rest = 1 - np.exp(top.astype(np.float64)).sum(axis=1)
        fine = run.mask.values & np.isfinite(recorded) & np.isfinite(own) & np.isfinite(top).all(axis=1)
    read = np.flatnonzero(fine & (whole | (rest < 1e-3)))
    read = read[np.linspace(0, len(read) - 1, min(MOST, len(read)), dtype=np.int64)]
    tail, counts = _tail(top[read], rest[read], whole=whole)
    head = top[read, :HEAD].astype(np.float64)
    return Known(
        recorded=recorded[read],
        own=own[read].astype(np.float64),
        head=head,
        tail=tail,
        counts=counts,
        owner=owner[read],
    )


def _tail(top: np.ndarray, rest: np.ndarray, *, whole: bool) -> tuple[np.ndarray, np.ndarray]:
    """The ids beyond the head in chunks; where not all are listed, as many as likely as the last listed one."""
    listed = top[:, HEAD:]
    if not whole:
        last = top[:, -1:].astype(np.float64)
        counts = np.maximum(rest[:, None], 0) * np.exp(-last)
        return last, counts
    parts = np.array_split(listed, min(CHUNKS, max(listed.shape[1], 1)), axis=1)
    parts = [part for part in parts if part.shape[1]]
    if not parts:
        return np.zeros((len(top), 0)), np.zeros((len(top), 0))
    mean = np.stack([part.mean(axis=1, dtype=np.float64) for part in parts], axis=1)
    counts = np.tile([part.shape[1] for part in parts], (len(top), 1)).astype(np.float64)
    return mean, counts
