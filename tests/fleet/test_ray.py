"""A run measured on a real Ray: the bits of one process, also where workers are killed in the middle."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import samepolicy as sp
from samepolicy.errors import CorruptFileError, InputError, SamePolicyError
from samepolicy.fleet import Measured, Task, in_turn, plan_of
from samepolicy.integrations.ray import RETRIES, cluster
from samepolicy.records.shards import Shard
from tests.fleet.folders import bits, deadly, write
from tests.records.test_reading import spoil

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("ray")]


@pytest.fixture(scope="module")
def ray() -> Iterator[object]:
    """A local Ray with three workers, which find this module as the driver does."""
    import ray

    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {"env_vars": {"PYTHONPATH": paths}}
    ray.init("local", num_cpus=3, include_dashboard=False, log_to_driver=False, runtime_env=environment)
    yield ray
    ray.shutdown()


@dataclass(frozen=True)
class Slow(Task):
    """A task that says which process it runs in, and takes its time."""

    folder: str = ""

    def __call__(self, shard: Shard) -> Measured:
        Path(self.folder, f"{os.getpid()}-{shard.piece.place.local.stem}").touch()
        time.sleep(0.3)
        return super().__call__(shard)


@dataclass(frozen=True)
class Fatal(Task):
    """A task that kills its process at one shard, always."""

    def __call__(self, shard: Shard) -> Measured:
        if "part-00000004" in str(shard):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(shard)


def kill_one(folder: Path, killed: list[int]) -> None:
    """Kill the first process that has begun a second shard."""
    while not killed:
        begun = [int(file.name.partition("-")[0]) for file in folder.iterdir()]
        killed += [pid for pid in set(begun) if begun.count(pid) > 1][:1]
        time.sleep(0.02)
    os.kill(killed[0], signal.SIGKILL)


def test_a_shard_whose_worker_dies_is_counted_once(ray: object, tmp_path: Path):
    plan, marker = plan_of(write(tmp_path / "run", steps=4), by="step"), tmp_path / "marker"
    found = deadly(plan, victim="part-00000001-000000.parquet", marker=marker).run(cluster())
    assert bits(found) == bits(plan.run(in_turn))
    begun = [line.rpartition("-")[0].rpartition("-")[2] for line in marker.read_text().splitlines()]
    assert sorted(begun) == ["00000000", "00000001", "00000001", "00000002", "00000003"]


def test_an_error_of_a_worker_arrives_as_it_was_raised(ray: object, tmp_path: Path):
    folder = write(tmp_path / "run", steps=3)
    spoil(folder / "part-00000001-000000.parquet")
    with pytest.raises(CorruptFileError, match=r"part-00000001-000000\.parquet is truncated or damaged"):
        plan_of(folder).run(cluster(2))
    said: list[CorruptFileError] = []
    plan = plan_of(folder, on_bad=said.append)
    assert bits(plan.run(cluster(2))) == bits(plan.run(in_turn))
    assert len(said) == 2


def test_a_cluster_that_is_not_there_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import ray

    plan = plan_of(write(tmp_path / "run", steps=1))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)

    def refused(*_: object, **__: object) -> None:
        raise ConnectionError("no cluster there\nmore")

    monkeypatch.setattr(ray, "init", refused)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(InputError, match=rf"did not connect to {address} \(no cluster there\); check"):
            plan.run(cluster(address=address))
    for way in (cluster(address=address), cluster(address=f"ray://{address}"), cluster(address="[::1]:99999")):
        with pytest.raises(InputError, match=r"did not connect to .* and that it runs\."):
            plan.run(way)
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(InputError, match=f"did not connect to {address}"):
        plan.run(cluster())


@pytest.mark.e2e
def test_a_worker_is_killed_from_outside_in_the_middle(ray: object, tmp_path: Path):
    plan, pids = plan_of(write(tmp_path / "run", steps=24), by="finish_reason"), tmp_path / "pids"
    pids.mkdir()
    slow = replace(plan, task=Slow(**vars(plan.task), folder=str(pids)))
    killed: list[int] = []
    killer = threading.Thread(target=kill_one, args=(pids, killed), daemon=True)
    killer.start()
    found = slow.run(cluster())
    killer.join(10)
    assert bits(found) == bits(plan.run(in_turn))
    assert found.summary.counts == sp.measure(sp.read(tmp_path / "run")).counts
    workers = {file.name.partition("-")[0] for file in pids.iterdir()}
    assert len(killed) == 1
    assert len(workers) > 3  # the one in the dead one's place is another process


@pytest.mark.e2e
def test_a_shard_that_kills_every_worker_is_named_and_the_rest_is_kept(ray: object, tmp_path: Path):
    plan, kept = plan_of(write(tmp_path / "run", steps=6)), tmp_path / "kept"
    fatal = replace(plan, task=Fatal(**vars(plan.task)))
    with pytest.raises(SamePolicyError, match=rf"gave up on .*part-00000004-000000\.parquet after {RETRIES} retries"):
        fatal.run(cluster(1), resume=kept)
    assert bits(plan.run(cluster(), resume=kept)) == bits(plan.run(in_turn))


@pytest.mark.e2e
def test_the_command_measures_on_a_cluster_of_its_own(tmp_path: Path):
    folder = write(tmp_path / "run", steps=6)
    call = [sys.executable, "-m", "samepolicy", "measure", str(folder), "--json"]
    plain = subprocess.run(call, capture_output=True, text=True, check=True)
    spread = subprocess.run(
        [*call, "--on", "ray", "--workers", "2"], capture_output=True, text=True, check=True,
        env={**os.environ, "RAY_ADDRESS": "local"},
    )  # fmt: skip
    assert json.loads(spread.stdout) == json.loads(plain.stdout)
    assert spread.stderr == ""
