"""Rejection: tokens, sequences or turns whose divergence is out of bounds are taken out of the loss."""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from samepolicy.arrays import Array, array_namespace
from samepolicy.corrections.base import Among, MaskStep, Work, check_bounds, check_choice
from samepolicy.errors import InputError

Measure = Literal["ratio", "log_ratio", "k1", "k2", "k3", "k3_inverse", "mult_error", "prob_diff", "abs_prob_diff"]
Reduce = Literal["sum", "mean", "max", "geometric"]
MEASURES = ("ratio", "log_ratio", "k1", "k2", "k3", "k3_inverse", "mult_error", "prob_diff", "abs_prob_diff")
SIGNED = ("log_ratio", "k1", "prob_diff")
"""Measures whose bounds may be 0 or negative."""


@dataclass(frozen=True)
class Reject(MaskStep):
    """Keep the tokens whose measure, pooled over their span, lies within the bounds.

    Measures, with d = log_ratio and ρ = exp(d): `ratio` ρ; `log_ratio` d; `k1` -d; `k2` d²/2; `k3` ρ - 1 - d;
    `k3_inverse` 1/ρ - 1 + d; `mult_error` exp(abs d); `prob_diff` exp T - exp R; `abs_prob_diff` its size. Of `ratio`,
    the sum is the product and the geometric mean exp(mean d), both taken in log space.

    Args:
        measure: what is bounded.
        below: lower bound, or None.
        above: upper bound, or None.
        over: what falls together: "token", "sequence", "turn" or "segment".
        reduce: how the measure is pooled over it: "sum", "mean", "max" or (of `ratio`) "geometric".
        clamp: bound on abs d of each token, or None; with clamp_at="span", on the pooled d of `ratio`.
        clamp_at: where the clamp acts.
        among: pool all sampled tokens, or those that the steps before have left ("kept").
        sided: with advantages: the upper bound holds only where A > 0 and the lower one only elsewhere, so that a
            token is dropped only if its update would push it further out.

    Raises:
        InputError: no bound, bounds that no value can lie between, or an unknown choice.

    Reference: Liu et al., "When Speed Kills Stability" (2025); Qi et al., "Rethinking the Trust Region in LLM
    Reinforcement Learning" (DPPO, 2026) for the sided difference of probabilities.

    >>> from samepolicy.corrections import Correction
    >>> logp = np.log([[0.5, 0.5]])
    >>> Correction(Reject("k3", above=0.05))(trainer=logp, rollout=logp - [[1.0, 0.1]], mask=np.ones((1, 2))).keep
    array([[False,  True]])
    """

    measure: Measure
    _: KW_ONLY
    below: float | None = None
    above: float | None = None
    over: Literal["token", "sequence", "turn", "segment"] = "token"
    reduce: Reduce = "mean"
    clamp: float | None = None
    clamp_at: Literal["token", "span"] = "token"
    among: Among = "sampled"
    sided: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_choice("Reject", "measure", self.measure, MEASURES)
        check_choice("Reject", "over", self.over, ("token", "sequence", "turn", "segment"))
        check_choice("Reject", "reduce", self.reduce, ("sum", "mean", "max", "geometric"))
        check_choice("Reject", "clamp_at", self.clamp_at, ("token", "span"))
        check_choice("Reject", "among", self.among, ("sampled", "kept"))
        lowest = float("-inf") if self.measure in SIGNED else 0.0
        check_bounds("Reject", self.below, self.above, lowest=lowest)
        if self.reduce == "geometric" and self.measure != "ratio":
            raise InputError(f"Only the ratio has a geometric mean, not {self.measure}; use reduce='mean'.")
        if self.clamp_at == "span" and not self.pools_logs:
            raise InputError(
                "clamp_at='span' clamps a pooled log-ratio, so it needs measure='ratio' and no plain mean."
            )

    @property
    def needs(self) -> tuple[str, ...]:
        """Both policies, with turns and advantages where they are used."""
        turn = ("turn",) if self.over == "turn" else ()
        return ("trainer", "rollout", *turn, *(("advantage",) if self.sided else ()))

    @property
    def pools_logs(self) -> bool:
        """Whether logs are pooled and the ratio is taken after it."""
        return self.measure == "ratio" and self.over != "token" and self.reduce != "mean"

    def keep(self, work: Work) -> Array:
        """Where the pooled measure lies within the bounds."""
        if self.over == "token":
            return self._within(self._values(work), work)
        groups = work.groups(self.over)
        xp = array_namespace(work.keep)
        among = work.sampled if self.among == "sampled" else work.keep
        held = work.clamp(work.log_ratio, self.clamp if self.clamp_at == "token" else None)
        values = held if self.pools_logs else self._values(work)
        if self.reduce == "max":
            pooled = groups.pool(xp.where(among, values, -xp.inf), "max")
        else:
            pooled = groups.pool(xp.where(among, values, 0.0))
            if self.reduce != "sum":
                pooled = pooled / xp.clip(groups.pool(among), 1, None)
        if self.pools_logs:
            pooled = xp.exp(work.clamp(pooled, self.clamp if self.clamp_at == "span" else None))
        return self._within(groups.spread(pooled), work)

    def _values(self, work: Work) -> Array:
        """The measure of each token."""
        xp = array_namespace(work.log_ratio)
        if self.measure in ("prob_diff", "abs_prob_diff"):
            trainer, rollout = work.columns["trainer"], work.columns["rollout"]
            gap = xp.where(work.sampled, xp.exp(trainer) - xp.exp(rollout), 0.0)
            return gap if self.measure == "prob_diff" else xp.abs(gap)
        d = work.clamp(work.log_ratio, self.clamp)
        ratio = work.ratio if self.clamp is None else None
        match self.measure:
            case "ratio":
                return xp.exp(d) if ratio is None else ratio
            case "log_ratio":
                return d
            case "k1":
                return -d
            case "k2":
                return 0.5 * d * d
            case "k3":
                return xp.expm1(d) - d
            case "k3_inverse":
                return xp.expm1(-d) + d
            case _:
                return xp.exp(xp.abs(d))

    def _within(self, values: Array, work: Work) -> Array:
        """Where values lie within the bounds."""
        xp = array_namespace(values)
        upper = xp.ones_like(values, dtype=xp.bool) if self.above is None else values <= self.above
        lower = xp.ones_like(values, dtype=xp.bool) if self.below is None else values >= self.below
        return xp.where(work.columns["advantage"] > 0, upper, lower) if self.sided else upper & lower
