"""What would each correction do to a recorded batch? Asked before training, answered from the record alone."""

from samepolicy.whatif.compare import whatif
from samepolicy.whatif.result import Advice, Outcome, WhatIf
from samepolicy.whatif.rules import Rule, preset, sweep, with_threshold

__all__ = ["Advice", "Outcome", "Rule", "WhatIf", "preset", "sweep", "whatif", "with_threshold"]
