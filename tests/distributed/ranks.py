"""What the ranks of the distributed tests do: each in a process of its own, in groups of several sizes."""

import os
import pickle
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import numpy as np

SIZES = (1, 2, 3, 8)
COLLECTIVES = ("all_reduce", "all_gather", "all_gather_into_tensor", "gather", "reduce", "broadcast", "all_to_all")


def share(batch: dict[str, np.ndarray], rank: int, ranks: int) -> dict[str, np.ndarray]:
    """An uneven share of a batch's rows: rank 0 gets half of them, the last none (where there are three or more)."""
    cuts = {1: [1.0], 2: [0.5, 1.0]}.get(ranks) or [*np.linspace(0.5, 1.0, ranks - 1), 1.0]
    edges = [0, *(int(len(batch["mask"]) * c) for c in cuts)]
    return {name: column[edges[rank] : edges[rank + 1]] for name, column in batch.items()}


def work(rank: int, folder: str, batch: dict[str, np.ndarray]) -> None:
    """One rank: joins the world of eight, reduces in a group of each size, and leaves what it got in a file."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=SIZES[-1])
    found = {}
    for size in SIZES:
        group = dist.new_group(list(range(size)))
        if rank < size:
            found[size] = reductions(rank, size, group, batch)
    dist.barrier()
    dist.destroy_process_group()
    Path(folder, f"rank{rank}.pkl").write_bytes(pickle.dumps(found))
    os._exit(0)  # gloo's threads need no farewell


def reductions(rank: int, size: int, group: object, batch: dict[str, np.ndarray]) -> dict[str, object]:
    """All reductions of one rank in one group."""
    from samepolicy import Summary, measure_batch
    from samepolicy.distributed import all_reduce, everywhere, join

    mine = share(batch, rank, size)
    measured = measure_batch(**mine) if len(mine["mask"]) else Summary.empty()
    without = {n: c for n, c in batch.items() if n != "advantage"}
    some = measure_batch(**(batch if rank == size - 1 else without))  # only the last rank has advantages
    copies = measure_batch(**batch)  # every rank holds the same tokens
    return {
        "uneven": all_reduce(measured, group=group),
        "sent": sent(measured, group),
        "some": all_reduce(some, group=group),
        "copies": all_reduce(copies, group=group, counted=rank == size - 1),
        "everywhere": (everywhere(True, group=group), everywhere(rank != size - 1, group=group)),
        "joined": join(*piece(rank, size, zigzag=False), group=group),
        "zigzag": join(*piece(rank, size, zigzag=True), group=group, zigzag=True),
    }


def sent(summary: object, group: object) -> list[int]:
    """The bytes that this rank hands to each collective of one reduction."""
    import torch.distributed as dist

    from samepolicy.distributed import all_reduce

    with ExitStack() as stack:
        spies = [stack.enter_context(patch.object(dist, n, wraps=getattr(dist, n))) for n in COLLECTIVES]
        all_reduce(summary, group=group)
        return [call.args[0].nbytes for spy in spies for call in spy.call_args_list]


def whole(size: int) -> list[np.ndarray]:
    """Three sequences that 2·size pieces divide."""
    return [np.arange(2 * size * k, dtype=np.float64) + 100 * k for k in (1, 3, 0)]


def piece(rank: int, size: int, *, zigzag: bool) -> tuple[np.ndarray, np.ndarray]:
    """What one context parallel rank holds of them."""
    held = []
    for sequence in whole(size):
        parts = np.split(sequence, 2 * size)
        held.append(parts[rank] if zigzag else parts[2 * rank])
        held.append(parts[2 * size - 1 - rank] if zigzag else parts[2 * rank + 1])
    lengths = [len(held[i]) + len(held[i + 1]) for i in range(0, len(held), 2)]
    return np.concatenate(held), np.array(lengths)
