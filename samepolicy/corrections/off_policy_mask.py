"""Off-policy sequence masking: bad answers that the policy would no longer give teach nothing."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import MaskStep, Work, check_bounds, check_choice
from samepolicy.ratio import log_ratio


@dataclass(frozen=True)
class OffPolicyMask(MaskStep):
    """Drop a sequence that the policy has moved away from and whose advantage is negative.

    δ = mean over the sequence's tokens of (log π_old - log π_θ); it is dropped iff δ > above and A < 0. π_θ is the
    column `current`, or the trainer's where no step was taken yet; A is the mean of the tokens' advantages.

    Args:
        above: how far the policy may have moved, in nats/token.
        old: π_old: the engine that sampled ("rollout"), or the trainer's own scoring where there is none ("trainer").
        sign: whose advantage must be negative: the sequence's mean, or each token's own ("token").

    Raises:
        InputError: an unknown choice, or a bound that is no number.

    Reference: DeepSeek-AI, "DeepSeek-V3.2" (2025).

    >>> from samepolicy.corrections import Correction
    >>> logp, mask = np.log([[0.5, 0.5], [0.5, 0.5]]), np.ones((2, 2))
    >>> correct = Correction(OffPolicyMask(0.1))
    >>> correct(trainer=logp - 1, rollout=logp, mask=mask, advantage=np.array([1.0, -1.0])).keep[:, 0]
    array([ True, False])
    """

    above: float
    _: KW_ONLY
    old: Literal["rollout", "trainer"] = "rollout"
    sign: Literal["sequence", "token"] = "sequence"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_bounds("OffPolicyMask", None, self.above, lowest=float("-inf"))
        check_choice("OffPolicyMask", "old", self.old, ("rollout", "trainer"))
        check_choice("OffPolicyMask", "sign", self.sign, ("sequence", "token"))

    @property
    def needs(self) -> tuple[str, ...]:
        """The old policy and the advantages; with `old="trainer"` the current policy too, or nothing would differ."""
        return ("trainer", "rollout", "advantage") if self.old == "rollout" else ("trainer", "current", "advantage")

    def keep(self, work: Work) -> Array:
        """Where the policy has not moved away, or the advantage is not negative."""
        xp = array_namespace(work.keep)
        current = work.columns.get("current", work.columns["trainer"])
        moved = -log_ratio(trainer=current, rollout=work.columns[self.old])
        # what is no number gives no evidence; where missing values count as agreement they still count as tokens
        moved = xp.where(work.sampled & xp.isfinite(moved), moved, 0.0)
        per_token = xp.clip(work.lengths, 1, None)
        far = work.sequences.pool(moved) / per_token > self.above
        advantage = work.columns["advantage"]
        if self.sign == "token":
            return ~(work.sequences.spread(far) & (advantage < 0))
        mean = work.sequences.pool(xp.where(work.sampled, advantage, 0.0)) / per_token
        return work.sequences.spread(~(far & (mean < 0)))
