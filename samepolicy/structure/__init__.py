"""What ids, lengths, masks, constants and declarations prove without any model."""

from samepolicy.structure.check import check as check
from samepolicy.structure.declarations import other_model as other_model
from samepolicy.structure.fact import Fact as Fact
from samepolicy.structure.fact import Status as Status
from samepolicy.structure.fact import counted as counted
from samepolicy.structure.unasked import unasked as unasked

__all__ = ["Fact", "Status", "check", "counted", "other_model", "unasked"]
