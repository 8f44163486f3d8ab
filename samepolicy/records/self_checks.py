"""An engine against itself: distances between two scorings of the same tokens, kept in a run's `info`."""

import json
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from samepolicy.arrays import Array, Ragged, to_numpy
from samepolicy.errors import InputError, ShapeError
from samepolicy.records.run import Run

SELF_CHECKS: Mapping[str, str] = {
    "trainer_alone": "the trainer's scores of some sequences one by one, against those in its batch",
    "rollout_prefill": "what the rollout engine recorded while decoding, against its own prefill of the same ids",
    "rollout_woken": "the rollout engine before and after one sleep and wake (or reload), with no update between",
}
"""What can be compared, by the name that it is kept under."""


def self_check(run: Run, name: str, *, first: Ragged | Array, second: Ragged | Array) -> Run:
    """Keep how far an engine is from itself, so that a diagnosis can tell an engine's own noise from a gap.

    `samepolicy check` makes `trainer_alone` and `rollout_prefill` by itself. What only your training can make, such as
    a sleep and a wake of the rollout engine, is given with this.

    Args:
        run: a run.
        name: what was compared: "trainer_alone", "rollout_prefill" or "rollout_woken".
        first: log-probs of some tokens, nats, float [tokens], or one row a response.
        second: log-probs of the same tokens by the same engine, scored another time or in another way.

    Returns:
        The run with the distance under `info["self_checks"][name]`.

    Raises:
        InputError: there is no check of that name.
        ShapeError: the two are not of the same tokens.

    >>> run = Run.from_lists(rollout_logp=[[-1.0, -0.5]])
    >>> woken = self_check(run, "rollout_woken", first=np.array([-1.0, -0.5]), second=np.array([-1.0, -0.9]))
    >>> round(woken.info["self_checks"]["rollout_woken"]["mean_abs"], 3)
    0.2
    """
    if name not in SELF_CHECKS:
        raise InputError(f"There is no self-check {name!r}; it can be {', '.join(SELF_CHECKS)}.")
    one, other = (_packed(values) for values in (first, second))
    if one.shape != other.shape:
        raise ShapeError(f"Both scorings must be of the same tokens, but they hold {one.size} and {other.size}.")
    checks = {**self_checks(run), name: _distance(one, other)}
    return replace(run, info={**run.info, "self_checks": checks})


def self_checks(run: Run) -> Mapping[str, Any]:
    """All that a run keeps, by name; what is no distance, as `self_check` makes it, is left out."""
    found = run.info.get("self_checks")
    return {name: kept for name, kept in found.items() if _is_distance(kept)} if isinstance(found, Mapping) else {}


def rms(run: Run, name: str) -> float | None:
    """The rms distance that a run keeps under that name, nats; None where it was not measured."""
    value = self_checks(run).get(name, {}).get("rms")
    return None if value is None else float(value)


def _is_distance(kept: Any) -> bool:
    """Whether it holds the two sizes of a distance, numbers or None, and nothing that JSON has not."""
    try:
        sizes = [kept["mean_abs"], kept["rms"]]
        json.dumps(kept, allow_nan=False)
        return all(size is None or isfinite(size) for size in sizes)
    except (KeyError, TypeError, ValueError, OverflowError):
        return False


def _distance(first: np.ndarray, second: np.ndarray) -> dict[str, Any]:
    """Mean abs and rms difference of two scorings, nats; None where no token is finite."""
    difference = first - second
    difference = difference[np.isfinite(difference)]
    if not len(difference):
        return {"tokens": 0, "mean_abs": None, "rms": None}
    largest = max(float(np.abs(difference).max()), np.finfo(np.float64).tiny)  # its square may be no number
    size = largest * float(np.sqrt(np.mean((difference / largest) ** 2)))
    sizes = {"mean_abs": float(np.abs(difference).mean()), "rms": size}
    return {"tokens": len(difference), **sizes}


def _packed(values: Ragged | Array) -> np.ndarray:
    """The values in one row."""
    try:
        return np.asarray(to_numpy(values.values if isinstance(values, Ragged) else values), np.float64).ravel()
    except (TypeError, ValueError) as error:
        raise InputError(f"A scoring is a Ragged or an array of numbers, one a token ({error}).") from error
