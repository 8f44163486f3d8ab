"""What recorded log-probs are of, told by their values."""

from samepolicy.semantics.infer import Semantics as Semantics
from samepolicy.semantics.infer import infer as infer
from samepolicy.semantics.infer import noted as noted
from samepolicy.semantics.predict import Known as Known
from samepolicy.semantics.predict import predicted as predicted

__all__ = ["Known", "Semantics", "infer", "noted", "predicted"]
