"""Ragged batches for the oracles, with the awkward things in them that real ones have."""

import numpy as np


def batch(seed: int, rows: int = 6, time: int = 40, spread: float = 0.1, empty: bool = True) -> dict[str, np.ndarray]:
    """Trainer and rollout log-probs with gaps in the mask, NaN and huge values outside it, and one empty row."""
    rng = np.random.default_rng(seed)
    mask = np.arange(time) < rng.integers(1, time + 1, (rows, 1))
    mask &= rng.random((rows, time)) > 0.1
    mask[:, 0] = True
    if empty:
        mask[1] = False
    rollout = -rng.exponential(1.0, (rows, time))
    trainer = np.minimum(rollout + spread * rng.standard_normal((rows, time)), -1e-6)
    for side, junk in ((rollout, -1e10), (trainer, np.nan)):
        side[~mask] = np.where(rng.random((~mask).sum()) < 0.5, junk, 0.0)
    return {"trainer": trainer.astype(np.float32), "rollout": rollout.astype(np.float32), "mask": mask}
