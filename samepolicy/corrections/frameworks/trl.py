"""TRL's GRPO with vLLM, compared with TRL 1.16.0."""

from samepolicy.corrections.band import Band
from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.off_policy_mask import OffPolicyMask
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def correction(
    *,
    vllm_importance_sampling_correction: bool = True,
    vllm_importance_sampling_mode: str = "sequence_mask",
    vllm_importance_sampling_clip_max: float | None = 3.0,
    vllm_importance_sampling_clip_min: float | None = None,
    off_policy_mask_threshold: float | None = None,
) -> Correction:
    """The correction that these flags of TRL mean.

    The sequence ratio is the product over its tokens. `*_truncate` holds it to [clip_min, clip_max], `*_mask` puts 0
    outside. Nothing is clamped before the exponential, and a token without a sampling log-prob (NaN) counts as ratio 1.
    The weight multiplies the policy loss before the β·KL term is added. For the off-policy mask hand over `current=`
    and `advantage=`.

    Divides by: the completion mask as it was; neither a weight of 0 nor the off-policy mask changes it.

    Args:
        vllm_importance_sampling_correction: whether there are weights.
        vllm_importance_sampling_mode: one of the four modes.
        vllm_importance_sampling_clip_max: upper bound, or None.
        vllm_importance_sampling_clip_min: lower bound, or None.
        off_policy_mask_threshold: drop sequences that moved by more than this and have a negative advantage.

    Raises:
        InputError: an unknown mode, no bound for truncation, or a lower bound that is not below the upper one.

    Reference: TRL, `GRPOTrainer._generate_and_score_completions`, `GRPOTrainer.get_off_policy_mask`.
    """
    low, high = vllm_importance_sampling_clip_min, vllm_importance_sampling_clip_max
    one_of("vllm_importance_sampling_mode", vllm_importance_sampling_mode, MODES)
    if low is not None and high is not None and low >= high:
        raise InputError(
            f"vllm_importance_sampling_clip_min ({low}) must be below vllm_importance_sampling_clip_max ({high})."
        )
    steps: list[Step] = []
    if vllm_importance_sampling_correction:
        steps = _weigh(vllm_importance_sampling_mode, low, high)
    if off_policy_mask_threshold is not None:
        steps.append(OffPolicyMask(off_policy_mask_threshold))
    return Correction(*steps, missing="agree")


def _weigh(mode: str, low: float | None, high: float | None) -> list[Step]:
    """The step that gives the weight."""
    bounded = low is not None or high is not None
    if mode.endswith("truncate") and not bounded:
        raise InputError(
            f"{mode} needs vllm_importance_sampling_clip_max or vllm_importance_sampling_clip_min; set one."
        )
    top = float("inf") if high is None else high
    if mode.startswith("token"):
        return [Truncate(top, below=low) if mode == "token_truncate" else Band(low, top)]
    if mode == "sequence_truncate":
        return [Truncate(top, below=low, over="sequence")]
    return [Band(low, top, over="sequence")]
