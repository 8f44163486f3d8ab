"""SkyRL: unverified until run."""

from typing import Literal

from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.reject import Reject
from samepolicy.corrections.truncate import Truncate
from samepolicy.corrections.veto import Veto

BOUND = 20.0


def correction(
    *,
    tis_ratio_type: Literal["token", "sequence"] | None = None,
    token_tis_ratio_clip_high: float = 2.0,
    sequence_tis_ratio_clip_high: float = 5.0,
    sequence_mask_metric: Literal["geometric", "product"] | None = None,
    geo_mask_high: float = 1.01,
    geo_mask_low: float = 0.99,
    product_mask_high: float = 2.0,
    product_mask_low: float = 0.5,
    outlier_token_is_threshold_low: float | None = None,
    outlier_token_is_threshold_high: float | None = None,
    token_mask_is_threshold_low: float | None = None,
    token_mask_is_threshold_high: float | None = None,
) -> Correction:
    """The correction that SkyRL's `off_policy_correction` means.

    In this order: sequences with an outlier token fall; then single tokens; then the weight is taken, and sequences
    fall by their product or geometric mean. The last two pool only the tokens that are left by then. One of the two
    token bounds alone does nothing, there as here. Log-ratios are clamped to ±20 after they are pooled.

    Divides by: what was kept, where the loss is reduced with the new mask.

    Raises:
        InputError: an unknown type, or bounds that cannot be.

    Reference: https://github.com/NovaSky-AI/SkyRL,
    `skyrl/backends/skyrl_train/utils/off_policy_correction_utils.py`; unverified until run.
    """
    one_of("tis_ratio_type", tis_ratio_type, (None, "token", "sequence"))
    one_of("sequence_mask_metric", sequence_mask_metric, (None, "geometric", "product"))
    low, high = outlier_token_is_threshold_low, outlier_token_is_threshold_high
    steps: list[Step] = []
    if low is not None or high is not None:
        steps.append(Veto(below=low, above=high, clamp=BOUND))
    if token_mask_is_threshold_low is not None and token_mask_is_threshold_high is not None:
        steps.append(
            Reject("ratio", below=token_mask_is_threshold_low, above=token_mask_is_threshold_high, clamp=BOUND)
        )
    if tis_ratio_type is not None:
        cap = token_tis_ratio_clip_high if tis_ratio_type == "token" else sequence_tis_ratio_clip_high
        steps.append(Truncate(cap, over=tis_ratio_type, clamp=BOUND, clamp_at="span", among="kept"))
    if sequence_mask_metric is not None:
        geometric = sequence_mask_metric == "geometric"
        steps.append(
            Reject(
                "ratio",
                below=geo_mask_low if geometric else product_mask_low,
                above=geo_mask_high if geometric else product_mask_high,
                over="sequence",
                reduce="geometric" if geometric else "sum",
                clamp=BOUND,
                clamp_at="span",
                among="kept",
            )
        )
    return Correction(*steps)
