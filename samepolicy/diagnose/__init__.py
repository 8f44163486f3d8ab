"""The diagnosis: floor, gap, verdict, ladder; and `check`, the whole test from two engines."""

from samepolicy.diagnose.consistency import check as check
from samepolicy.diagnose.judge import diagnose as diagnose
from samepolicy.diagnose.ladder import Rung as Rung
from samepolicy.diagnose.result import Diagnosis as Diagnosis
from samepolicy.diagnose.sides import SideGap as SideGap
from samepolicy.diagnose.where import Where as Where
from samepolicy.floor.gap import Gap as Gap

__all__ = ["Diagnosis", "Gap", "Rung", "SideGap", "Where", "check", "diagnose"]
