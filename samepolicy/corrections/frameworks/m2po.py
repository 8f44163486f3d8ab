"""M2PO's own repository: unverified until run."""

from samepolicy.corrections.correction import Correction
from samepolicy.corrections.second_moment import SecondMoment


def correction(*, M2_budget: float = 0.04) -> Correction:
    """The mask of M2PO: the fewest harmful tokens are dropped that bring their mean d² to the budget.

    This masks, as the paper's algorithm does. The repository's code instead finds the bound on |d| at which
    squares capped there meet the budget, and clips the PPO ratio at it, not tighter than `miniclip_low` and
    `miniclip_high`: a clip range of the loss, not a mask. Hand the current log-probs as `trainer=`, and advantages.

    Divides by: all tokens under the mask.

    Raises:
        InputError: a budget that is not positive.

    Reference: https://github.com/Infini-AI-Lab/M2PO, `verl/trainer/ppo/core_algos.py`; unverified until run.
    """
    return Correction(SecondMoment(M2_budget))
