"""Columns derived from a run's own: each is a function whose parameter names are the columns it needs.

Metrics share them: within a block of tokens each is computed once, whichever metrics use it.
"""

import inspect
from functools import cache

import numpy as np
from jaxtyping import Bool, Float

from samepolicy import ratio as policies
from samepolicy.arrays import Array, array_namespace, is_torch

Tokens = Float[Array, " tokens"]

SUBNORMAL = 1e-290
"""Below this a probability has lost digits, or is about to."""


def log_ratio(trainer_logp: Tokens, rollout_logp: Tokens) -> Tokens:
    """d, log π_trainer - log π_rollout of each sampled token, in nats."""
    return policies.log_ratio(trainer=trainer_logp, rollout=rollout_logp)


def update_log_ratio(current_logp: Tokens, trainer_logp: Tokens) -> Tokens:
    """Log π_current - log π_trainer: what optimizer steps since the trainer's scoring have changed, in nats."""
    return policies.log_ratio(trainer=current_logp, rollout=trainer_logp)


def total_log_ratio(current_logp: Tokens, rollout_logp: Tokens) -> Tokens:
    """Log π_current - log π_rollout: the engine gap and the update gap together, in nats."""
    return policies.log_ratio(trainer=current_logp, rollout=rollout_logp)


def abs_log_ratio(log_ratio: Tokens) -> Tokens:
    """The size of d, in nats."""
    return array_namespace(log_ratio).abs(log_ratio)


def ratio_minus_1(log_ratio: Tokens) -> Tokens:
    """ρ - 1 = expm1(d), which keeps its digits where the policies nearly agree."""
    return array_namespace(log_ratio).expm1(log_ratio)


def ratio(log_ratio: Tokens, ratio_minus_1: Tokens) -> Tokens:
    """ρ = exp(d), the importance ratio π_trainer/π_rollout."""
    return _cheaply(ratio_minus_1 + 1, log_ratio, inexact=log_ratio < -1)


def mult_ratio(ratio: Tokens) -> Tokens:
    """exp(abs d) = max(ρ, 1/ρ): by which factor the two probabilities differ."""
    return array_namespace(ratio).maximum(ratio, 1 / ratio)


def trainer_prob(trainer_logp: Tokens, rollout_prob: Tokens, ratio: Tokens) -> Tokens:
    """Probability that the trainer gives the sampled token."""
    return _cheaply(rollout_prob * ratio, trainer_logp, inexact=rollout_prob < SUBNORMAL)


def rollout_prob(rollout_logp: Tokens) -> Tokens:
    """Probability that the rollout engine gave the token it sampled."""
    return array_namespace(rollout_logp).exp(rollout_logp)


def prob_diff(trainer_prob: Tokens, rollout_prob: Tokens) -> Tokens:
    """Absolute difference of the two probabilities of the sampled token."""
    return array_namespace(trainer_prob).abs(trainer_prob - rollout_prob)


def _cheaply(found: Tokens, logarithm: Tokens, *, inexact: Bool[Array, " tokens"]) -> Tokens:
    """exp(logarithm), already found but for the inexact places: an exponential costs as much as ten other steps."""
    if is_torch(found):
        return array_namespace(found).where(inexact, logarithm.exp(), found)
    return np.exp(logarithm, out=found, where=inexact) if inexact.any() else found


@cache
def derivations() -> dict[str, tuple[str, ...]]:
    """Name of every derived column, and the columns that it is derived from."""
    found = {n: f for n, f in globals().items() if inspect.isfunction(f) and f.__module__ == __name__ and n[0] != "_"}
    return {n: tuple(inspect.signature(f).parameters) for n, f in found.items() if n != "derivations"}


@cache
def base_columns(name: str) -> frozenset[str]:
    """The run's own columns that a column, given or derived, rests on.

    >>> sorted(base_columns("prob_diff"))
    ['rollout_logp', 'trainer_logp']
    """
    needs = derivations().get(name)
    return frozenset({name}) if needs is None else frozenset().union(*(base_columns(n) for n in needs))
