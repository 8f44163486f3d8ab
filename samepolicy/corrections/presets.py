"""The corrections that the literature has names for."""

from dataclasses import dataclass

from samepolicy.corrections.band import Band
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.off_policy_mask import OffPolicyMask
from samepolicy.corrections.reject import Reject
from samepolicy.corrections.second_moment import SecondMoment
from samepolicy.corrections.truncate import Truncate
from samepolicy.corrections.veto import Veto

YAO = 'Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025)'
LIU = 'Liu et al., "When Speed Kills Stability: Demystifying RL Collapse from the Training-Inference Mismatch" (2025)'
ICEPOP = 'IcePop, "Small Leak Can Sink a Great Ship" (2025)'
DPPO = 'Qi et al., "Rethinking the Trust Region in LLM Reinforcement Learning" (2026)'


@dataclass(frozen=True)
class Preset:
    """A correction with a name.

    Attributes:
        correction: the steps, with the usual thresholds.
        meaning: what it does, in one line.
        reference: who proposed it.
    """

    correction: Correction
    meaning: str
    reference: str


PRESETS: dict[str, Preset] = {
    "none": Preset(Correction(), "every token with weight 1", ""),
    "token-is": Preset(Correction(Truncate(float("inf"))), "token ratios without a bound", "importance sampling"),
    "tis": Preset(Correction(Truncate(2.0)), "token ratios, at most 2", YAO),
    "sequence-tis": Preset(Correction(Truncate(2.0, over="sequence")), "product of the sequence, at most 2", LIU),
    "geometric-tis": Preset(
        Correction(Truncate(2.0, over="geometric")), "geometric mean of the sequence, at most 2", "ms-swift"
    ),
    "mis": Preset(Correction(Band(None, 2.0)), "token ratios, 0 above 2", LIU),
    "sequence-mis": Preset(Correction(Band(None, 2.0, over="sequence")), "product of the sequence, 0 above 2", LIU),
    "geometric-mis": Preset(
        Correction(Band(None, 2.0, over="geometric", weight="token")),
        "token ratios, 0 on sequences with a geometric mean above 2",
        "ms-swift",
    ),
    "icepop": Preset(Correction(Band(0.5, 5.0)), "token ratios, 0 outside [0.5, 5]", ICEPOP),
    "geometric-rejection": Preset(
        Correction(Reject("ratio", below=0.999, above=1.001, over="sequence", reduce="geometric")),
        "sequences with a geometric mean outside 1 ± 0.001 fall",
        LIU,
    ),
    "tis-geometric-rejection": Preset(
        Correction(Truncate(2.0), Reject("ratio", below=0.999, above=1.001, over="sequence", reduce="geometric")),
        "token ratios, at most 2; sequences with a geometric mean outside 1 ± 0.001 fall",
        LIU,
    ),
    "k3-rejection": Preset(
        Correction(Reject("k3", above=0.01, over="sequence")), "sequences with a mean k3 above 0.01 fall", "verl"
    ),
    "veto": Preset(Correction(Veto(below=1e-4)), "sequences with a token ratio below 1e-4 fall", LIU),
    "tis-veto": Preset(Correction(Truncate(2.0), Veto(below=1e-4)), "token ratios, at most 2; veto below 1e-4", LIU),
    "mult-error": Preset(
        Correction(Reject("mult_error", above=1.5, over="sequence")),
        "sequences with a mean of exp(abs d) above 1.5 fall",
        "NeMo-RL",
    ),
    "prob-diff": Preset(
        Correction(Reject("abs_prob_diff", above=0.1)),
        "tokens whose probability moved by more than 0.1 fall",
        "prime-rl",
    ),
    "dppo-tv": Preset(
        Correction(Reject("prob_diff", below=-0.2, above=0.2, sided=True)),
        "tokens whose update would carry their probability further than 0.2 off fall",
        DPPO,
    ),
    "off-policy-mask": Preset(
        Correction(OffPolicyMask(0.01)),
        "sequences of negative advantage that the policy moved from by more than 0.01 nats/token fall",
        'DeepSeek-AI, "DeepSeek-V3.2" (2025)',
    ),
    "m2po": Preset(
        Correction(SecondMoment(0.04)),
        "the largest harmful d² fall until their mean is 0.04",
        'Zheng et al., "Prosperity before Collapse" (2025)',
    ),
}
"""Each preset by name. Thresholds are starting points: `whatif` shows what each does to a batch."""
