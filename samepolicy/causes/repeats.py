"""What a side's repeated scorings say: distances that a run keeps under `info["self_checks"]`."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from samepolicy.causes.base import cause
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.reference import Unavailable
from samepolicy.records.run import Run

MOST = 0.5
"""A side's distance from itself must be at least this share of its distance from the prediction."""


def repeated(run: Run, name: str) -> float | None:
    """The rms distance of a side from itself under that name, nats; None where it was not measured."""
    found = run.info.get("self_checks", {}).get(name)
    value = found.get("rms") if isinstance(found, Mapping) else None
    return None if value is None else float(value)


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
    again = repeated(evidence.run, name)
    if again is None:
        raise Unavailable(takes)
    fine = evidence.comparable & np.isfinite(evidence.residual)
    error = float(np.sqrt(np.mean(evidence.residual[fine] ** 2))) if fine.any() else 0.0
    if again < MOST * error or error == 0:
        return None
    plainer = any(next(iter(cause(other).undo(evidence)), None) for other in ("precision", "dropout"))
    return None if plainer else (again, error)


def with_check(run: Run, name: str, first: np.ndarray, second: np.ndarray) -> Run:
    """The run with the distance of two scorings of the same tokens under `info["self_checks"]`."""
    difference = np.asarray(first, dtype=np.float64) - second
    sizes = {"mean_abs": float(np.abs(difference).mean()), "rms": float(np.sqrt(np.mean(difference**2)))}
    checks = {**run.info.get("self_checks", {}), name: {"tokens": len(difference), **sizes}}
    return replace(run, info={**run.info, "self_checks": checks})
