"""Are both sides' parameters the same tensors? Fingerprints of any kind of model, compared name by name.

`fingerprint` reads a model once, tensor by tensor; `compare` says what became of each tensor; `WeightSync` watches the
weights that a trainer sends to its engine.
"""

from samepolicy.weights.compare import compare
from samepolicy.weights.fingerprints import Fingerprints, fingerprint
from samepolicy.weights.result import Comparison, Relation
from samepolicy.weights.sample import WeightSample, sample
from samepolicy.weights.sync import SyncReport, WeightSync
from samepolicy.weights.tensor import TensorPrint

__all__ = [
    "Comparison",
    "Fingerprints",
    "Relation",
    "SyncReport",
    "TensorPrint",
    "WeightSample",
    "WeightSync",
    "compare",
    "fingerprint",
    "sample",
]
