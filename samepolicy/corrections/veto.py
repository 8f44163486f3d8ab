"""A veto: one catastrophic token takes its whole sequence out of the loss."""

import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import Among, MaskStep, Work, check_bounds, check_choice


@dataclass(frozen=True)
class Veto(MaskStep):
    """Drop every sequence (turn, segment) with a token whose ratio is out of bounds.

    keep = every ρ of the span in [below, above]. The bounds are meant for the impossible, such as below=1e-4: a token
    that the trainer would practically never sample says that something else than rounding is at work in this sequence.

    Args:
        below: lower bound of each token's ratio, or None.
        above: upper bound, or None.
        over: what falls with the token: "sequence", "turn" or "segment".
        clamp: bound on abs d before the exponential, or None.
        among: look at all sampled tokens, or at those that the steps before have left ("kept").

    Raises:
        InputError: no bound, a bound that is not positive, or an unknown choice.

    Reference: Liu et al., "When Speed Kills Stability" (2025), "token veto".

    >>> from samepolicy.corrections import Correction
    >>> logp = np.log([[0.5, 0.5]])
    >>> Correction(Veto(below=1e-4))(trainer=logp - [[20.0, 0.0]], rollout=logp, mask=np.ones((1, 2))).keep
    array([[False, False]])
    """

    _: KW_ONLY
    below: float | None = None
    above: float | None = None
    over: Literal["sequence", "turn", "segment"] = "sequence"
    clamp: float | None = None
    among: Among = "sampled"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_bounds("Veto", self.below, self.above)
        check_choice("Veto", "over", self.over, ("sequence", "turn", "segment"))
        check_choice("Veto", "among", self.among, ("sampled", "kept"))

    @property
    def needs(self) -> tuple[str, ...]:
        """Both policies, and the turns where they fall together."""
        return ("trainer", "rollout", "turn") if self.over == "turn" else ("trainer", "rollout")

    def keep(self, work: Work) -> Array:
        """Where no token of the span is out of bounds."""
        xp = array_namespace(work.keep)
        d = work.clamp(work.log_ratio, self.clamp)
        out = xp.zeros_like(work.keep)
        if self.below is not None:
            out = out | (d < math.log(self.below))
        if self.above is not None:
            out = out | (d > math.log(self.above))
        groups = work.groups(self.over)
        return groups.spread(groups.pool(out & (work.sampled if self.among == "sampled" else work.keep)) == 0)
