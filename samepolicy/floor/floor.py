"""The floor of a run from its evidence columns; pure arithmetic, no model."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from samepolicy.errors import InputError
from samepolicy.floor.evidence import apart, column, evidence_names
from samepolicy.floor.levels import Level, level
from samepolicy.records.declared import DTYPES, dtype_of
from samepolicy.records.run import Run
from samepolicy.records.side import Side


@dataclass(frozen=True)
class Floor:
    """The rounding floor of each side and of the pair.

    Attributes:
        rollout: rms of the rollout's declared dtype against float32; None where it could not be measured.
        trainer: the same for the trainer.
        cast: rms between the two sides' weights, each cast to its own dtype, in float32; None where the dtypes are one.
        missing: why a side's floor could not be measured, in sentences without a final stop.
    """

    rollout: Level | None = None
    trainer: Level | None = None
    cast: Level | None = None
    missing: tuple[str, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether both sides' floors are known, so that the pair has one."""
        return self.rollout is not None and self.trainer is not None

    def pair_square(self, run: Run) -> Float[np.ndarray, " tokens"]:
        """The square of the pair's floor of each token: e_R² + e_T² + e_cast², nats² [tokens].

        An upper bound where the two sides' errors correlate. NaN where a reference log-prob is NaN.
        """
        if self.rollout is None or self.trainer is None:
            raise InputError(f"The floor is not known, since {' and '.join(self.missing)}; add_evidence measures it.")
        rollout = column(run, "rollout_reference_logp")
        square: np.ndarray = self.rollout.at(rollout) ** 2 + self.trainer.at(column(run, "trainer_reference_logp")) ** 2
        return square if self.cast is None else square + self.cast.at(rollout) ** 2

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a level that was not measured is null."""
        levels = {"rollout": self.rollout, "trainer": self.trainer, "cast": self.cast}
        return {name: level and level.as_dict() for name, level in levels.items()} | {"missing": list(self.missing)}

    def __str__(self) -> str:
        """Each side's overall level."""
        if not self.complete:
            return f"floor not known: {'; '.join(self.missing)}"
        levels = {"rollout": self.rollout, "trainer": self.trainer, "cast": self.cast}
        return "floor: " + ", ".join(f"{n} {level.overall:.2g}" for n, level in levels.items() if level) + " nats rms"


def measure(run: Run) -> Floor:
    """Measure the floor from the evidence columns of a run; pure arithmetic, no model.

    e(bin) = rms of (declared dtype - float32) over the tokens under the mask whose surprisal -S falls in the bin, never
    below `SMALLEST`. Values that are not finite are left out.

    Args:
        run: a run with the columns that `add_evidence` writes.

    Returns:
        The floor; a side whose columns are not there is None, with the reason in `missing`.
    """
    rollout, trainer = (_side_level(run, name) for name in ("rollout", "trainer"))
    levels = {"rollout": rollout, "trainer": trainer}
    reasons = tuple(_missing(run, name) for name, level in levels.items() if level is None)
    two = dtype_of(run.rollout) != dtype_of(run.trainer)
    cast = _cast_level(run) if two and rollout and trainer else None
    return Floor(rollout=rollout, trainer=trainer, cast=cast, missing=reasons)


def _missing(run: Run, side: str) -> str:
    """Why a side's floor is not known."""
    if all(name in run for name in evidence_names(side)):
        return f"no token under the mask has both reference log-probs of the {side}"
    declared: Side = getattr(run, side)
    dtype = dtype_of(declared)
    if dtype is None:
        return f"the {side}'s dtype is not declared"
    if dtype not in DTYPES:
        return f"the {side}'s dtype {dtype} cannot be emulated (only {', '.join(DTYPES)})"
    return f"the {side}'s {dtype} was not scored by a reference engine"


def _side_level(run: Run, side: str) -> Level | None:
    """The floor of one side, or None where its columns are not there or hold no number."""
    reference, rounded = evidence_names(side)
    if reference not in run or rounded not in run:
        return None
    mask = run.mask.values
    found = level(apart(run, rounded, reference)[mask], column(run, reference)[mask])
    return found if sum(found.tokens) else None


def _cast_level(run: Run) -> Level:
    """How far apart the two sides' weights are once cast, by the rollout's surprisal."""
    mask, reference = run.mask.values, "rollout_reference_logp"
    other = "cast_reference_logp" if "cast_reference_logp" in run else "trainer_reference_logp"
    return level(apart(run, other, reference)[mask], column(run, reference)[mask], smallest=0.0)
