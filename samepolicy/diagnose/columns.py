"""From a measured run to the evidence that causes are tested on: which column is to be explained, against what."""

from collections.abc import Iterator

import numpy as np

from samepolicy.causes import Evidence, Reference
from samepolicy.causes.target import Mode
from samepolicy.diagnose.measured import Measured
from samepolicy.floor import assumed, column
from samepolicy.records.align import align_all
from samepolicy.records.declared import dtype_of
from samepolicy.records.run import Run


def evidences(run: Run, m: Measured, reference: Reference) -> Iterator[Evidence]:
    """What is to be explained: each side that misses its declaration; else the declarations' difference.

    Args:
        run: the run as it was recorded, not aligned.
        m: what its columns show.
        reference: scores it under other settings.
    """
    if m.pairs is None or m.copy or not len(m.pairs.index):
        return
    if not m.floor.complete:
        yield of(run, m, reference, "pair")
        return
    missing = [side.name for side in m.sides if side.misses]
    for name in missing:
        yield of(run, m, reference, "rollout" if name == "rollout" else "trainer")
    apart = m.gap is not None and m.gap.place == "above"
    if apart and not missing:
        yield of(run, m, reference, "declared")


def of(run: Run, m: Measured, reference: Reference, mode: Mode) -> Evidence:
    """One piece of evidence; needs comparable tokens, and but for "pair" a measured floor."""
    assert m.pairs is not None
    index, prompt = _places(run)[m.pairs.index], np.zeros(int(run.offsets[-1]), dtype=np.int64)
    prompt[index] = m.pairs.prompt
    recorded, floor = _recorded(m, mode), _floor(m, mode)
    return Evidence(
        reference=reference,
        mode=mode,
        recorded=_spread(recorded, index, len(prompt)),
        floor=_spread(floor, index, len(prompt)),
        prompt=prompt,
        measured=mode != "pair",
    )


def _places(run: Run) -> np.ndarray:
    """For each token of the aligned run its index among the run's own response tokens."""
    if "trainer_response_ids" not in run:
        return np.arange(int(run.offsets[-1]))
    return align_all(run["response_ids"], run["trainer_response_ids"])[0]


def _recorded(m: Measured, mode: Mode) -> np.ndarray:
    """The column to explain, at the comparable tokens."""
    assert m.pairs is not None
    if mode == "rollout":
        return m.pairs.rollout
    if mode == "declared":
        found: np.ndarray = m.pairs.difference + column(m.run, "rollout_reference_logp")[m.pairs.index]
        return found
    return m.pairs.trainer


def _floor(m: Measured, mode: Mode) -> np.ndarray:
    """The rms of rounding, at the comparable tokens."""
    assert m.pairs is not None
    if mode == "pair":
        parts = [assumed(dtype_of(side), m.pairs.rollout) for side in (m.run.rollout, m.run.trainer)]
        return np.asarray(np.hypot(*parts))
    if mode == "declared":
        return np.asarray(np.sqrt(m.floor.pair_square(m.run)[m.pairs.index]))
    level = m.floor.rollout if mode == "rollout" else m.floor.trainer
    assert level is not None
    return level.at(column(m.run, f"{mode}_reference_logp")[m.pairs.index])


def _spread(values: np.ndarray, index: np.ndarray, tokens: int) -> np.ndarray:
    """Values of some tokens as a column, NaN elsewhere."""
    found = np.full(tokens, np.nan)
    found[index] = values
    return found
