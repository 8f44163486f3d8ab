"""Two distributions over the vocabulary compared token by token, where both sides recorded their most likely tokens.

The table is in the manner of llama.cpp's `--kl-divergence`, but by position and with intervals clustered by sequence.
"""

from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from samepolicy.errors import InputError, MissingColumnError, ShapeError
from samepolicy.records.run import Run
from samepolicy.summary import json_number

QUANTILES = (0.01, 0.05, 0.5, 0.95, 0.99, 0.999)
EDGES = (0, 1, 4, 16, 64, 256)
"""Where the bins of position begin; the last one is open."""

DRAWS = 1000
"""Bootstrap samples of the sequences behind an interval."""


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A token mean with its 95 % interval, bootstrapped over sequences."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        """The mean with its interval."""
        return f"{self.mean:.3g} ({self.low:.3g} to {self.high:.3g})"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How far two distributions over the vocabulary lie apart.

    Attributes:
        tokens: tokens compared.
        kl: KL(rollout ‖ trainer), nats; a lower bound, since tokens that are not listed by both count as one.
        top1: share of tokens whose most likely id is the same.
        kept: rollout probability of the ids that both sides list; where it is near 1, `kl` is the KL itself.
        kl_quantiles: quantiles of the KL over tokens, by level.
        prob_quantiles: quantiles of exp T - exp R of the sampled token, by level.
        by_position: `kl` in bins of the position in the response, by the bin's first position.
    """

    tokens: int
    kl: Estimate
    top1: Estimate
    kept: Estimate
    kl_quantiles: dict[float, float]
    prob_quantiles: dict[float, float]
    by_position: dict[int, Estimate]

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        found: dict[str, Any] = {"schema": 1, "tokens": self.tokens}
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Estimate):
                found[field.name] = _json(value)
            elif isinstance(value, dict):
                found[field.name] = {str(key): _json(entry) for key, entry in value.items()}
        return found

    def __str__(self) -> str:
        """The table."""
        lines = [f"tokens {self.tokens}", f"KL {self.kl} nats", f"top-1 {self.top1}", f"kept mass {self.kept}"]
        lines += [f"KL {level:.1%} {value:.3g}" for level, value in self.kl_quantiles.items()]
        lines += [f"Δp {level:.1%} {value:.3g}" for level, value in self.prob_quantiles.items()]
        lines += [f"KL from position {first}: {value}" for first, value in self.by_position.items()]
        return "\n".join(lines)


def compare_distributions(run: Run) -> Comparison:
    """Compare the two sides' distributions over the vocabulary.

    Args:
        run: a run with `rollout_top_ids`, `rollout_top_logp`, `trainer_top_ids`, `trainer_top_logp`, [tokens, k] each,
            and both sides' log-probs.

    Returns:
        KL, agreement and kept mass; masked tokens, and those where a list or a log-prob is not finite, are left out.

    Raises:
        MissingColumnError: the run lacks one of those columns.
        InputError: no token can be compared.
    """
    names = ("rollout_top_ids", "rollout_top_logp", "trainer_top_ids", "trainer_top_logp")
    if lacking := [name for name in names if name not in run]:
        raise MissingColumnError(
            f"The run has no {', '.join(lacking)}; `samepolicy check … --top K --out RUN` records it."
        )
    ours, p, theirs, q = (run[name].values for name in names)
    change = np.exp(run["trainer_logp"].values.astype(np.float64)) - np.exp(run["rollout_logp"].values)
    known = run.mask.values & (ours[:, 0] >= 0) & (theirs[:, 0] >= 0) & np.isfinite(change)
    known &= ~np.isnan(p).any(axis=1) & ~np.isnan(q).any(axis=1)
    if not known.any():
        raise InputError("No token has both sides' most likely tokens, so no distributions can be compared.")
    kl, kept = coarse_kl(ours[known], p[known], theirs[known], q[known])
    owner = np.repeat(np.arange(len(run)), run.lengths)[known]
    position = (np.arange(len(known)) - np.repeat(run.offsets[:-1], run.lengths))[known]
    bins = np.searchsorted(np.asarray(EDGES), position, side="right") - 1
    return Comparison(
        tokens=int(known.sum()),
        kl=_estimate(kl, owner),
        top1=_estimate((ours[known, 0] == theirs[known, 0]).astype(np.float64), owner),
        kept=_estimate(kept, owner),
        kl_quantiles=_quantiles(kl),
        prob_quantiles=_quantiles(change[known]),
        by_position={EDGES[b]: _estimate(kl[bins == b], owner[bins == b]) for b in np.unique(bins)},
    )


def coarse_kl(
    rollout_ids: Int[np.ndarray, "tokens k"],
    rollout_logp: Float[np.ndarray, "tokens k"],
    trainer_ids: Int[np.ndarray, "tokens j"],
    trainer_logp: Float[np.ndarray, "tokens j"],
) -> tuple[Float[np.ndarray, " tokens"], Float[np.ndarray, " tokens"]]:
    """KL(rollout ‖ trainer) over the ids that both sides list, and everything else as one outcome.

    Σ p log(p/q) over common ids, plus the same for the rest of the mass. Merging outcomes never raises a KL, so this is
    a lower bound, and exact where the common ids hold all of the mass.

    Args:
        rollout_ids: most likely ids of the rollout.
        rollout_logp: their log-probs, nats.
        trainer_ids: most likely ids of the trainer.
        trainer_logp: their log-probs, nats.

    Returns:
        The bound in nats, and the rollout's probability of the common ids.

    Raises:
        ShapeError: ids and log-probs of a side that do not line up.

    >>> ids, p, q = np.array([[0, 1]]), np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    >>> coarse_kl(ids, p, ids, q)[0].round(4)
    array([0.5108])
    """
    if rollout_ids.shape != rollout_logp.shape or trainer_ids.shape != trainer_logp.shape:
        raise ShapeError("Each side's top ids and top log-probs must be of one shape; record them together.")
    p, q = np.exp(rollout_logp.astype(np.float64)), np.exp(trainer_logp.astype(np.float64))
    same = (rollout_ids[:, :, None] == trainer_ids[:, None, :]) & (p[:, :, None] > 0)
    place, listed = same.argmax(axis=2), same.any(axis=2)
    theirs = np.take_along_axis(q, place, axis=1)
    terms = np.where(listed, p * (np.log(np.where(listed, p, 1.0)) - np.log(np.where(listed, theirs, 1.0))), 0.0)
    kept, given = (p * listed).sum(axis=1), (theirs * listed).sum(axis=1)
    rest, other = np.clip(1 - kept, 0, None), np.clip(1 - given, 1e-12, None)
    tail = np.where(rest > 1e-7, rest * (np.log(np.where(rest > 0, rest, 1.0)) - np.log(other)), 0.0)
    return np.clip(terms.sum(axis=1) + tail, 0, None), kept


def _estimate(values: np.ndarray, owner: np.ndarray) -> Estimate:
    """A token mean, and its interval from drawing whole sequences."""
    _, owner = np.unique(owner, return_inverse=True)
    sums, counts = np.bincount(owner, weights=values), np.bincount(owner)
    drawn = np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))
    low, high = np.quantile(sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1), (0.025, 0.975))
    return Estimate(mean=float(values.mean()), low=float(low), high=float(high))


def _quantiles(values: np.ndarray) -> dict[float, float]:
    """Quantiles by level."""
    return dict(zip(QUANTILES, np.quantile(values, QUANTILES).tolist(), strict=True))


def _json(value: Estimate | float) -> Any:
    """An estimate or a number for JSON."""
    if isinstance(value, Estimate):
        return {name: json_number(number) for name, number in asdict(value).items()}
    return json_number(value)
