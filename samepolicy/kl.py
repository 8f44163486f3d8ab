"""KL penalties against a reference policy, to be differentiated, and the ways in which frameworks average a loss.

With log r = log π_ref - log π_θ of tokens that π_θ sampled, `k1` = -log r, `k2` = ½(log r)², `k3` = r - 1 - log r. As
a *loss* they are not what they are as a number: the expected gradient of k1 is 0, that of k2 is the gradient of the
reverse KL(π_θ ‖ π_ref), and that of k3 is the gradient of the forward KL(π_ref ‖ π_θ). A `+` behind the name takes the
value of the one and the gradient of k2 (straight-through).
"""

from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from samepolicy.arrays import Array, array_namespace, is_torch, to_bool
from samepolicy.errors import InputError, ShapeError
from samepolicy.ratio import log_ratio

Kind = Literal["k1", "k2", "k3", "k1+", "k3+"]
Average = Literal["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
KINDS = ("k1", "k2", "k3", "k1+", "k3+")
AVERAGES = ("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm")


def kl_penalty(
    *,
    current: Float[Array, "..."],
    reference: Float[Array, "..."],
    mask: Array,
    kind: Kind = "k2",
    average: Average = "token-mean",
    offsets: Any = None,
) -> Any:
    """The penalty of a batch: how far the policy has moved from its reference, as one number to differentiate.

    Multiply it by β (usually 0.001, up to 0.04 for mathematics) and add it to the loss. A reading below 0.01 hardly
    moves, 0.01 to 0.1 is healthy, above 0.2 is too far. k1 belongs into the reward, not into the loss.

    Args:
        current: log-probs under the policy that is trained, float [batch, time], or [tokens] with offsets, in nats.
        reference: log-probs under the reference policy, same shape.
        mask: 1 where the policy sampled the token, same shape; what it hides reaches neither value nor gradient.
        kind: "k1", "k2", "k3", or "k1+", "k3+" with the gradient of k2.
        average: see `average_loss`.
        offsets: where each packed sequence begins and the last ends, int [sequences + 1].

    Returns:
        Nats per token (per sequence for the sums), a scalar of the same namespace; NaN where the mask is empty.

    Raises:
        InputError: an unknown kind or average.
        ShapeError: shapes differ.

    Reference: Schulman, "Approximating KL Divergence" (2020); Tang and Munos, "On a few pitfalls in KL divergence
    gradient estimation for RL" (2025).

    >>> round(float(kl_penalty(current=np.log([[0.5]]), reference=np.log([[0.25]]), mask=np.ones((1, 1)))), 4)
    0.2402
    """
    if not tuple(current.shape) == tuple(reference.shape) == tuple(mask.shape):
        raise ShapeError(
            f"The current policy has shape {list(current.shape)}, the reference {list(reference.shape)} and the mask "
            f"{list(mask.shape)}, but a penalty needs one value per token in each; give all three the same shape."
        )
    xp, flags = array_namespace(current, reference), to_bool(mask)
    held = xp.where(flags, current, 0.0), xp.where(flags, reference, 0.0)
    return average_loss(kl_values(current=held[0], reference=held[1], kind=kind), flags, average, offsets=offsets)


def kl_values(*, current: Float[Array, "..."], reference: Float[Array, "..."], kind: Kind = "k2") -> Any:
    """The penalty of each token.

    Args:
        current: log-probs under the policy that is trained, in nats.
        reference: log-probs under the reference policy, same shape.
        kind: "k1", "k2", "k3", or "k1+", "k3+" with the gradient of k2.

    Returns:
        Nats per token, the same shape; gradients flow through `current`.

    Raises:
        InputError: an unknown kind.

    >>> kl_values(current=np.log([0.5]), reference=np.log([0.25]), kind="k3").round(4)
    array([0.1931])
    """
    if kind not in KINDS:
        raise InputError(f"There is no KL penalty {kind!r}; choose {', '.join(KINDS)}.")
    log_r = log_ratio(trainer=reference, rollout=current)
    if kind.endswith("+"):
        return _straight_through(value=_plain(log_r, kind[:-1]), gradient=_plain(log_r, "k2"))
    return _plain(log_r, kind)


def average_loss(
    values: Float[Array, "..."],
    mask: Array,
    average: Average = "token-mean",
    *,
    offsets: Any = None,
    horizon: int | None = None,
) -> Any:
    """One number from a loss per token.

    `token-mean`: Σ over all tokens / tokens, so long sequences weigh more. `seq-mean-token-mean`: the mean over
    sequences of each one's token mean. `seq-mean-token-sum`: the mean over sequences of their sums.
    `seq-mean-token-sum-norm`: that, divided by a constant horizon. Sequences without tokens count nowhere.

    Args:
        values: loss of each token, float [batch, time], or [tokens] with offsets.
        mask: 1 where the token counts, same shape; a NaN that it hides stays hidden.
        average: which of the four.
        offsets: where each packed sequence begins and the last ends, int [sequences + 1].
        horizon: what `seq-mean-token-sum-norm` divides by; default the time axis of padded values.

    Returns:
        A scalar of the same namespace; NaN where the mask is empty.

    Raises:
        InputError: an unknown average, or packed values without the horizon that they need.

    Reference: verl, `core_algos.agg_loss`.

    >>> float(average_loss(np.array([[1.0, 3.0], [5.0, 0.0]]), np.array([[1, 1], [1, 0]]), "seq-mean-token-mean"))
    3.5
    """
    if average not in AVERAGES:
        raise InputError(f"There is no average {average!r}; choose {', '.join(AVERAGES)}.")
    xp, flags = array_namespace(values), to_bool(mask)
    held = xp.where(flags, values, 0.0)
    if average == "token-mean":
        return _divide(xp.sum(held), xp.count_nonzero(flags))
    sums, tokens = _per_sequence(held, offsets), _per_sequence(xp.astype(flags, held.dtype), offsets)
    if average == "seq-mean-token-mean":
        sums = sums / xp.clip(tokens, 1, None)
    found = _divide(xp.sum(sums), xp.count_nonzero(tokens > 0))
    if average == "seq-mean-token-sum-norm":
        if horizon is None and offsets is not None:
            raise InputError("Packed values have no time axis to divide by; give horizon=, the longest response.")
        return found / (values.shape[-1] if horizon is None else horizon)
    return found


def _plain(log_r: Array, kind: str) -> Any:
    """k1, k2 or k3 of each token."""
    if kind == "k1":
        return -log_r
    return 0.5 * log_r * log_r if kind == "k2" else array_namespace(log_r).expm1(log_r) - log_r


def _straight_through(*, value: Array, gradient: Array) -> Any:
    """One array's value with another's gradient."""
    return gradient - gradient.detach() + value.detach() if is_torch(value) else value


def _per_sequence(values: Array, offsets: Any) -> Any:
    """The sum of each sequence."""
    if offsets is None:
        return values.sum(-1)
    if not is_torch(values):
        ids = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
        return np.bincount(ids, weights=values, minlength=len(offsets) - 1)
    xp = array_namespace(values)
    ends = xp.asarray(offsets, device=values.device)[1:]
    ids = xp.searchsorted(ends, xp.arange(values.shape[0], device=values.device), side="right")
    return xp.zeros(ends.shape[0], dtype=values.dtype, device=values.device).index_add(0, ids, values)


def _divide(total: Any, count: Any) -> Any:
    """total/count without a wait for the device; NaN where there is nothing, with a gradient of 0."""
    xp = array_namespace(total) if is_torch(total) else None
    if xp is None:
        return total / count if count else total * np.nan
    return xp.where(count > 0, total / xp.clip(count, 1, None), xp.nan)
