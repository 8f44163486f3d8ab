"""Corrections: what to do about the gap between trainer and rollout, made of a few parts.

A *span* says over what a ratio is taken (token, sequence, turn); a *step* says what is done with it. Steps that weigh
(`Truncate`, `Band`, `Normalise`) leave the mask alone; steps that mask (`Reject`, `Veto`, `OffPolicyMask`,
`SecondMoment`) say what to keep. A frozen dataclass in a module of this package is all it takes to add one; a module in
`frameworks/` adds another framework's flags.
"""

from samepolicy.corrections.band import Band
from samepolicy.corrections.base import Step, all_steps
from samepolicy.corrections.correction import Corrected, Correction
from samepolicy.corrections.normalise import Normalise
from samepolicy.corrections.off_policy_mask import OffPolicyMask
from samepolicy.corrections.presets import PRESETS, Preset
from samepolicy.corrections.ranks import RolloutPresence
from samepolicy.corrections.reject import Reject
from samepolicy.corrections.second_moment import SecondMoment
from samepolicy.corrections.statistics import Stats
from samepolicy.corrections.truncate import Truncate
from samepolicy.corrections.veto import Veto

__all__ = [
    "PRESETS",
    "Band",
    "Corrected",
    "Correction",
    "Normalise",
    "OffPolicyMask",
    "Preset",
    "Reject",
    "RolloutPresence",
    "SecondMoment",
    "Stats",
    "Step",
    "Truncate",
    "Veto",
    "all_steps",
]
