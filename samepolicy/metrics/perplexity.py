"""Perplexities of the responses under both policies: per sequence first, then over sequences that have a token."""

from jaxtyping import Float

from samepolicy.arrays import Array, array_namespace
from samepolicy.metrics.base import metric
from samepolicy.stats import Moments

Sequences = Float[Array, " sequences"]


@metric(unit="perplexity", ideal=float("nan"), span="sequence", statistic=Moments)
def trainer_ppl(trainer_logp_mean: Sequences) -> Sequences:
    """Perplexity of each response under the trainer.

    exp(-mean_t T). It has no ideal of its own: compare it with `rollout_ppl`.

    Args:
        trainer_logp_mean: mean trainer log-prob of each sequence, float [sequences].

    Returns:
        Perplexities, 1 or more, float [sequences].

    >>> trainer_ppl(np.array([0.0]))
    array([1.])
    """
    return array_namespace(trainer_logp_mean).exp(-trainer_logp_mean)


@metric(unit="nats/token", ideal=float("nan"), span="sequence", statistic=Moments)
def trainer_log_ppl(trainer_logp_mean: Sequences) -> Sequences:
    """Log-perplexity of each response under the trainer.

    -mean_t T.

    Args:
        trainer_logp_mean: mean trainer log-prob of each sequence, float [sequences].

    Returns:
        Nats per token, float [sequences].

    >>> trainer_log_ppl(np.array([-1.0]))
    array([1.])
    """
    return -trainer_logp_mean


@metric(unit="perplexity", ideal=float("nan"), span="sequence", statistic=Moments)
def rollout_ppl(rollout_logp_mean: Sequences) -> Sequences:
    """Perplexity of each response under the engine that sampled it.

    exp(-mean_t R).

    Args:
        rollout_logp_mean: mean rollout log-prob of each sequence, float [sequences].

    Returns:
        Perplexities, 1 or more, float [sequences].

    >>> rollout_ppl(np.array([0.0]))
    array([1.])
    """
    return array_namespace(rollout_logp_mean).exp(-rollout_logp_mean)


@metric(unit="nats/token", ideal=float("nan"), span="sequence", statistic=Moments)
def rollout_log_ppl(rollout_logp_mean: Sequences) -> Sequences:
    """Log-perplexity of each response under the engine that sampled it.

    -mean_t R.

    Args:
        rollout_logp_mean: mean rollout log-prob of each sequence, float [sequences].

    Returns:
        Nats per token, float [sequences].

    >>> rollout_log_ppl(np.array([-1.0]))
    array([1.])
    """
    return -rollout_logp_mean


@metric(unit="nats/token", ideal=0.0, span="sequence", statistic=Moments)
def log_ppl_diff(log_ratio_mean: Sequences) -> Sequences:
    """Difference of the log-perplexities of each response.

    log_ppl(trainer) - log_ppl(rollout) = -mean_t d; positive where the trainer finds the text less likely.

    Args:
        log_ratio_mean: mean of d over the tokens of each sequence, float [sequences].

    Returns:
        Nats per token, float [sequences].

    >>> log_ppl_diff(np.array([-0.5]))
    array([0.5])
    """
    return -log_ratio_mean


@metric(unit="nats/token", ideal=0.0, span="sequence", statistic=Moments)
def log_ppl_abs_diff(log_ratio_mean: Sequences) -> Sequences:
    """Size of the difference of the log-perplexities of each response.

    abs(mean_t d).

    Args:
        log_ratio_mean: mean of d over the tokens of each sequence, float [sequences].

    Returns:
        Nats per token, float [sequences].

    >>> log_ppl_abs_diff(np.array([-0.5]))
    array([0.5])
    """
    return array_namespace(log_ratio_mean).abs(log_ratio_mean)


@metric(unit="ratio", ideal=1.0, span="sequence", statistic=Moments)
def ppl_ratio(log_ratio_mean: Sequences) -> Sequences:
    """Trainer perplexity over rollout perplexity, per response and then averaged.

    exp(-mean_t d), the inverse of the sequence's geometric-mean ratio.

    Args:
        log_ratio_mean: mean of d over the tokens of each sequence, float [sequences].

    Returns:
        Ratios, float [sequences].

    >>> ppl_ratio(np.array([0.0]))
    array([1.])
    """
    return array_namespace(log_ratio_mean).exp(-log_ratio_mean)
