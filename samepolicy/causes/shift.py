"""One side's log-probs stand a few places off."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import toy_run
from samepolicy.causes.reference import Reference
from samepolicy.causes.settings import ArrayStep, Settings
from samepolicy.causes.unavailable import Unavailable
from samepolicy.engines.layout import Layout
from samepolicy.records.run import Run

LAGS = tuple(lag for lag in range(-8, 9) if lag)
PACKS = (2, 3, 4, 6, 8, 16)


@dataclass(frozen=True)
class Moved(ArrayStep):
    """Every value is that of the token `lag` places later in its response, `grow` more for each row of a pack."""

    order: ClassVar[int] = Rung.SHIFT.order
    lag: int
    grow: int = 0
    pack: int = 1

    def apply(self, predicted: np.ndarray, reference: Reference) -> np.ndarray:
        """The moved column; NaN where the partner lies outside of the response."""
        there, inside = self._partners(reference.run)
        return np.where(inside, predicted[np.clip(there, 0, len(predicted) - 1)], np.nan)

    def void(self, reference: Reference) -> np.ndarray:
        """The tokens whose partner lies outside of the response."""
        return np.flatnonzero(~self._partners(reference.run)[1])

    def _partners(self, run: Run) -> tuple[Int[np.ndarray, " tokens"], Bool[np.ndarray, " tokens"]]:
        """Which token's value each token holds, and whether that lies in its response."""
        row = np.repeat(np.arange(len(run)), run.lengths)
        there = np.arange(len(row)) + self.lag + self.grow * (row % self.pack)
        return there, (there >= run.offsets[row]) & (there < run.offsets[row + 1])


class Shift(Cause):
    """One side's log-probs are shifted against the tokens.

    What happens    The log-probs of a response are paired with other tokens than their own: the slice of logits begins
                    at m instead of m-1, labels are shifted twice, or in packed rows by one more for each sample.
    How it shows    Both series look healthy by themselves, their correlation jumps at a lag; the mean ratio is about 3.
    How to confirm  Compare T[i] with R[i + lag] for small lags; print one response with both columns.
    How to fix      Read response token i of a prompt of m tokens from the logits at position m-1+i, so take
                    logits[m-1 : m-1+n]. Hugging Face: labels are shifted inside the model, do not shift them again.
                    verl, ms-swift, Megatron: with packed rows cut by cu_seqlens before shifting, not after.
    References      spec of teacher-forced scoring: log π(y_t | x, y_<t)
    """

    rung = Rung.SHIFT
    cost = 0
    separate = "print token ids and both log-prob columns of one short response side by side"

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """The best constant lag, the best lag that grows over packed rows, and the logits read a place off."""
        constant = evidence.best(Settings(arrays=(Moved(lag),)) for lag in LAGS)
        yield self._moved(constant)
        growing = evidence.best(Settings(arrays=(Moved(0, grow, pack),)) for grow in (-1, 1) for pack in PACKS)
        if evidence.error(growing) < evidence.error(constant):
            yield self._moved(growing)
        if evidence.gain(constant) < 0.5:
            yield from self._late(evidence)

    def reproduce(self, rng: Generator) -> Run:
        """The trainer's column is one token late."""
        return toy_run(rng, trainer={"shift": 1})

    def _moved(self, settings: Settings) -> Undone:
        """A moved column."""
        (step,) = settings.arrays
        assert isinstance(step, Moved)
        parameters = (
            {"lag": step.lag} if not step.grow else {"lag_per_sample": step.grow, "samples_per_pack": step.pack}
        )
        what = f"{step.lag:+d} places" if not step.grow else f"{step.grow:+d} more for each sample of a pack"
        return Undone(settings=settings, parameters=parameters, sentence=f"the column fits moved by {what}")

    def _late(self, evidence: Evidence) -> Iterator[Undone]:
        """Logits of another place than the one before the token."""
        try:
            best = evidence.best(Settings(layout=Layout(late=late)) for late in (1, -1))
        except Unavailable:
            return
        assert best.layout is not None
        late = best.layout.late
        yield Undone(
            settings=best,
            parameters={"logits_late_by": late},
            sentence=f"the values are those of the logits {late:+d} place from where the token is predicted",
        )
