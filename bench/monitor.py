"""What a monitor costs the training thread per step on a [512, 8192] batch, beside the naive way."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import torch
from verl import DataProto
from verl.utils.debug.metrics import calculate_debug_metrics

from _batches import ROWS, TIME, batch
from _publish import publish
from samepolicy import Monitor

STEPS = 7


def naive(data: dict[str, torch.Tensor], folder: Path, step: int, *, save: bool) -> dict[str, float]:
    """verl's aggregates, an `.item()` per cell, and a save that training waits for."""
    mask = data["mask"].long()
    names = {"old_log_probs": data["trainer"], "rollout_log_probs": data["rollout"]}
    found: dict[str, float] = calculate_debug_metrics(
        DataProto.from_dict(tensors=names | {"response_mask": mask, "responses": mask})
    )
    diff = (data["rollout"].exp() - data["trainer"].exp()).abs() * mask
    for s in range(8):
        for p in range(10):
            if mask[s, p].item():
                found[f"training/rollout_probs_diff/s{s}_p{p:04d}"] = diff[s, p].item()
    if save:
        np.save(folder / f"prob_diff_step_{step}.npy", diff.numpy())
        np.save(folder / f"prob_mask_step_{step}.npy", data["mask"].numpy())
    return found


def _step(monitor: Monitor, data: dict[str, torch.Tensor], step: int) -> None:
    """The same by a monitor."""
    monitor(step=step, **data)


def seconds(call: Callable[[int], Any], between: Callable[[], Any]) -> float:
    """Median time of a step; `between` is what a trainer's optimizer step leaves time for."""
    times = []
    for step in range(STEPS):
        start = perf_counter()
        call(step)
        times.append(perf_counter() - start)
        between()
    return median(times[1:])


def main() -> None:
    """Run and publish."""
    data = batch()
    rows = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for what, save in (("metrics and grid", False), ("the same, npy and records", True)):
            slow = seconds(partial(naive, data, folder, save=save), lambda: None)
            told = what.removesuffix(" and records")
            rows.append({"call": f"naive: verl's, {told}", "median ms": round(1000 * slow)})
            for names in ("verl", "samepolicy"):
                folders = {"save_dir": f"run-{names}", "npy_dir": f"npy-{names}"} if save else {}
                kept: dict[str, Any] = {kind: folder / where for kind, where in folders.items()}
                with Monitor(names=names, **kept) as monitor:
                    spent = seconds(partial(_step, monitor, data), monitor.flush)
                rows.append({"call": f'Monitor(names="{names}"), {what}', "median ms": round(1000 * spent)})
    title = (
        f"One step on [{ROWS}, {TIME}] float32 with {int(data['mask'].sum()):,} valid tokens, {os.cpu_count()} cores: "
        "time on the training thread; what the monitor writes in the background overlaps with what training does next."
    )
    publish("monitor", title, rows, packages=("torch", "verl"))


if __name__ == "__main__":
    main()
