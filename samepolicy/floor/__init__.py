"""How large is rounding here? Measured per side and per surprisal bin, before anything is judged.

A side that computes in bfloat16 cannot agree with anybody to 1e-6, and a token the model is sure of is rounded less
than a surprising one. So each side's declaration is scored twice by one reference engine, once in float32 with the
weights cast to the declared dtype (S) and once in the declared dtype; the rms of the difference, in bins of surprisal
-S, is how far an honest side of that dtype lies from S. All of it is kept as columns of the run, so a recorded run is
judged again without any model.
"""

from samepolicy.floor.assumed import assumed as assumed
from samepolicy.floor.evidence import Progress as Progress
from samepolicy.floor.evidence import add_evidence as add_evidence
from samepolicy.floor.evidence import column as column
from samepolicy.floor.evidence import has_evidence as has_evidence
from samepolicy.floor.evidence import ids_to_score as ids_to_score
from samepolicy.floor.floor import Floor as Floor
from samepolicy.floor.floor import measure as measure
from samepolicy.floor.levels import Level as Level
from samepolicy.floor.levels import level as level

__all__ = [
    "Floor",
    "Level",
    "Progress",
    "add_evidence",
    "assumed",
    "column",
    "has_evidence",
    "ids_to_score",
    "level",
    "measure",
]
