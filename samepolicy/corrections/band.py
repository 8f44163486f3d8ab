"""A band of ratios: outside it the weight is 0, inside it the ratio as it is."""

from dataclasses import dataclass, field
from typing import Literal

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import Work, check_bounds, check_choice
from samepolicy.corrections.ratios import RatioStep


@dataclass(frozen=True)
class Band(RatioStep):
    """Weigh each token by a ratio, and by 0 where the ratio of its span is outside the band.

    w = ρ where below ≤ ρ ≤ above, else 0. A token outside counts in the loss's denominator, since the mask stays as
    it is; to take it out there too, use `Reject("ratio", …)`.

    Args:
        below: lower end of the band, or None.
        above: upper end of the band, or None.
        over: what decides, see `RatioStep`, as for clamp, clamp_at and among.
        weight: the ratio that a token inside carries: that of its span ("same"), or its own ("token").

    Raises:
        InputError: a bound that is not positive, a lower one above the upper one, or an unknown choice.

    Reference: IcePop, "Small Leak Can Sink a Great Ship: Boost RL Training on MoE with IcePop" (2025); Liu et al.,
    "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch" (2025).

    >>> from samepolicy.corrections import Correction
    >>> logp = np.log([[0.5, 0.5]])
    >>> Correction(Band(0.5, 2.0))(trainer=logp, rollout=logp - np.log([[4.0, 1.5]]), mask=np.ones((1, 2))).weights
    array([[0. , 1.5]])
    """

    below: float | None
    above: float | None
    weight: Literal["same", "token"] = field(default="same", kw_only=True)

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_bounds("Band", self.below, self.above)
        check_choice("Band", "weight", self.weight, ("same", "token"))
        self.check_span()

    def weigh(self, work: Work) -> Array:
        """The ratio inside the band, 0 outside."""
        groups, ratio = self.ratios(work)
        outside = self.outside(work, groups, ratio, (self.below, self.above))
        xp = array_namespace(ratio)
        if groups is None:
            return xp.where(outside, 0.0, ratio)
        if self.weight == "same":
            return groups.spread(xp.where(outside, 0.0, ratio))
        at_token = self.clamp if self.clamp_at == "token" else None
        own = work.ratio if at_token is None else xp.exp(xp.clip(work.log_ratio, -at_token, at_token))
        return xp.where(groups.spread(outside), 0.0, own)
