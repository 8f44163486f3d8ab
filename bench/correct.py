"""A correction with its statistics against verl's own on one [512, 8192] batch: time as a ratio, and memory."""

from functools import partial
from statistics import median
from typing import Any

import torch
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask

from _batches import ROWS, TIME, batch
from _publish import interleaved, peak_mb, publish
from samepolicy import Correction

REPEATS = 15
MODES: dict[str, dict[str, Any]] = {
    "token weights": {"rollout_is": "token"},
    "sequence weights": {"rollout_is": "sequence"},
    "token weights, normalised": {"rollout_is": "token", "rollout_is_batch_normalize": True},
    "token weights, rejection by k3 of a sequence": {
        "rollout_is": "token",
        "rollout_rs": "seq_mean_k3",
        "rollout_rs_threshold": 0.05,
    },
}


def main() -> None:
    """Run and publish."""
    data = batch()
    mask = data["mask"].long()
    plain = {n: x.numpy() for n, x in data.items()}
    rows = []
    for mode, flags in MODES.items():
        correct = Correction.from_verl(**flags)

        def by_verl(flags: dict[str, Any] = flags) -> Any:
            return compute_rollout_correction_and_rejection_mask(data["trainer"], data["rollout"], mask, **flags)

        def ours(correct: Correction = correct) -> Any:
            return correct(**data).stats.as_dict()

        verl, mine = interleaved(REPEATS, by_verl, ours)
        held = peak_mb(partial(correct, **plain))
        rows.append(
            {
                "mode": mode,
                "verl ms": round(1000 * median(verl)),
                "samepolicy ms": round(1000 * median(mine)),
                "times faster": round(median(v / m for v, m in zip(verl, mine, strict=True)), 1),
                "arrays of the batch held": round(held * 1e6 / plain["trainer"].nbytes, 2),
            }
        )
    title = (
        f"Weights, mask and all statistics on [{ROWS}, {TIME}] float32 with {int(plain['mask'].sum()):,} valid tokens "
        f"and {torch.get_num_threads()} threads; both do verl's rule. Memory is what a call on NumPy arrays holds "
        "at most, weights and mask included, in float32 arrays of the batch's size."
    )
    publish("correct", title, rows, packages=("torch", "verl"))


if __name__ == "__main__":
    main()
