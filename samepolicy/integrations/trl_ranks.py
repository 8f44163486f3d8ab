"""What the ranks of a TRL run put together; with one rank everything is handed back as it is."""

import functools
import operator
from collections.abc import Mapping
from typing import Any

from samepolicy.arrays import to_numpy
from samepolicy.corrections import Stats

KEPT = (
    "prompt_ids",
    "prompt_mask",
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "advantages",
    "old_per_token_logps",
    "sampling_per_token_logps",
    "ref_per_token_logps",
    "weight",
)
"""Of a batch, what the monitor is given."""
LEFT = ("prompt_ids", "prompt_mask")
"""What is padded on the left."""


def least(accelerator: Any, mine: int) -> int:
    """The smallest number of all ranks."""
    if accelerator.num_processes == 1:
        return mine
    import torch

    return int(accelerator.gather(torch.tensor([mine], device=accelerator.device)).min())


def gathered(accelerator: Any, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The batch of all ranks, padded to one length; rows are in the order of the ranks, as TRL deals them out."""
    mine = {name: batch[name] for name in KEPT if batch.get(name) is not None}
    if accelerator.num_processes == 1:
        return mine
    for name, value in mine.items():
        if value.dim() == 2:
            mine[name] = accelerator.pad_across_processes(value, dim=1, pad_first=name in LEFT)
    return {name: accelerator.gather(value) for name, value in mine.items()}


def total(accelerator: Any, stats: Stats) -> Stats:
    """A correction's statistics of all ranks."""
    if accelerator.num_processes == 1:
        return stats
    from accelerate.utils import gather_object

    mine = Stats(to_numpy(stats.table), stats.fields, stats.masks)
    found: list[Stats] = gather_object([mine])
    return functools.reduce(operator.add, found)


def share(accelerator: Any, mask: Any, keep: Any) -> float:
    """The share of all ranks' sequences with tokens that keep none; NaN where a rank has no answer, or none has any."""
    import torch

    counts = torch.full((2,), float("nan"), device=accelerator.device)
    if mask is not None:
        filled = mask.bool().any(1)
        counts = torch.stack([(filled & ~keep.any(1)).sum(), filled.sum()]).float()
    lost, whole = accelerator.gather(counts).view(-1, 2).sum(0).tolist()
    return lost / whole if whole else float("nan")
