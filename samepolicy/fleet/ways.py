"""Ways to have a task done on every shard: in turn in this process, or in several processes of this machine.

A way yields the number and the result of each shard, in any order. It is a function, so that another one (a cluster)
can stand in its place without anything here knowing of it.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import islice
from typing import TypeAlias

from samepolicy.errors import SamePolicyError
from samepolicy.fleet.measured import Measured, Task
from samepolicy.records.shards import Shard

Numbered: TypeAlias = Sequence[tuple[int, Shard]]
Way: TypeAlias = Callable[[Task, Numbered], Iterator[tuple[int, Measured]]]
"""Called with a task and numbered shards; yields each number with what the task found."""

AHEAD = 2
"""Shards that wait for each worker, so that none is idle."""
_TASK: list[Task] = []
"""What this worker process does; empty anywhere else."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_turn(task: Task, shards: Numbered) -> Iterator[tuple[int, Measured]]:
    """One after another, in this process."""
    for number, shard in shards:
        yield number, task(shard)


def processes(workers: int) -> Way:
    """In worker processes that keep one core busy each; with one worker that is this process itself.

    New processes import the main module again, so a script calls this below `if __name__ == "__main__":`.

    Args:
        workers: how many, 1 or more; never more than there are shards.
    """

    def alone(task: Task, shards: Numbered) -> Iterator[tuple[int, Measured]]:
        for number, shard in shards:
            with one_core():
                found = task(shard)
            yield number, found

    def spread(task: Task, shards: Numbered) -> Iterator[tuple[int, Measured]]:
        context = multiprocessing.get_context("spawn")
        hands = max(1, min(workers, len(shards)))
        pool = ProcessPoolExecutor(hands, mp_context=context, initializer=_begin, initargs=(task,))
        try:
            yield from _windowed(pool, hands, shards)
        except BrokenProcessPool as error:
            raise SamePolicyError(
                "A worker process died before its shard was measured, most often for lack of memory; run again with "
                "fewer workers (--resume FILE keeps what is done), and in a script below `if __name__ == '__main__':`."
            ) from error
        finally:
            pool.shutdown(cancel_futures=True)

    return alone if workers == 1 else spread


def _windowed(
    pool: ProcessPoolExecutor, workers: int, shards: Iterable[tuple[int, Shard]]
) -> Iterator[tuple[int, Measured]]:
    """Submit a few shards ahead of what is done, so that neither tasks nor results pile up."""
    left = iter(shards)
    waiting: dict[Future[Measured], int] = {}
    while True:
        for number, shard in islice(left, max(0, AHEAD * workers - len(waiting))):
            waiting[pool.submit(_work, shard)] = number
        if not waiting:
            return
        for future in wait(waiting, return_when=FIRST_COMPLETED).done:
            yield waiting.pop(future), future.result()


def _begin(task: Task) -> None:
    """Prepare a worker process: it leaves interrupts to its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _TASK[:] = [task]


def _work(shard: Shard) -> Measured:
    """Do the worker's task, on one core."""
    with one_core():
        return _TASK[0](shard)


@contextmanager
def one_core() -> Iterator[None]:
    """Have this process decompress on one thread; it computes on one anyway."""
    import pyarrow as pa

    before = pa.cpu_count()
    try:
        pa.set_cpu_count(1)
        yield
    finally:
        pa.set_cpu_count(before)
