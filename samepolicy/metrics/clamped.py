"""Quantities as frameworks clamp them, measured only when a framework's names ask, with every clamp counted.

Our own metrics never clamp. These exist so that a number logged under a framework's name equals what that framework
logs.
"""

from jaxtyping import Float

from samepolicy.arrays import Array, array_namespace
from samepolicy.metrics.base import metric
from samepolicy.stats import LogWeights, Moments

Tokens = Float[Array, " tokens"]
Sequences = Float[Array, " sequences"]

SAFETY = (-20.0, 20.0)
"""Bounds that verl and ms-swift hold log-ratios to before they exponentiate."""


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Moments, clamp=(-10.0, 10.0), asked=True)
def k3_clamped(log_ratio: Tokens) -> Tokens:
    """Each k3 term held to [-10, 10], as ms-swift does: a spike no longer shows.

    Args:
        log_ratio: log π_trainer - log π_rollout, float [tokens].

    Returns:
        Nats per token, float [tokens].

    >>> k3_clamped(np.array([0.0]))
    array([0.])
    """
    return array_namespace(log_ratio).expm1(log_ratio) - log_ratio


@metric(
    unit="relative variance",
    ideal=0.0,
    span="token",
    statistic=LogWeights,
    read=("chi2", "count"),
    clamp=SAFETY,
    asked=True,
)
def chi2_token_clamped(log_ratio: Tokens) -> Tokens:
    """χ² over tokens with each log-ratio held to ±20.

    Args:
        log_ratio: log π_trainer - log π_rollout, float [tokens].

    Returns:
        Log-weights, float [tokens].

    >>> chi2_token_clamped(np.array([0.0]))
    array([0.])
    """
    return log_ratio


@metric(
    unit="relative variance",
    ideal=0.0,
    span="sequence",
    statistic=LogWeights,
    read=("chi2", "count"),
    clamp=SAFETY,
    asked=True,
)
def chi2_seq_clamped(log_ratio_mean: Sequences) -> Sequences:
    """χ² over geometric sequence ratios with the mean log-ratio held to ±20, ms-swift's chi2_seq.

    Args:
        log_ratio_mean: mean of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences].

    >>> chi2_seq_clamped(np.array([0.0]))
    array([0.])
    """
    return log_ratio_mean


@metric(
    unit="relative variance",
    ideal=0.0,
    span="sequence",
    statistic=LogWeights,
    read=("chi2", "count"),
    clamp=SAFETY,
    asked=True,
)
def chi2_seq_product_clamped(log_ratio_sum: Sequences) -> Sequences:
    """χ² over products of ratios with the summed log-ratio held to ±20, verl's chi2_seq.

    Args:
        log_ratio_sum: sum of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences].

    >>> chi2_seq_product_clamped(np.array([0.0]))
    array([0.])
    """
    return log_ratio_sum
