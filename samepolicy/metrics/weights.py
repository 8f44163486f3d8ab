"""What importance weights between the policies are worth: their spread, effective sample size and tail. All raw."""

import math

from jaxtyping import Bool, Float

from samepolicy.arrays import Array, array_namespace
from samepolicy.metrics.base import metric
from samepolicy.pareto import Tail
from samepolicy.stats import LogWeights, Moments, Share

Tokens = Float[Array, " tokens"]
Flags = Bool[Array, " tokens"]
Sequences = Float[Array, " sequences"]

FAR = 2.0
"""A ratio above this, or below its inverse, is called far; the usual truncation threshold."""


@metric(unit="ratio", ideal=1.0, span="token", statistic=Moments)
def ratio(ratio: Tokens) -> Tokens:
    """Importance ratio π_trainer/π_rollout of each sampled token, before any truncation.

    ρ = exp(d). Its mean is 1 where the tokens were sampled from the recorded rollout policy.

    Args:
        ratio: ρ, float [tokens].

    Returns:
        Ratios, float [tokens].

    >>> ratio(np.array([1.0]))
    array([1.])
    """
    return ratio


@metric(unit="share", ideal=0.0, span="token", statistic=Share)
def ratio_above(ratio: Tokens) -> Flags:
    """Share of tokens whose ratio lies above 2, the usual upper bound.

    Args:
        ratio: ρ, float [tokens].

    Returns:
        Flags, bool [tokens].

    >>> ratio_above(np.array([1.0, 2.5]))
    array([False,  True])
    """
    return ratio > FAR


@metric(unit="share", ideal=0.0, span="token", statistic=Share)
def ratio_below(ratio: Tokens) -> Flags:
    """Share of tokens whose ratio lies below 1/2, the usual lower bound.

    Args:
        ratio: ρ, float [tokens].

    Returns:
        Flags, bool [tokens].

    >>> ratio_below(np.array([1.0, 0.4]))
    array([False,  True])
    """
    return ratio < 1 / FAR


@metric(unit="share", ideal=0.0, span="token", statistic=Share)
def ratio_far(abs_log_ratio: Tokens) -> Flags:
    """Share of tokens whose probabilities differ by more than a factor of 2, either way.

    max(ρ, 1/ρ) > 2, that is abs d > log 2.

    Args:
        abs_log_ratio: size of log π_trainer - log π_rollout, float [tokens].

    Returns:
        Flags, bool [tokens].

    >>> ratio_far(np.log([1.0, 2.5]))
    array([False,  True])
    """
    return abs_log_ratio > math.log(FAR)


@metric(unit="share", ideal=1.0, span="token", statistic=LogWeights, read=("ess", "count"))
def ess_token(log_ratio: Tokens, ratio: Tokens) -> tuple[Tokens, Tokens]:
    """Effective sample size of the raw token weights, as a share of the tokens.

    (Σρ)² / (n Σρ²), in (0, 1]: how many equally weighted tokens the weighted ones are worth.

    Args:
        log_ratio: log π_trainer - log π_rollout of each sampled token, float [tokens].
        ratio: ρ, float [tokens].

    Returns:
        Log-weights and weights, float [tokens], reduced to the share.

    Reference: Kish, "Survey Sampling" (1965).

    >>> ess_token(np.array([0.0]), np.array([1.0]))
    (array([0.]), array([1.]))
    """
    return log_ratio, ratio


@metric(unit="share", ideal=1.0, span="sequence", statistic=LogWeights, read=("ess", "count"))
def ess_seq(log_ratio_mean: Sequences) -> Sequences:
    """Effective sample size of the raw sequence weights, each the geometric mean of its ratios.

    (Σw)² / (n Σw²) with w = exp(mean_t d).

    Args:
        log_ratio_mean: mean of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences], reduced to the share.

    >>> ess_seq(np.array([0.0]))
    array([0.])
    """
    return log_ratio_mean


@metric(unit="share", ideal=1.0, span="sequence", statistic=LogWeights, read=("ess", "count"))
def ess_seq_product(log_ratio_sum: Sequences) -> Sequences:
    """Effective sample size of the raw sequence weights, each the product of its ratios.

    (Σw)² / (n Σw²) with w = exp(Σ_t d).

    Args:
        log_ratio_sum: sum of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences], reduced to the share.

    >>> ess_seq_product(np.array([0.0]))
    array([0.])
    """
    return log_ratio_sum


@metric(unit="shape", ideal=0.0, span="token", statistic=Tail)
def pareto_k(log_ratio: Tokens) -> Tokens:
    """Shape of the tail of the token weights: below min(1 - 1/log10 n, 0.7) averages over them can be trusted.

    A generalised Pareto distribution is fitted to the min(n/5, 3√n, 1024) largest ratios.

    Args:
        log_ratio: log π_trainer - log π_rollout of each sampled token, float [tokens].

    Returns:
        Log-weights, float [tokens], reduced to the shape k; NaN where no tail can be fitted.

    Reference: Vehtari et al., "Pareto smoothed importance sampling" (JMLR 2024).

    >>> pareto_k(np.array([0.0]))
    array([0.])
    """
    return log_ratio


@metric(unit="shape", ideal=0.0, span="sequence", statistic=Tail)
def pareto_k_seq(log_ratio_sum: Sequences) -> Sequences:
    """Shape of the tail of the sequence weights, each the product of its ratios.

    As `pareto_k`, with w = exp(Σ_t d).

    Args:
        log_ratio_sum: sum of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences], reduced to the shape k; NaN where no tail can be fitted.

    Reference: Vehtari et al., "Pareto smoothed importance sampling" (JMLR 2024).

    >>> pareto_k_seq(np.array([0.0]))
    array([0.])
    """
    return log_ratio_sum


@metric(unit="advantage", ideal=0.0, span="token", statistic=Moments)
def sign_skew(ratio: Tokens, advantage: Tokens) -> Tokens:
    """How the mismatch leans against the advantage; it moves before the KL does.

    -(ρ - 1)·A: positive where tokens of positive advantage lose probability and tokens of negative advantage gain it.

    Args:
        ratio: ρ, float [tokens].
        advantage: advantage of each token, float [tokens].

    Returns:
        Units of the advantage, float [tokens].

    >>> sign_skew(np.array([0.5]), np.array([2.0]))
    array([1.])
    """
    return (1 - ratio) * advantage


@metric(unit="ratio", ideal=1.0, span="token", statistic=Moments)
def update_ratio(update_log_ratio: Tokens) -> Tokens:
    """PPO's ratio without the engine gap: the policy after optimizer steps over the trainer's own log-probs.

    exp(current - trainer); exactly 1 within the trainer's floor before the first step.

    Args:
        update_log_ratio: log π_current - log π_trainer, float [tokens].

    Returns:
        Ratios, float [tokens].

    >>> update_ratio(np.array([0.0]))
    array([1.])
    """
    return array_namespace(update_log_ratio).exp(update_log_ratio)


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Moments)
def update_gap(update_log_ratio: Tokens) -> Tokens:
    """The k3 between the trainer's log-probs and the current policy: the part of the gap that training made.

    Args:
        update_log_ratio: log π_current - log π_trainer, float [tokens].

    Returns:
        Nats per token, float [tokens].

    >>> update_gap(np.array([0.0]))
    array([0.])
    """
    return array_namespace(update_log_ratio).expm1(update_log_ratio) - update_log_ratio


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Moments)
def total_gap(total_log_ratio: Tokens) -> Tokens:
    """The k3 between the rollout and the current policy: engine gap (`k3`) and update gap together.

    Args:
        total_log_ratio: log π_current - log π_rollout, float [tokens].

    Returns:
        Nats per token, float [tokens].

    >>> total_gap(np.array([0.0]))
    array([0.])
    """
    return array_namespace(total_log_ratio).expm1(total_log_ratio) - total_log_ratio
