"""What the tests of the monitor share."""

import numpy as np

from tests.oracles.batches import batch


def clean(seed=0, spread=0.02, **kwargs):
    """A batch whose tokens under the mask are finite log-probs."""
    data = batch(seed, spread=spread, **kwargs)
    return {**data, "trainer": np.where(data["mask"], data["trainer"], np.nan)}


def said(caplog):
    return [r.getMessage() for r in caplog.records if r.name == "samepolicy.monitor"]


def own(found):
    return {n.rpartition("/")[2]: v for n, v in found.items() if n.startswith("samepolicy/monitor/")}
