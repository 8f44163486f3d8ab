"""Run folders to measure, tasks that die, and what "the same" means."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

import samepolicy as sp
from samepolicy.fleet import Measured, Plan, Task
from samepolicy.records.shards import Shard


def part(step: int, *, rows: int = 6, tokens: int = 400) -> sp.Run:
    """One step of a run with a bf16-like gap, some masked tokens, and responses of very different lengths."""
    rng = np.random.default_rng(step)
    lengths = rng.integers(0, tokens, rows)
    rollout = [-rng.exponential(0.5, n).astype(np.float32) for n in lengths]
    trainer = [np.minimum(r + 0.03 * rng.standard_normal(len(r), dtype=np.float32), 0) for r in rollout]
    return sp.Run.from_lists(
        rollout_logp=rollout,
        trainer_logp=trainer,
        mask=[np.arange(n) % 7 != 3 for n in lengths],
        sample=range(rows),
        step=[step] * rows,
        finish_reason=["stop" if n % 2 else "length" for n in lengths],
    )


def write(folder: Path, *, steps: int) -> Path:
    """A run folder of so many steps."""
    for step in range(steps):
        sp.write(part(step), folder, step=step)
    return folder


def bits(found: Measured) -> object:
    """Everything in a result, floats bit by bit."""
    summaries = {"": found.summary, **found.groups}
    states = {
        label: {name: [s.state.tobytes() for s in held] for name, held in summary.statistics.items()}
        for label, summary in summaries.items()
    }
    return states, {label: s.counts for label, s in summaries.items()}, found.dtypes, sorted(found.skipped)


@dataclass(frozen=True)
class Cores(Task):
    """A task that says on how many threads Arrow decompresses."""

    def __call__(self, shard: Shard) -> Measured:
        return Measured(skipped=(str(pa.cpu_count()),))


@dataclass(frozen=True)
class Deadly(Task):
    """A task whose process is killed in the middle of one shard, the first time only.

    Attributes:
        victim: name of the shard's file.
        marker: a file that says that it has happened; it lists every shard that was begun.
    """

    victim: str = ""
    marker: str = ""

    def __call__(self, shard: Shard) -> Measured:
        begun = Path(self.marker)
        seen = begun.read_text() if begun.exists() else ""
        with begun.open("a") as file:
            file.write(f"{shard}\n")
        found = super().__call__(shard)
        if str(shard).endswith(self.victim) and self.victim not in seen:
            os.kill(os.getpid(), signal.SIGKILL)
        return found


def deadly(plan: Plan, *, victim: str, marker: Path) -> Plan:
    """The same plan with a task that dies."""
    return Plan(Deadly(**vars(plan.task), victim=victim, marker=str(marker)), plan.shards, plan.on_bad)
