"""Ragged batches for corrections: extreme ratios, an empty row, gaps in the mask, and junk outside it."""

import numpy as np


def correction_batch(seed: int, *, rows: int = 8, time: int = 12, spread: float = 0.4, junk: float = 0.0) -> dict:
    """Trainer, rollout and current log-probs, mask, advantages per sequence, and turns; float64.

    Args:
        seed: of the random numbers.
        rows: sequences; the second is empty, the last has ratios of e^±30, the one before it agrees exactly.
        time: places.
        spread: standard deviation of the log-ratio.
        junk: what the trainer's and the rollout's log-probs are outside the mask (the rollout's with a minus).
    """
    rng = np.random.default_rng(seed)
    mask = np.arange(time) < rng.integers(2, time + 1, (rows, 1))
    mask &= rng.random((rows, time)) > 0.15
    mask[:, 0], mask[1], mask[-1, :3] = True, False, True
    rollout = -rng.exponential(1.0, (rows, time)) - 0.5
    trainer = np.minimum(rollout + spread * rng.standard_normal((rows, time)), -1e-6)
    trainer[-2] = rollout[-2]
    trainer[-1, 1], rollout[-1, 1] = -0.5, -30.5
    trainer[-1, 2], rollout[-1, 2] = -30.5, -0.5
    current = trainer + 0.2 * rng.standard_normal((rows, time))
    for column, sign in ((trainer, 1), (rollout, -1), (current, 1)):
        column[~mask] = sign * junk
    turn = np.cumsum(rng.random((rows, time)) < 0.2, axis=1)
    advantage = rng.standard_normal(rows)
    return {
        "trainer": trainer,
        "rollout": rollout,
        "current": current,
        "mask": mask,
        "advantage": advantage,
        "turn": turn,
    }
