"""slime (and miles, which holds the same code): unverified until run."""

from typing import Literal

from samepolicy.corrections.band import Band
from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.normalise import Normalise
from samepolicy.corrections.off_policy_mask import OffPolicyMask
from samepolicy.corrections.reject import Reject
from samepolicy.corrections.truncate import Truncate
from samepolicy.corrections.veto import Veto
from samepolicy.errors import InputError

BOUND = 20.0
Level = Literal["token", "sequence", "geometric"]


def correction(
    *,
    use_tis: bool = False,
    tis_function: Literal["vanilla", "icepop", "mis"] = "vanilla",
    tis_clip: float = 2.0,
    tis_clip_low: float = 0.0,
    tis_mode: Literal["truncate", "clip", "mask"] = "truncate",
    tis_level: Level = "token",
    tis_upper_bound: float = 2.0,
    tis_lower_bound: float | None = None,
    tis_batch_normalize: bool = False,
    use_rs: bool = False,
    rs_level: Level = "token",
    rs_lower_bound: float | None = None,
    rs_upper_bound: float | None = None,
    rs_veto_threshold: float | None = None,
    use_opsm: bool = False,
    opsm_delta: float = 1e-4,
) -> Correction:
    """The correction that these flags of slime mean.

    `tis_function` is the built-in clamp to [tis_clip_low, tis_clip] ("vanilla"), `icepop_function`, or the helper
    `compute_mis_weights` ("mis") with the flags of its yaml file. Of the helper: a lower bound that is not set is
    1/tis_upper_bound; `mask` takes tokens out of the mask and leaves the weights unbounded (to e^20); the ratio bounds
    of rejection default to those of the weights; without use_tis it only measures. Normalising by sequence it
    divides by all sequences, empty ones included; this divides by those with tokens.

    Divides by: what was kept, where the loss's reducer is given the new masks.

    Raises:
        InputError: flags that contradict each other, or bounds that cannot be.

    Reference: https://github.com/THUDM/slime, `examples/train_infer_mismatch_helper/mis.py`,
    `slime/backends/megatron_utils/loss.py`, `slime/utils/ppo_utils.py`; unverified until run.
    """
    one_of("tis_function", tis_function, ("vanilla", "icepop", "mis"))
    one_of("tis_mode", tis_mode, ("truncate", "clip", "mask"))
    one_of("tis_level", tis_level, ("token", "sequence", "geometric"))
    one_of("rs_level", rs_level, ("token", "sequence", "geometric"))
    helper_only = use_rs or tis_batch_normalize or rs_veto_threshold is not None
    if helper_only and not (use_tis and tis_function == "mis"):
        raise InputError(
            "use_rs, rs_veto_threshold and tis_batch_normalize act only with use_tis and tis_function='mis'."
        )
    if rs_veto_threshold is not None and not use_rs:
        raise InputError("rs_veto_threshold acts only with use_rs; set it, or leave the threshold out.")
    steps: list[Step] = []
    if use_tis and tis_function == "vanilla":
        steps.append(Truncate(tis_clip, below=tis_clip_low or None))
    elif use_tis and tis_function == "icepop":
        steps.append(Band(tis_clip_low or None, tis_clip))
    elif use_tis:
        low = 1 / tis_upper_bound if tis_lower_bound is None else tis_lower_bound
        steps += _helper(tis_mode, tis_level, low, tis_upper_bound)
        if tis_batch_normalize:
            if tis_level == "geometric":
                raise InputError("tis_batch_normalize has no meaning for tis_level='geometric'; use token or sequence.")
            steps.append(Normalise(over=tis_level))
        if use_rs:
            bounds = (rs_lower_bound if rs_lower_bound is not None else low, rs_upper_bound or tis_upper_bound)
            steps.append(_reject(rs_level, *bounds))
        if rs_veto_threshold is not None:
            steps.append(Veto(below=rs_veto_threshold))
    if use_opsm:
        steps.append(OffPolicyMask(opsm_delta, old="trainer", sign="token"))
    return Correction(*steps)


def _helper(mode: str, level: Level, low: float, high: float) -> list[Step]:
    """What the helper's mode does with the weights and the mask."""
    if mode == "mask":
        return [Truncate(float("inf"), over=level, clamp=BOUND, clamp_at="span"), _reject(level, low, high)]
    below = low if mode == "clip" else None
    return [Truncate(high, below=below, over=level, clamp=BOUND, clamp_at="span")]


def _reject(level: Level, low: float, high: float) -> Reject:
    """Ratio bounds of the helper."""
    if level == "token":
        return Reject("ratio", below=low, above=high, clamp=BOUND)
    reduce: Literal["sum", "geometric"] = "sum" if level == "sequence" else "geometric"
    return Reject("ratio", below=low, above=high, over="sequence", reduce=reduce, clamp=BOUND, clamp_at="span")
