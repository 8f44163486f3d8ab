"""One side computes in a coarser number format than it declares."""

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
from numpy.random import Generator

from samepolicy.causes.base import Cause, Rung, Undone
from samepolicy.causes.evidence import Evidence
from samepolicy.causes.making import TOKENS, toy_run
from samepolicy.causes.settings import Settings
from samepolicy.floor.levels import level
from samepolicy.records.run import Run
from samepolicy.records.side import Sampling

COARSENESS = {"float32": 0, "float16": 1, "bfloat16": 2}
"""The formats from fine to coarse."""

OVERALL, BIN = (0.6, 1.7), (0.4, 2.5)
"""How far the seen error may be from the emulated one, as a ratio of rms: over all tokens, and in a bin."""

CENTRED = 0.25
"""Rounding is symmetric: its mean is at most this share of its rms."""

CAST = (0.7, 1.3)
"""Where rounding the weights alone moves log-probs, the seen error must hold that much of the move."""


class Precision(Cause):
    """One side computes in a coarser number format than it declares.

    What happens    The body, the head or the log-softmax runs in bfloat16 or float16 where float32 is declared.
    How it shows    Symmetric around 0, growing with 1 - p, flat over positions and prompts; its size is that of the
                    format (float16 is about 1/8 of bfloat16).
    How to confirm  Score the same ids in that format: the error has the same size in every bin of surprisal.
    How to fix      Declare what runs, or run the same format on both sides: float16 on both sides, or a float32 head on
                    both sides (never on one: that makes it worse). vLLM dtype; SGLang --dtype and
                    --enable-fp32-lm-head; verl actor.fsdp_config.dtype; TRL bf16/fp16; ms-swift --torch_dtype;
                    Megatron --fp16 or --bf16.
    References      Qi et al., Defeating the training-inference mismatch via FP16 (2025); MiniMax-M1 (fp32 head)
    """

    rung = Rung.NUMERICS
    proof = "size"
    cost = 3
    separate = "run both sides in float32 for one batch: the gap falls to 1e-5"
    reference: ClassVar[dict[str, str]] = {"dtype": "float32"}

    def undo(self, evidence: Evidence) -> Iterator[Undone]:
        """A coarser format whose rounding has the size and shape of what is left."""
        if evidence.mode not in ("rollout", "trainer"):
            return
        declared = evidence.reference.dtype(evidence.side)
        for dtype in sorted(COARSENESS, key=COARSENESS.__getitem__):
            if COARSENESS[dtype] > COARSENESS[declared]:
                yield from self._of(evidence, declared, dtype)

    def reproduce(self, rng: Generator) -> Run:
        """The rollout computes in bfloat16 and declares float32, as the trainer does."""
        run = toy_run(rng, trainer={"dtype": "float32"}, sampling=Sampling(max_tokens=TOKENS))
        return _declaring(run, "float32")

    def _of(self, evidence: Evidence, declared: str, dtype: str) -> Iterator[Undone]:
        """One format."""
        probe = evidence.probe
        exact = evidence.reference.logp(evidence.side, evidence.known, probe)
        coarse = evidence.reference.logp(
            evidence.side, evidence.known | Settings(dtype=dtype, weights_dtype=dtype), probe
        )
        seen, mask = evidence.residual, evidence.comparable
        mine, theirs = level(seen[mask], evidence.base[mask]), level(coarse - exact, exact)
        ratio = mine.overall / theirs.overall
        spread = mine.at(exact) / theirs.at(exact)
        centre = abs(float(np.mean(seen[mask]))) / mine.overall
        fits = OVERALL[0] <= ratio <= OVERALL[1] and BIN[0] <= spread.min() and spread.max() <= BIN[1]
        if fits and centre <= CENTRED and self._cast(evidence, dtype):
            yield Undone(
                parameters={"dtype": dtype, "declared": declared},
                sentence=(
                    f"the error against {declared} is {mine.overall:.2g} nats rms, {ratio:.2f} times what {dtype} "
                    f"makes here, between {spread.min():.2f} and {spread.max():.2f} times in every bin of "
                    f"surprisal, mean {np.mean(seen[mask]):+.1g}"
                ),
            )

    def _cast(self, evidence: Evidence, dtype: str) -> bool:
        """Whether the error holds the part that rounding the weights makes, which is the same in every engine."""
        moved = evidence.rescore(Settings(weights_dtype=dtype)) - evidence.base
        mask = evidence.comparable & np.isfinite(moved)
        moved, seen = moved[mask], evidence.residual[mask]
        if np.sqrt(np.mean(moved**2)) < 0.05 * np.sqrt(np.mean(seen**2)):
            return True
        slope = float(moved @ seen / (moved @ moved))
        error = float(seen.std() / np.sqrt(moved @ moved))
        return CAST[0] - 2 * error <= slope <= CAST[1] + 2 * error and slope > 2 * error


def _declaring(run: Run, dtype: str) -> Run:
    """The run whose rollout declares another dtype."""
    from dataclasses import replace

    return replace(run, rollout=replace(run.rollout, dtype=dtype))
