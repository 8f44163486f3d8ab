"""How far apart the two policies are: KL estimates, χ², and differences of log-probs and of probabilities."""

from jaxtyping import Float

from samepolicy.arrays import Array
from samepolicy.metrics.base import metric
from samepolicy.stats import Histogram, LogWeights, Mean, Moments

Tokens = Float[Array, " tokens"]
Sequences = Float[Array, " sequences"]


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Moments)
def k1(log_ratio: Tokens) -> Tokens:
    """Unbiased estimate of KL(rollout || trainer), one value per sampled token.

    k1 = -d with d = log_ratio. Its mean is the KL where the tokens were sampled from the recorded rollout policy;
    single values have either sign, and a mean clearly below 0 says that they were not.

    Args:
        log_ratio: log π_trainer - log π_rollout of each sampled token, float [tokens].

    Returns:
        Nats per token, float [tokens]; 0 where the policies agree.

    Reference: Schulman, "Approximating KL Divergence" (2020).

    >>> k1(np.log([1.0, 2.0])).round(4)
    array([-0.    , -0.6931])
    """
    return -log_ratio


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Mean)
def k2(log_ratio: Tokens) -> Tokens:
    """Half the squared log-ratio: a biased, low-variance estimate of KL(rollout || trainer).

    k2 = d²/2. Never negative; its gradient is that of the reverse KL.

    Args:
        log_ratio: log π_trainer - log π_rollout of each sampled token, float [tokens].

    Returns:
        Nats per token, float [tokens]; 0 where the policies agree.

    Reference: Schulman, "Approximating KL Divergence" (2020).

    >>> k2(np.log([1.0, 2.0])).round(4)
    array([0.    , 0.2402])
    """
    return 0.5 * log_ratio * log_ratio


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Moments)
def k3(log_ratio: Tokens, ratio_minus_1: Tokens) -> Tokens:
    """Low-variance estimate of KL(rollout || trainer), one value per sampled token.

    k3 = exp(d) - 1 - d with d = log_ratio. Never negative; its mean over sampled tokens estimates the KL.

    Args:
        log_ratio: log π_trainer - log π_rollout of each sampled token, float [tokens].
        ratio_minus_1: expm1 of it, float [tokens].

    Returns:
        Nats per token, float [tokens]; 0 where the policies agree.

    Reference: Schulman, "Approximating KL Divergence" (2020).

    >>> k3(np.log([1.0, 2.0]), np.array([0.0, 1.0])).round(4)
    array([0.    , 0.3069])
    """
    return ratio_minus_1 - log_ratio


@metric(unit="nats", ideal=0.0, span="token", statistic=(Moments, Histogram))
def logp_diff(abs_log_ratio: Tokens) -> Tokens:
    """Absolute difference of the two log-probs of each sampled token, with its quantiles.

    abs d. The mean says what is usual, p99.9 and max say whether a few tokens carry the gap.

    Args:
        abs_log_ratio: size of log π_trainer - log π_rollout, float [tokens].

    Returns:
        Nats, float [tokens]; quantiles are right to 0.8 % of their value.

    >>> logp_diff(np.array([0.0, 0.5]))
    array([0. , 0.5])
    """
    return abs_log_ratio


@metric(unit="probability", ideal=0.0, span="token", statistic=Moments)
def prob_diff(prob_diff: Tokens) -> Tokens:
    """Absolute difference of the two probabilities of each sampled token: verl's monitor.

    abs(exp T - exp R). Bounded by 1, and blind where both probabilities are small.

    Args:
        prob_diff: absolute difference of trainer and rollout probability, float [tokens].

    Returns:
        Probability, float [tokens].

    Reference: verl, `calculate_debug_metrics`.

    >>> prob_diff(np.array([0.25]))
    array([0.25])
    """
    return prob_diff


@metric(unit="relative", ideal=0.0, span="token", statistic=Mean)
def rel_diff(abs_log_ratio: Tokens, trainer_logp: Tokens) -> Tokens:
    """Difference of the log-probs relative to the trainer's.

    abs d / (abs T + 1e-8), with abs T = -T, since no log-prob is above 0. Under 1 % is expected of one model in two
    modes in float32.

    Args:
        abs_log_ratio: size of log π_trainer - log π_rollout, float [tokens].
        trainer_logp: trainer log-prob, float [tokens].

    Returns:
        A share, float [tokens]; large where the trainer is almost certain, since T is then near 0.

    >>> rel_diff(np.array([0.01]), np.array([-1.0])).round(4)
    array([0.01])
    """
    return abs_log_ratio / (1e-8 - trainer_logp)


@metric(unit="factor", ideal=1.0, span="token", statistic=Mean)
def mult_error(mult_ratio: Tokens) -> Tokens:
    """By which factor the two probabilities of a sampled token differ.

    exp(abs d) = max(ρ, 1/ρ).

    Args:
        mult_ratio: max(ρ, 1/ρ) of each sampled token, float [tokens].

    Returns:
        A factor of 1 or more, float [tokens].

    Reference: NeMo-RL, `token_mult_prob_error`.

    >>> mult_error(np.array([1.0, 2.0]))
    array([1., 2.])
    """
    return mult_ratio


@metric(unit="factor", ideal=1.0, span="sequence", statistic=Moments)
def mult_error_seq(mult_ratio_mean: Sequences) -> Sequences:
    """By which factor the probabilities differ over a sequence; its maximum is the worst sequence.

    mean over the sequence's tokens of exp(abs d).

    Args:
        mult_ratio_mean: mean over tokens of max(ρ, 1/ρ), float [sequences].

    Returns:
        A factor of 1 or more, float [sequences].

    Reference: NeMo-RL, `seq_mult_prob_error`.

    >>> mult_error_seq(np.array([1.5]))
    array([1.5])
    """
    return mult_ratio_mean


@metric(unit="relative variance", ideal=0.0, span="token", statistic=LogWeights, read=("chi2", "count"))
def chi2_token(log_ratio: Tokens, ratio: Tokens) -> tuple[Tokens, Tokens]:
    """χ² divergence between the policies over tokens: the variance that importance weighting by token adds.

    E[ρ²] - 1, taken in log space; an overflow reads as inf.

    Args:
        log_ratio: log π_trainer - log π_rollout of each sampled token, float [tokens].
        ratio: ρ, float [tokens].

    Returns:
        Log-weights and weights, float [tokens], reduced to E[w²] - 1.

    >>> chi2_token(np.array([0.0]), np.array([1.0]))
    (array([0.]), array([1.]))
    """
    return log_ratio, ratio


@metric(unit="relative variance", ideal=0.0, span="sequence", statistic=LogWeights, read=("chi2", "count"))
def chi2_seq(log_ratio_mean: Sequences) -> Sequences:
    """χ² divergence over sequences, each with the geometric mean of its ratios.

    E[ρ_geo²] - 1 with ρ_geo = exp(mean_t d).

    Args:
        log_ratio_mean: mean of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences], reduced to E[w²] - 1.

    >>> chi2_seq(np.array([0.0]))
    array([0.])
    """
    return log_ratio_mean


@metric(unit="relative variance", ideal=0.0, span="sequence", statistic=LogWeights, read=("chi2", "count"))
def chi2_seq_product(log_ratio_sum: Sequences) -> Sequences:
    """χ² divergence over sequences, each with the product of its ratios: that of the true sequence weight.

    E[exp(Σ_t d)²] - 1. Grows exponentially with length; verl logs this form as chi2_seq.

    Args:
        log_ratio_sum: sum of d over the tokens of each sequence, float [sequences].

    Returns:
        Log-weights, float [sequences], reduced to E[w²] - 1.

    >>> chi2_seq_product(np.array([0.0]))
    array([0.])
    """
    return log_ratio_sum
