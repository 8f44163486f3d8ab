"""Parts of a run whose values are told by step, sample and seed."""

import numpy as np

import samepolicy as sp


def part(step: int, *, samples: tuple[int, ...] = (0, 1, 2), seed: int = 0, **columns: object) -> sp.Run:
    """Responses of one step; the same samples and seed give the same values."""
    rows = [np.random.default_rng((step, s, seed)).normal(-1, 0.1, 5 + s).astype(np.float32) for s in samples]
    ends = ["stop" if s % 2 else "length" for s in samples]
    return sp.Run.from_lists(
        rollout_logp=rows,
        trainer_logp=rows,
        sample=list(samples),
        finish_reason=ends,
        step=[step] * len(samples),
        **columns,
    )
