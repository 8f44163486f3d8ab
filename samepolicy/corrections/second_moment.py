"""Second-moment trust region: drop the fewest tokens that bring the mean squared log-ratio to a budget."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import BatchMaskStep, Work, check_bounds


@dataclass(frozen=True)
class SecondMoment(BatchMaskStep):
    """Drop the tokens with the largest d² until the mean d² of the harmful tokens is within the budget.

    A token is harmful where its update would carry it further from the rollout: A > 0 and d > 0, or A < 0 and d < 0.
    The bound on d² is the batch's own: the largest that leaves Σ d² over the harmful tokens kept ≤ budget · their
    number. Hand the policy that is trained as `trainer=`.

    Args:
        budget: the largest mean of d² over the harmful tokens that are kept, in nats².

    Raises:
        InputError: a budget that is not positive.

    Reference: Zheng et al., "Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?"
    (M2PO, 2025).

    >>> from samepolicy.corrections import Correction
    >>> d = np.array([[0.1, 0.1, 0.9, -0.9]])
    >>> correct = Correction(SecondMoment(0.04))
    >>> correct(trainer=d - 2, rollout=0 * d - 2, mask=np.ones((1, 4)), advantage=np.ones((1, 4))).keep
    array([[ True,  True, False,  True]])
    """

    budget: float

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_bounds("SecondMoment", None, self.budget)

    @property
    def needs(self) -> tuple[str, ...]:
        """Both policies and the advantages."""
        return ("trainer", "rollout", "advantage")

    def survey(self, work: Work) -> Array:
        """d² of each harmful token, 0 elsewhere; one array of the batch's size over all blocks."""
        xp = array_namespace(work.log_ratio)
        d = work.log_ratio
        return xp.where(work.columns["advantage"] * d > 0, d * d, 0.0).reshape(-1)

    def settle(self, surveyed: Sequence[Array]) -> Array:
        """The smallest d² to drop; inf drops nothing."""
        xp = array_namespace(*surveyed)
        squares = xp.sort(xp.concat(list(surveyed)))
        if squares.shape[0] == 0:
            return math.inf
        harmful = xp.cumulative_sum(xp.astype(squares > 0, squares.dtype))
        mean = xp.cumulative_sum(squares) / xp.clip(harmful, 1.0, None)
        return xp.min(xp.where(mean > self.budget, squares, xp.inf))

    def keep(self, work: Work) -> Array:
        """Where a token is harmless or below the bound."""
        d = work.log_ratio
        return ~((work.columns["advantage"] * d > 0) & (d * d >= work.settled[self]))
