"""Where in the network do two engines part? Every step of one on the other's inputs, against that step's own rounding.

`compare` runs ids through a transformers model and a vLLM in this process (or two transformers models) and says at
which tap they part and what each block costs in nats; `write_repro` writes the one module that differs as a script.
"""

from samepolicy.layers.capture import Capture
from samepolicy.layers.compare import Ask, compare
from samepolicy.layers.ledger import Ledger
from samepolicy.layers.repro import write_repro
from samepolicy.layers.result import LayerComparison, Reading

__all__ = ["Ask", "Capture", "LayerComparison", "Ledger", "Reading", "compare", "write_repro"]
