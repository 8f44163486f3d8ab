"""Were the tokens drawn from the distribution that the recorded log-probs are of? Surprisal against entropy."""

from dataclasses import dataclass, replace

import numpy as np

from samepolicy.causes.evidence import Evidence
from samepolicy.causes.settings import Settings
from samepolicy.records.side import Sampling


@dataclass(frozen=True, kw_only=True)
class Surprisal:
    """Mean surprisal of the sampled tokens against what a sampler would give.

    Attributes:
        gap: token mean of -log p minus its expectation under the sampler, nats; below 0 something sharper sampled.
        errors: the same in standard errors, clustered by prompt.
        outside: share of the tokens that the sampler could not have drawn.
    """

    gap: float
    errors: float
    outside: float


def surprisal(evidence: Evidence, sampler: Sampling | None = None) -> Surprisal:
    """Compare surprisal with its expectation under a sampler, by default the distribution p itself.

    p is the reference's distribution under the declared settings and what is known; the expectation of -log p under a
    sampler q is the cross-entropy -Σ q log p, which for q = p is the entropy.
    """
    known = replace(evidence.known, arrays=())
    tokens = np.flatnonzero(evidence.comparable)
    own = evidence.reference.logp_of(evidence.side, known, tokens)
    if sampler is None:
        expected, drawn = evidence.reference.entropy(evidence.side, known, tokens), own
    else:
        settings = Settings(**sampler.changed)
        expected = evidence.reference.cross_entropy(evidence.side, known, settings, tokens)
        drawn = evidence.reference.logp_of(evidence.side, replace(known, **sampler.changed), tokens)
    gap = -own - expected
    fine = np.isfinite(gap)
    error = clustered(gap[fine], evidence.prompt[tokens][fine])
    mean = float(gap[fine].mean()) if fine.any() else 0.0
    outside = float(np.isneginf(drawn).mean()) if len(drawn) else 0.0
    return Surprisal(gap=mean, errors=mean / error if error > 0 else 0.0, outside=outside)


def clustered(values: np.ndarray, owner: np.ndarray) -> float:
    """Standard error of a mean of values that go together by owner."""
    _, place = np.unique(owner, return_inverse=True)
    sums = np.bincount(place, weights=values - values.mean()) if len(values) else np.zeros(0)
    units = len(sums)
    with np.errstate(over="ignore"):
        return float(np.sqrt(np.square(sums).sum() * units / max(units - 1, 1)) / len(values)) if units > 1 else 0.0
