"""The log-ratio of two policies: the only place in samepolicy that subtracts one from the other."""

from typing import Any

from jaxtyping import Float

from samepolicy.arrays import Array


def log_ratio(*, trainer: Float[Array, "*tokens"], rollout: Float[Array, "*tokens"]) -> Any:
    """Log of how much likelier the trainer finds each sampled token than the engine that sampled it.

    d = log π_trainer(token) - log π_rollout(token); exp(d) is the importance ratio of the token. The two are
    keyword-only, since swapping them only flips a sign. Masked places must be cut before the call: padding is no
    log-prob.

    Args:
        trainer: log-probs under the policy that is trained, float [tokens], in nats.
        rollout: log-probs under the policy that sampled, same shape, in nats.

    Returns:
        Nats per token, the same shape and namespace; 0 where the policies agree, negative where the trainer finds the
        token less likely.

    Reference: importance sampling ratio, e.g. Schulman et al., "Proximal Policy Optimization Algorithms" (2017).

    >>> import numpy as np
    >>> log_ratio(trainer=np.log([0.5, 0.2]), rollout=np.log([0.5, 0.1])).round(4)
    array([0.    , 0.6931])
    """
    return trainer - rollout
