"""`measure_batch` against verl's three functions on one [512, 8192] batch: time, as a ratio, and memory."""

from statistics import median
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.trainer.ppo.rollout_corr_helper import (
    compute_offpolicy_metrics,
    compute_rollout_correction_and_rejection_mask,
)
from verl.utils.debug.metrics import calculate_debug_metrics

from _batches import ROWS, TIME, batch
from _publish import interleaved, peak_mb, publish
from samepolicy import measure_batch
from samepolicy.arrays import Ragged
from samepolicy.metrics.position import position_curve

REPEATS = 15


def by_verl(data: dict[str, torch.Tensor]) -> Any:
    """A call of verl's three functions on the batch, as its trainer makes them."""
    mask = data["mask"].long()
    proto = DataProto.from_dict(
        tensors={
            "old_log_probs": data["trainer"],
            "rollout_log_probs": data["rollout"],
            "response_mask": mask,
            "responses": mask,
        }
    )

    def call() -> None:
        calculate_debug_metrics(proto)
        compute_offpolicy_metrics(data["trainer"], data["rollout"], mask)
        compute_rollout_correction_and_rejection_mask(
            data["trainer"], data["rollout"], mask, rollout_is="token", rollout_is_threshold=2.0
        )

    return call


def main() -> None:
    """Run and publish."""
    data = batch()
    plain = {n: x.numpy() for n, x in data.items()}
    lengths = np.full(ROWS, TIME)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    gap = Ragged(np.abs(plain["trainer"] - plain["rollout"]).ravel(), offsets)
    flags = Ragged(plain["mask"].ravel(), offsets)
    calls = {
        "verl's three functions": by_verl(data),
        "measure_batch, torch": lambda: measure_batch(**data),
        "measure_batch, NumPy": lambda: measure_batch(**plain),
        "one curve by position": lambda: position_curve(gap, flags),
    }
    seconds = interleaved(REPEATS, *calls.values())
    verl = seconds[0]
    rows = [
        {
            "call": name,
            "median ms": round(1000 * median(found)),
            "times faster than verl": round(median(v / s for v, s in zip(verl, found, strict=True)), 1),
        }
        for name, found in zip(calls, seconds, strict=True)
    ]
    input_mb = sum(x.nbytes for x in plain.values()) / 1e6
    used = peak_mb(calls["measure_batch, torch"])
    title = (
        f"Every metric that needs only log-probs and mask, with quantiles, on [{ROWS}, {TIME}] float32 with "
        f"{int(plain['mask'].sum()):,} valid tokens and {torch.get_num_threads()} threads. `measure_batch` holds "
        f"{used:.1f} MB beside its input of {input_mb:.1f} MB ({used / input_mb:.0%})."
    )
    publish("measure", title, rows, packages=("torch", "verl"))


if __name__ == "__main__":
    main()
