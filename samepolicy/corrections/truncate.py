"""Truncated importance sampling: the ratio, held to bounds."""

from dataclasses import dataclass, field

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import Work, check_bounds
from samepolicy.corrections.ratios import RatioStep


@dataclass(frozen=True)
class Truncate(RatioStep):
    """Weigh each token by the ratio of its span, held to bounds.

    w = min(max(ρ, below), above), where ρ is exp(d) of the token or of its sequence, turn or segment. A bounded weight
    has bounded variance at the price of some bias; every token keeps its gradient. There is no lower bound unless one
    is asked for: 1/above would lift the weight of tokens that the trainer finds unlikely.

    Args:
        above: upper bound of the ratio; `math.inf` is plain importance sampling.
        below: lower bound of the ratio, or None.
        over: what the ratio is taken over, see `RatioStep`, as for clamp, clamp_at and among.

    Raises:
        InputError: a bound that is not positive, a lower one above the upper one, or an unknown choice.

    Reference: Ionides, "Truncated Importance Sampling" (2008); Yao et al., "Your Efficient RL Framework Secretly Brings
    You Off-Policy RL Training" (2025).

    >>> from samepolicy.corrections import Correction
    >>> logp = np.log([[0.5, 0.5]])
    >>> Correction(Truncate(2.0))(trainer=logp, rollout=logp - np.log([[4.0, 0.5]]), mask=np.ones((1, 2))).weights
    array([[2. , 0.5]])
    """

    above: float
    below: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_bounds("Truncate", self.below, self.above)
        self.check_span()

    def weigh(self, work: Work) -> Array:
        """The held ratio."""
        groups, ratio = self.ratios(work)
        self.outside(work, groups, ratio, (self.below, self.above))
        held = array_namespace(ratio).clip(ratio, self.below, self.above)
        return held if groups is None else groups.spread(held)
