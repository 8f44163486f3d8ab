"""What the background writer makes of a step: a part of the run folder, and verl's pair of files."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged, is_torch, to_bool, to_numpy
from samepolicy.errors import InputError
from samepolicy.monitor.folders import Claim
from samepolicy.monitor.prob_diff import difference, save_pair
from samepolicy.records.arrow import from_header, header
from samepolicy.records.attempts import ATTEMPT
from samepolicy.records.merge import check_sides
from samepolicy.records.parts import HEADER
from samepolicy.records.parts import header as read_header
from samepolicy.records.places import Place
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.records.store import write as write_run


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step as the writer gets it, in host memory and nobody else's.

    Attributes:
        step: training step.
        attempt: when the monitor began, microseconds since 1970.
        batch: trainer, rollout, mask and offsets.
        columns: further columns of a run.
        sides: what rollout and trainer declare.
    """

    step: int
    attempt: int
    batch: Mapping[str, Any]
    columns: Mapping[str, Any]
    sides: tuple[Side, Side]


def snapshot(values: Mapping[str, Any]) -> dict[str, Any]:
    """Copies in host memory, since the trainer may reuse its tensors before they are written."""
    return {name: _copy(value) for name, value in values.items() if value is not None}


def write(step: Step, claims: Mapping[str, Claim]) -> None:
    """Write a step to each claimed folder; where one cannot be written the other still is.

    Raises:
        ExceptionGroup: why something was not written.
    """
    errors = []
    for kind, job in (("records", _write_part), ("npy", _write_pair)):
        if kind in claims:
            try:
                job(step, claims[kind])
            except Exception as error:
                errors.append(error)
    if errors:
        raise ExceptionGroup("not everything was written", errors)


def _write_part(step: Step, claim: Claim) -> None:
    """Append the step to the run folder; to the next one where it holds a run whose sides declare other things."""
    run = as_run(step)
    run = run.with_columns(**{ATTEMPT: np.full(len(run), step.attempt)})
    folder = claim.folder()
    while why := _unlike(folder, run):
        folder = claim.leave(why)
    write_run(run, folder, step=step.step)


def _unlike(folder: Path, run: Run) -> str:
    """How the sides of the run in a folder differ from those of another; empty where they do not, or none is there."""
    if not (folder / HEADER).exists():
        return ""
    held = from_header(read_header(Place.of(folder)), {})
    try:
        check_sides([held, from_header(header(run), {})])
    except InputError as error:
        return str(error)
    return ""


def _write_pair(step: Step, claim: Claim) -> None:
    """Write the two npy files."""
    b = step.batch
    if "offsets" in b:
        raise InputError("The npy files hold padded arrays, but this batch is packed")
    diff = difference(trainer=b["trainer"], rollout=b["rollout"], mask=b["mask"])
    save_pair(claim.folder(), diff, to_bool(b["mask"]), step=step.step)


def as_run(step: Step) -> Run:
    """The step as a run."""
    b, (rollout, trainer) = step.batch, step.sides
    sides: dict[str, Any] = {"rollout": rollout, "trainer": trainer}
    if "offsets" not in b:
        return Run.from_padded(
            mask=b["mask"], rollout_logp=b["rollout"], trainer_logp=b["trainer"], **sides, **step.columns
        )
    offsets = to_numpy(b["offsets"]).astype(np.int64)
    tokens = {"mask": b["mask"], "rollout_logp": b["rollout"], "trainer_logp": b["trainer"], **step.columns}
    return Run({name: _cut(value, offsets) for name, value in tokens.items()}, **sides)


def _cut(value: Any, offsets: np.ndarray) -> Any:
    """A packed column with its offsets; any other as it is."""
    if not hasattr(value, "shape") or value.shape[0] != offsets[-1] or value.shape[0] == len(offsets) - 1:
        return value
    return Ragged(to_numpy(value), offsets)


def _copy(value: Any) -> Any:
    """A copy in host memory; a tensor on a device is copied once, by the transfer."""
    if not is_torch(value):
        return copy(value) if isinstance(value, np.ndarray | list) else value
    held = value.detach()
    return held.clone() if held.device.type == "cpu" else held.cpu()
