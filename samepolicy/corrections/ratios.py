"""What the steps that weigh by a ratio share: the span it is taken over, and a framework's safety clamp."""

from dataclasses import dataclass
from typing import Literal

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import Among, WeightStep, Work, check_choice
from samepolicy.corrections.spans import OVER, Groups, Over
from samepolicy.errors import InputError

Bounds = tuple[float | None, float | None]


@dataclass(frozen=True, kw_only=True)
class RatioStep(WeightStep):
    """A weight step that looks at the ratio of a span.

    Args:
        over: what the ratio is taken over: "token", "sequence" (product), "geometric", "turn" or "segment".
        clamp: bound on abs d before the exponential, or None; a framework's safety bound, counted where it acts.
        clamp_at: whether each token is clamped before pooling ("token") or the pooled value after it ("span").
        among: pool all sampled tokens, or those that the steps before have left ("kept").
    """

    over: Over = "token"
    clamp: float | None = None
    clamp_at: Literal["token", "span"] = "token"
    among: Among = "sampled"

    @property
    def needs(self) -> tuple[str, ...]:
        """Both policies, and the turns where they are the span."""
        return ("trainer", "rollout", "turn") if self.over == "turn" else ("trainer", "rollout")

    def check_span(self) -> None:
        """Refuse what cannot be.

        Raises:
            InputError: an unknown choice, or a clamp that is not positive.
        """
        check_choice(type(self).__name__, "over", self.over, OVER)
        check_choice(type(self).__name__, "clamp_at", self.clamp_at, ("token", "span"))
        check_choice(type(self).__name__, "among", self.among, ("sampled", "kept"))
        if self.clamp is not None and not self.clamp > 0:
            raise InputError(f"The clamp of {type(self).__name__} must be above 0, but it is {self.clamp!r}.")

    def ratios(self, work: Work) -> tuple[Groups | None, Array]:
        """The ratio of each token (no groups), or of each group of tokens."""
        if self.over == "token":
            if self.clamp is None:
                return None, work.ratio
            return None, array_namespace(work.log_ratio).exp(work.clamp(work.log_ratio, self.clamp))
        groups, pooled, _ = work.pooled(self.over, clamp=self.clamp, clamp_at=self.clamp_at, among=self.among)
        return groups, array_namespace(pooled).exp(pooled)

    def outside(self, work: Work, groups: Groups | None, ratio: Array, bounds: Bounds) -> Array:
        """Where the ratio is outside the bounds, counted."""
        xp = array_namespace(ratio)
        below, above = bounds
        found = xp.zeros_like(ratio, dtype=xp.bool) if above is None else ratio > above
        if below is not None:
            found = found | (ratio < below)
        work.note_clipped(groups, found)
        return found
