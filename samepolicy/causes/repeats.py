"""What a side's repeated scorings say of its gap."""

import numpy as np

from samepolicy.causes.base import cause
from samepolicy.causes.dropout import VARIES, dropped
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.unavailable import Unavailable
from samepolicy.records.self_checks import rms


def varies(evidence: Evidence, name: str, takes: str) -> tuple[float, float] | None:
    """How far a side is from itself and from its prediction, rms in nats, where the one is large enough for the other.

    Args:
        evidence: of that side.
        name: the self-check.
        takes: what measuring it would take.

    Returns:
        Both distances; None where the first is too small, or where a coarser format or dropout is the better word.

    Raises:
        Unavailable: it was not measured.
    """
    again = rms(evidence.run, name)
    if again is None:
        raise Unavailable(takes)
    fine = evidence.comparable & np.isfinite(evidence.residual)
    error = float(np.sqrt(np.mean(evidence.residual[fine] ** 2))) if fine.any() else 0.0
    if again < VARIES * error or error == 0:
        return None
    coarser = next(iter(cause("precision").undo(evidence)), None)
    drop = dropped(evidence)
    return None if coarser or (drop is not None and drop.fits) else (again, error)
