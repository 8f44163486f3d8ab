"""OpenRLHF: unverified until run."""

from collections.abc import Sequence

from samepolicy.corrections.band import Band
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

TYPES = ("tis", "icepop", "seq-mask-tis")


def correction(
    *,
    is_correction_enable: bool = False,
    is_correction_threshold: Sequence[float] = (0.5, 5.0),
    is_correction_type: str = "tis",
    policy_loss_type: str = "ppo",
) -> Correction:
    """The correction that OpenRLHF's flags `--algo.advantage.is_correction_*` mean.

    `tis` holds the token's ratio to [low, high]; `icepop` puts 0 outside; `seq-mask-tis` puts 0 on sequences whose
    geometric mean ratio is outside and leaves the others their tokens' own, unbounded ratios. With the gspo loss the
    ratio of the loss itself goes to the rollout instead, so there is no weight.

    Divides by: the action mask as it was; tokens of weight 0 stay in it.

    Raises:
        InputError: an unknown type, or thresholds that are not two rising positive numbers.

    Reference: https://github.com/OpenRLHF/OpenRLHF, `openrlhf/models/loss.py`, `PolicyLoss`; unverified until run.
    """
    one_of("is_correction_type", is_correction_type, TYPES)
    one_of("policy_loss_type", policy_loss_type, ("ppo", "gspo"))
    if len(is_correction_threshold) != 2:
        raise InputError(
            f"is_correction_threshold must be two numbers, low and high, not {list(is_correction_threshold)}."
        )
    low, high = is_correction_threshold
    steps = {
        "tis": Truncate(high, below=low),
        "icepop": Band(low, high),
        "seq-mask-tis": Band(low, high, over="geometric", weight="token"),
    }
    on = is_correction_enable and policy_loss_type == "ppo"
    return Correction(*([steps[is_correction_type]] if on else []))
