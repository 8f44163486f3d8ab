"""The floor where none was measured: what rounding does to a small language model, by dtype and surprisal."""

import numpy as np
from jaxtyping import Float

from samepolicy.floor.levels import SMALLEST, Level

EDGES = (0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0)
BFLOAT16 = (0.004, 0.015, 0.03, 0.05, 0.06, 0.07, 0.08)
"""rms of bfloat16 against float32 in these bins of surprisal, nats: SmolLM2-135M, above what larger models show."""

SHARE = {"float32": 0.0, "float16": 0.125, "bfloat16": 1.0}
"""How much of that a dtype makes."""


def assumed(dtype: str | None, logp: Float[np.ndarray, " tokens"]) -> Float[np.ndarray, " tokens"]:
    """The rms of rounding at each token, nats [tokens]; an undeclared or unknown dtype is taken for bfloat16.

    >>> assumed("bfloat16", np.array([-0.001, -3.0])).tolist()
    [0.004, 0.07]
    """
    share = SHARE.get(dtype or "bfloat16", 1.0)
    level = Level(EDGES, (1,) * len(EDGES), tuple(max(share * rms, SMALLEST) for rms in BFLOAT16))
    return level.at(logp)
