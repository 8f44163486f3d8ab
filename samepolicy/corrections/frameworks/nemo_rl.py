"""NeMo-RL: unverified until run."""

from samepolicy.corrections.band import Band
from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.reject import Reject
from samepolicy.corrections.spans import Over
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

TYPES = (None, "tis", "icepop", "seq-mask-tis")


def correction(
    *,
    use_importance_sampling_correction: bool = False,
    truncated_importance_sampling_type: str | None = None,
    truncated_importance_sampling_ratio: float | None = None,
    truncated_importance_sampling_ratio_min: float | None = None,
    sequence_level_importance_ratios: bool = False,
    seq_logprob_error_threshold: float | None = None,
) -> Correction:
    """The correction that these flags of NeMo-RL mean.

    The weight is the ratio of the token, or with `sequence_level_importance_ratios` the product over the sequence:
    plain, held to [min, ratio] (`tis`), 0 outside (`icepop`), or 0 on sequences whose geometric mean ratio is outside
    (`seq-mask-tis`, with the tokens' own ratios). Before it, `seq_logprob_error_threshold` drops sequences whose mean
    of exp(abs d) is above. A weight that is no number or infinite is 0 there as here.

    Divides by: the token and sample masks; tokens of weight 0 stay in them, filtered sequences do not. Tokens that are
    not finite stay in them too, while here they leave `keep`.

    Raises:
        InputError: an unknown type, a missing or impossible bound, or flags that contradict each other.

    Reference: https://github.com/NVIDIA-NeMo/RL, `nemo_rl/algorithms/loss/loss_functions.py`,
    `nemo_rl/algorithms/grpo.py`; unverified until run.
    """
    kind, high, low = (
        truncated_importance_sampling_type,
        truncated_importance_sampling_ratio,
        truncated_importance_sampling_ratio_min,
    )
    one_of("truncated_importance_sampling_type", kind, TYPES)
    if kind is not None and not use_importance_sampling_correction:
        raise InputError(f"{kind} acts only with use_importance_sampling_correction; set it, or leave the type out.")
    if kind is not None and high is None:
        raise InputError(f"{kind} needs truncated_importance_sampling_ratio, its upper bound.")
    if kind in ("icepop", "seq-mask-tis") and low is None:
        raise InputError(f"{kind} needs truncated_importance_sampling_ratio_min, its lower bound.")
    if kind == "seq-mask-tis" and sequence_level_importance_ratios:
        raise InputError("seq-mask-tis weighs by tokens, so it does not go with sequence_level_importance_ratios.")
    steps: list[Step] = []
    if seq_logprob_error_threshold is not None:
        steps.append(Reject("mult_error", above=seq_logprob_error_threshold, over="sequence"))
    over: Over = "sequence" if sequence_level_importance_ratios else "token"
    if use_importance_sampling_correction:
        top = float("inf") if high is None or kind is None else high
        if kind == "icepop":
            steps.append(Band(low, top, over=over))
        elif kind == "seq-mask-tis":
            steps.append(Band(low, top, over="geometric", weight="token"))
        else:
            steps.append(Truncate(top, below=low or None if kind else None, over=over))
    return Correction(*steps)
