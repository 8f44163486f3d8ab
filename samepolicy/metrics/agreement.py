"""Where the two policies agree or contradict each other, and whether the samples fit the policy that claims them."""

from jaxtyping import Bool, Float

from samepolicy.arrays import Array
from samepolicy.metrics.base import metric
from samepolicy.stats import Comoments, Moments, Share

Tokens = Float[Array, " tokens"]


@metric(unit="correlation", ideal=1.0, span="token", statistic=Comoments)
def prob_corr(trainer_prob: Tokens, rollout_prob: Tokens) -> tuple[Tokens, Tokens]:
    """Pearson correlation of the two probabilities of the sampled tokens.

    A value of 0.998 or more proves nothing by itself: a gap that matters hides below it.

    Args:
        trainer_prob: trainer probability of each sampled token, float [tokens].
        rollout_prob: rollout probability of each sampled token, float [tokens].

    Returns:
        The pair, reduced to the correlation in [-1, 1].

    Reference: MiniMax, "MiniMax-M1" (2025), section on precision mismatch.

    >>> prob_corr(np.array([0.5]), np.array([0.4]))
    (array([0.5]), array([0.4]))
    """
    return trainer_prob, rollout_prob


@metric(unit="share", ideal=0.0, span="token", statistic=Share)
def confident_disagreement(rollout_prob: Tokens, log_ratio: Tokens) -> Bool[Array, " tokens"]:
    """Share of tokens that the rollout was confident of and the trainer finds at least e² times less likely.

    exp R ≥ 0.5 and d < -2. Rounding in kernels does not make one.

    Args:
        rollout_prob: rollout probability of each sampled token, float [tokens].
        log_ratio: log π_trainer - log π_rollout, float [tokens].

    Returns:
        Flags, bool [tokens].

    >>> confident_disagreement(np.array([0.9, 0.9]), np.array([-3.0, -0.1]))
    array([ True, False])
    """
    return (rollout_prob >= 0.5) & (log_ratio < -2)


@metric(unit="nats/token", ideal=0.0, span="token", statistic=Moments)
def surprisal_gap(trainer_logp: Tokens, trainer_entropy: Tokens) -> Tokens:
    """How much more surprised the trainer is by the samples than it expects to be.

    -T - H with H the trainer's entropy at that place. Mean 0 where the samples come from the trainer's distribution;
    below 0, they were sampled from something sharper; above, from something flatter or noisier.

    Args:
        trainer_logp: trainer log-prob, float [tokens].
        trainer_entropy: entropy of the trainer's distribution at each place, in nats, float [tokens].

    Returns:
        Nats per token, float [tokens].

    >>> surprisal_gap(np.array([-1.0]), np.array([1.5]))
    array([-0.5])
    """
    return -trainer_logp - trainer_entropy
