"""Ray: the shards of a run measured by the workers of a cluster. Nothing below this file knows of Ray.

Each shard is one Ray task. A task whose worker dies is run again, elsewhere if need be, a few times and not for ever;
a result arrives once however often its task was tried; and only results of a few ten kilobytes travel. Workers open the
files themselves, so a run must be at the same path or URL on all machines.
"""

import logging
import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from samepolicy.errors import InputError, MissingDependencyError, SamePolicyError
from samepolicy.fleet import Measured, Task, Way
from samepolicy.fleet.ways import AHEAD, Numbered, one_core
from samepolicy.records.shards import Shard

RETRIES = 3
"""How often a shard is tried again after its worker died."""
PATIENCE = 5.0
"""Seconds that a cluster may take to answer; Ray itself would wait for minutes."""


def cluster(workers: int | None = None, *, address: str | None = None) -> Way:
    """A way to spread shards: over the workers of a Ray cluster.

    Args:
        workers: tasks at a time, each with one CPU; None keeps all CPUs of the cluster busy.
        address: of the cluster. None takes the one this process is connected to, else that of `RAY_ADDRESS`, else one
            that runs on this machine, else starts one here and stops it at the end.

    Returns:
        What `Plan.run` takes.

    Raises:
        MissingDependencyError: Ray is not installed.
    """
    try:
        import ray  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Spreading over a cluster needs Ray, which is not installed; pip install 'samepolicy[ray]'."
        ) from error

    def spread(task: Task, shards: Numbered) -> Iterator[tuple[int, Measured]]:
        with _connected(address):
            yield from _each(task, shards, workers)

    return spread


def _each(task: Task, shards: Numbered, workers: int | None) -> Iterator[tuple[int, Measured]]:
    """The result of each shard as it comes; no more tasks are handed out than keep the workers busy.

    Raises:
        SamePolicyError: what a shard raised, or that its workers kept dying.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    remote = ray.remote(num_cpus=1, max_retries=RETRIES)(_work)
    left, waiting = iter(shards), dict[Any, tuple[int, Shard]]()
    while True:
        ahead = min(workers or AHEAD * int(ray.cluster_resources().get("CPU", 1)), len(shards))
        for number, shard in islice(left, max(0, ahead - len(waiting))):
            waiting[remote.remote(task, shard)] = number, shard
        if not waiting:
            return
        for ready in ray.wait([*waiting], num_returns=1)[0]:
            number, shard = waiting.pop(ready)
            try:
                found: Measured = ray.get(ready)
            except RayTaskError as error:
                raise error.cause from error
            except RayError as error:
                raise SamePolicyError(
                    f"Ray gave up on {shard} after {RETRIES} retries ({_first_line(error)}); its workers may lack "
                    "memory: look at the cluster's logs (--resume FILE keeps what is done)."
                ) from error
            yield number, found


def _work(task: Task, shard: Shard) -> Measured:
    """What a worker does: a task on one core."""
    with one_core():
        return task(shard)


@contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """A quiet connection to a cluster, ended if it was made here.

    Raises:
        InputError: there is no cluster at the address.
    """
    import ray

    mine = not ray.is_initialized()
    if mine:
        _check_answers(address or os.environ.get("RAY_ADDRESS", ""))
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise _unreached(address or "a cluster", error) from error
    try:
        yield
    finally:
        if mine:
            ray.shutdown()


def _check_answers(address: str) -> None:
    """Refuse an address with a port at which nothing listens.

    Raises:
        InputError: nothing answers there.
    """
    found = re.fullmatch(r"(?:\w+://)?\[?([^/]+?)\]?:(\d+)", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise _unreached(address, error) from error


def _unreached(address: str, error: Exception) -> InputError:
    """The sentence for a cluster that is not there."""
    why = _first_line(error)
    return InputError(f"Ray did not connect to {address} ({why}); check its address (RAY_ADDRESS) and that it runs.")


def _first_line(error: Exception) -> str:
    """What an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
