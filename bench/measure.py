"""`measure_batch` against verl's three functions on one [512, 8192] batch: time, as a ratio, and memory."""

import json
import subprocess
import sys
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

REPEATS, PROCESSES = 9, 9
VERL = "verl's three functions"


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


def once() -> dict[str, Any]:
    """Milliseconds of each call in this process, and what `measure_batch` holds, MB."""
    data = batch()
    plain = {n: x.numpy() for n, x in data.items()}
    offsets = np.arange(ROWS + 1) * TIME
    gap = Ragged(np.abs(plain["trainer"] - plain["rollout"]).ravel(), offsets)
    flags = Ragged(plain["mask"].ravel(), offsets)
    calls = {
        VERL: by_verl(data),
        "measure_batch, torch": lambda: measure_batch(**data),
        "measure_batch, NumPy": lambda: measure_batch(**plain),
        "one curve by position": lambda: position_curve(gap, flags),
    }
    seconds = interleaved(REPEATS, *calls.values())
    return {
        "ms": {name: 1000 * median(found) for name, found in zip(calls, seconds, strict=True)},
        "held": peak_mb(calls["measure_batch, torch"]),
        "input": sum(x.nbytes for x in plain.values()) / 1e6,
        "tokens": int(plain["mask"].sum()),
    }


def main() -> None:
    """Run in several processes and publish."""
    if sys.argv[1:] == ["--once"]:
        print(json.dumps(once()))
        return
    found = [json.loads(subprocess.check_output([sys.executable, __file__, "--once"])) for _ in range(PROCESSES)]
    rows = []
    for name in found[0]["ms"]:
        ratios = sorted(f["ms"][VERL] / f["ms"][name] for f in found)
        times = sorted(f["ms"][name] for f in found)
        rows.append(
            {
                "call": name,
                "median ms": round(median(times)),
                "least to most": f"{times[0]:.0f} to {times[-1]:.0f}",
                "times faster than verl, median": f"{median(ratios):.1f}",
                "least to most ": f"{ratios[0]:.1f} to {ratios[-1]:.1f}",
            }
        )
    held, given = found[0]["held"], found[0]["input"]
    title = (
        f"Every metric that needs only log-probs and mask, with quantiles, on [{ROWS}, {TIME}] float32 with "
        f"{found[0]['tokens']:,} valid tokens and {torch.get_num_threads()} threads, in {PROCESSES} fresh processes. "
        f"`measure_batch` holds {held:.1f} MB beside its input of {given:.1f} MB ({held / given:.0%}). verl's time has "
        "two modes, one process keeping to either: whether the C library gives the memory of large temporary tensors "
        "back to the system after each call, and has to fault it in again."
    )
    publish("measure", title, rows, packages=("torch", "verl"))


if __name__ == "__main__":
    main()
