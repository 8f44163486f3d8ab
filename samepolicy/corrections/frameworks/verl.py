"""verl's rollout correction, compared with the functions of verl 0.9.1."""

import math
from typing import Literal

from samepolicy.corrections.band import Band
from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.normalise import Normalise
from samepolicy.corrections.reject import Reject
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

BOUND = 20.0
"""verl clamps log-ratios to this: each token's for rejection, the sum for sequence weights."""
REJECTIONS = (
    *(f"token_k{i}" for i in (1, 2, 3)),
    *(f"seq_{how}_k{i}" for how in ("sum", "mean") for i in (1, 2, 3)),
    *(f"seq_max_k{i}" for i in (2, 3)),
)


def correction(
    *,
    rollout_is: str | None = None,
    rollout_is_threshold: float | str | None = 2.0,
    rollout_is_batch_normalize: bool = False,
    rollout_rs: str | None = None,
    rollout_rs_threshold: float | str | None = None,
    bypass_mode: bool = False,
    loss_type: str = "ppo_clip",
    k1_bounds: Literal["code", "documented"] = "code",
) -> Correction:
    """The correction that these flags of verl mean.

    `rollout_is` weighs by the ratio of the token or of the sequence (product), truncated at one threshold or, as
    "lower_upper", zeroed outside a band. `rollout_rs` lists rejections joined by commas: k1, k2 or k3 of tokens, or
    their sum, mean or max over a sequence. For k1 the threshold is "lower_upper", ratio bounds by the documentation;
    the code compares -d with their logs, so that they bound 1/ρ, which differs unless they are reciprocal. `k1_bounds`
    says which of the two is wanted.

    With `bypass_mode` verl compares the current policy with the rollout: hand the current log-probs as `trainer=`. The
    clipped loss (`ppo_clip`) holds the ratio itself, so there is then no weight; `reinforce` keeps it. The dataclass of
    verl has `rollout_is="sequence"` as default; its functions, and this one, have None.

    Divides by: what was kept, since rejection changes the response mask; weights of 0 stay in it.

    Raises:
        InputError: an unknown mode, a threshold that is missing, malformed, not positive or the wrong way round.

    Reference: verl, `rollout_corr_helper.compute_rollout_correction_and_rejection_mask`.
    """
    one_of("rollout_is", rollout_is, (None, "token", "sequence"))
    one_of("loss_type", loss_type, ("ppo_clip", "reinforce"))
    one_of("k1_bounds", k1_bounds, ("code", "documented"))
    steps: list[Step] = []
    if rollout_is is not None and rollout_is_threshold is not None and not (bypass_mode and loss_type == "ppo_clip"):
        steps.append(_weigh(rollout_is, rollout_is_threshold))
        if rollout_is_batch_normalize:
            steps.append(Normalise(over="token" if rollout_is == "token" else "sequence"))
    elif rollout_is_batch_normalize and rollout_is is None:
        raise InputError(
            "rollout_is_batch_normalize=True needs weights to normalise; set rollout_is to token or sequence."
        )
    return Correction(*steps, *_rejections(rollout_rs, rollout_rs_threshold, k1_bounds))


def _weigh(level: str, threshold: float | str) -> Truncate | Band:
    """Truncation at one threshold, or a band between two."""
    below, above = _bounds("rollout_is_threshold", threshold)
    over: Literal["token", "sequence"] = "token" if level == "token" else "sequence"
    at: Literal["token", "span"] = "token" if over == "token" else "span"
    if below is None:
        return Truncate(above, over=over, clamp=BOUND, clamp_at=at)
    return Band(below, above, over=over, clamp=BOUND, clamp_at=at)


def _bounds(flag: str, spec: float | str) -> tuple[float | None, float]:
    """(lower or None, upper) of a number or of "lower_upper"."""
    parts = str(spec).strip().split("_", 1)
    try:
        numbers = [float(p) for p in parts]
    except ValueError:
        raise InputError(f"{flag}={spec!r} is no threshold; write a number, or two as 'lower_upper'.") from None
    if isinstance(spec, bool) or not all(n > 0 for n in numbers) or numbers != sorted(numbers):
        raise InputError(f"{flag}={spec!r} must be above 0, and its lower bound not above its upper one.")
    return (numbers[0] if len(numbers) == 2 else None), numbers[-1]


def _rejections(options: str | None, thresholds: float | str | None, k1_bounds: str) -> list[Reject]:
    """One rejection for each option, in order, each option once."""
    if options is None:
        return []
    names = list(dict.fromkeys(o.strip() for o in options.split(",") if o.strip()))
    if not names:
        raise InputError(f"rollout_rs={options!r} names nothing; choose {', '.join(REJECTIONS)}.")
    for name in names:
        one_of("rollout_rs", name, REJECTIONS)
    if thresholds is None:
        raise InputError("rollout_rs needs rollout_rs_threshold: one for all, or one for each, joined by commas.")
    specs = [p.strip() for p in str(thresholds).split(",") if p.strip()]
    if len(specs) not in (1, len(names)):
        raise InputError(
            f"rollout_rs_threshold has {len(specs)} values for {len(names)} options; give one, or one for each."
        )
    specs = specs * len(names) if len(specs) == 1 else specs
    return [_reject(name, spec, k1_bounds) for name, spec in zip(names, specs, strict=True)]


def _reject(name: str, spec: str, k1_bounds: str) -> Reject:
    """One rejection."""
    level, _, measure = name.rpartition("_")
    below, above = _bounds("rollout_rs_threshold", spec)
    over: Literal["token", "sequence"] = "token" if level == "token" else "sequence"
    reduce: Literal["sum", "mean", "max"] = {"seq_sum": "sum", "seq_max": "max"}.get(level, "mean")  # type: ignore[assignment]
    if measure == "k1":
        low, high = math.log(below if below is not None else 1 / above), math.log(above)
        low, high = (low, high) if k1_bounds == "code" else (-high, -low)
        return Reject("k1", below=low, above=high, over=over, reduce=reduce, clamp=BOUND)
    if below is not None:
        raise InputError(f"{name} has an upper bound only, but rollout_rs_threshold={spec!r} has two; give one number.")
    measures: dict[str, Literal["k2", "k3"]] = {"k2": "k2", "k3": "k3"}
    return Reject(measures[measure], above=above, over=over, reduce=reduce, clamp=BOUND)
