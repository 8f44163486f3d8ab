"""AReaL: unverified until run."""

from typing import Literal

from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.reject import Measure, Reduce, Reject
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

MEASURES: dict[str, Measure] = {"ratio": "ratio", "kl_k1": "log_ratio", "kl_k2": "k2", "kl_k3": "k3_inverse"}


def correction(
    *,
    level: Literal["token", "sequence"] = "token",
    action: Literal["mask", "clamp"] = "mask",
    metric: Literal["ratio", "kl_k1", "kl_k2", "kl_k3"] = "ratio",
    agg: Literal["sum", "mean", "max"] = "mean",
    upper: float = 5.0,
    lower: float | None = None,
) -> Correction:
    """The correction that AReaL's `rejection_sampling` means.

    `mask` takes tokens or sequences out of the loss and leaves the weight unbounded; `clamp` bounds the weight. The
    weight is the token's ratio; with level="sequence" and metric="ratio" the sequence's geometric mean. Of the ratio,
    agg pools logs: sum is the product, mean the geometric mean. Their k1 is +d, and their k3 that of the inverse ratio,
    1/ρ - 1 + d, which is unbiased for samples of the trainer, not of the rollout. A log-ratio that is not finite counts
    as 0 there; here as agreement where it is NaN, while an infinite one drops its token.

    Divides by: what was kept.

    Raises:
        InputError: an unknown choice, bounds that cannot be, clamping by a KL, or by the largest token ratio with a
            lower bound (their result is then no span of ours).

    Reference: https://github.com/inclusionAI/AReaL, `areal/utils/functional/functional.py`,
    `areal/api/cli_args.py`, `RejectionSamplingConfig`; unverified until run.
    """
    one_of("level", level, ("token", "sequence"))
    one_of("action", action, ("mask", "clamp"))
    one_of("metric", metric, tuple(MEASURES))
    one_of("agg", agg, ("sum", "mean", "max"))
    if metric == "ratio" and upper <= 1:
        raise InputError(
            f"upper must be above 1 for metric='ratio', or every token that differs is dropped; it is {upper}."
        )
    if action == "clamp" and metric != "ratio":
        raise InputError("action='clamp' bounds the ratio, so it needs metric='ratio'; use action='mask'.")
    over: Literal["geometric", "token"] = "geometric" if level == "sequence" and metric == "ratio" else "token"
    if action == "clamp":
        if level == "sequence" and lower is not None and (agg == "max" or (agg == "sum" and lower > 1)):
            raise InputError(f"action='clamp' with agg={agg!r} and this lower bound is not reproduced; use agg='mean'.")
        return Correction(Truncate(upper, below=lower, over=over), missing="agree")
    pooled: dict[str, Reduce] = {"sum": "sum", "mean": "geometric" if metric == "ratio" else "mean", "max": "max"}
    weigh: Step = Truncate(float("inf"), over=over)
    reduce = pooled[agg] if level == "sequence" else "mean"
    reject = Reject(MEASURES[metric], below=lower, above=upper, over=level, reduce=reduce)
    return Correction(weigh, reject, missing="agree")
