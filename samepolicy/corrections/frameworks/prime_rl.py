"""prime-rl: unverified until run."""

from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.reject import Reject


def correction(
    *,
    type: str = "default",  # noqa: A002 - prime-rl's own name
    dppo_mask_low: float = 0.2,
    dppo_mask_high: float = 0.2,
    ipo_threshold: float = 0.1,
) -> Correction:
    """The mask that prime-rl's `trainer.loss` puts on the policy-gradient term.

    `default` (DPPO with total variation): a token of positive advantage is dropped where its probability rose by more
    than `dppo_mask_high`, any other where it fell by more than `dppo_mask_low`. `ipo`: a token is dropped where its
    probability moved by more than `ipo_threshold` either way. The ratio itself is in their loss, with its gradient,
    so there is no weight here; hand the current log-probs as `trainer=`. Their squared log-ratio goes over all tokens.

    Divides by: all tokens of the batch under the loss mask, dropped ones included.

    Raises:
        InputError: an unknown type, or a bound that is no number.

    Reference: https://github.com/PrimeIntellect-ai/prime-rl, `src/prime_rl/trainer/rl/loss.py`; unverified until run.
    """
    one_of("type", type, ("default", "ipo"))
    step: Step = Reject("prob_diff", below=-dppo_mask_low, above=dppo_mask_high, sided=True)
    if type == "ipo":
        step = Reject("abs_prob_diff", above=ipo_threshold)
    return Correction(step)
