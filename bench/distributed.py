"""What reducing a Summary over the ranks of a job adds to a step: 8 local processes on gloo."""

import multiprocessing
import tempfile
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from _publish import publish

RANKS, TOKENS, REPEATS = 8, 4096, 200


def summary_bytes(summary: Any) -> np.ndarray:
    """A summary as it travels."""
    from samepolicy.distributed import _pack

    return _pack(summary).view(np.uint8)


def work(rank: int, folder: str, found: Any) -> None:
    """One rank: measures its own tokens once, then reduces them again and again beside a barrier of the same group."""
    import torch
    import torch.distributed as dist

    from samepolicy import measure_batch
    from samepolicy.distributed import all_reduce

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS)
    rng = np.random.default_rng(rank)
    rollout = -rng.exponential(0.5, (8, TOKENS // 8))
    trainer = np.minimum(rollout + 0.03 * rng.standard_normal(rollout.shape), 0)
    summary = measure_batch(trainer=trainer, rollout=rollout, mask=np.ones(rollout.shape, dtype=bool))
    held = torch.from_numpy(summary_bytes(summary))
    rows = [torch.empty_like(held) for _ in range(RANKS)] if rank == 0 else None

    def bare() -> None:
        dist.gather(held, rows, dst=0)
        dist.broadcast(held, src=0)

    calls = {
        "a barrier": dist.barrier,
        "gather and broadcast of as many bytes": bare,
        "all_reduce of a Summary": lambda: all_reduce(summary),
    }
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(REPEATS + 1):
        for name, call in calls.items():
            dist.barrier()
            start = perf_counter()
            call()
            seconds[name].append(perf_counter() - start)
    if rank == 0:
        found.put({name: spent[1:] for name, spent in seconds.items()})
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Run and publish."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "torch.distributed", "samepolicy.distributed"])
    found = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=work, args=(r, folder, found), daemon=True) for r in range(RANKS)]
        for rank in ranks:
            rank.start()
        seconds = found.get(timeout=120)
        for rank in ranks:
            rank.join()
    rows = [
        {"call": name, "median ms": f"{1000 * median(spent):.2f}", "best ms": f"{1000 * min(spent):.2f}"}
        for name, spent in seconds.items()
    ]
    title = (
        f"Reducing a Summary with every metric over {RANKS} processes on one machine with "
        f"{multiprocessing.cpu_count()} cores, gloo, as rank 0 sees it; its time does not depend on the number of "
        "tokens. With fewer cores than processes a call waits for its turn: the best of all is nearer to what it takes."
    )
    publish("distributed", title, rows, packages=("torch",))


if __name__ == "__main__":
    main()
