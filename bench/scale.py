"""`samepolicy measure` over runs of 10, 100 and (with --large) 300 million valid tokens: time, and memory at its peak.

Beside it the plain way over npy pairs of the same tokens: load, select by the mask, mean, std, max, sums by position.
Every measurement is a process of its own; its memory is that of all of its processes, looked at 50 times a second.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
import psutil

import samepolicy as sp
from _publish import publish

ROWS, TIME = 256, 8192
PLAIN = """
import sys
from pathlib import Path
import numpy as np
count, total, squares, largest = 0, 0.0, 0.0, 0.0
sums, counts = np.zeros({time}), np.zeros({time}, dtype=np.int64)
for file in sorted(Path(sys.argv[1]).glob("prob_diff_*.npy")):
    diff, mask = np.load(file), np.load(file.with_name(file.name.replace("prob_diff", "prob_mask")))
    valid = diff[mask]
    count, total, largest = count + valid.size, total + valid.sum(dtype=np.float64), max(largest, valid.max())
    squares += np.square(valid, dtype=np.float64).sum()
    sums, counts = sums + np.where(mask, diff, 0).sum(0, dtype=np.float64), counts + mask.sum(0)
print(count, total / count, (squares / count - (total / count) ** 2) ** 0.5, largest)
"""


@dataclass(frozen=True)
class Cost:
    """What a process took.

    Attributes:
        wall: seconds from its start to its end.
        cpu: seconds of all cores.
        peak: most memory of it and its children together, MB; what they share is counted in each.
        out: what it printed.
    """

    wall: float
    cpu: float
    peak: float
    out: str


def cost(command: Sequence[str]) -> Cost:
    """Run a program and look at it."""
    start, before = perf_counter(), _cpu()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak, watched = 0, psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, _memory(watched))
            sleep(0.02)
        wall = perf_counter() - start
        out = process.stdout.read() if process.stdout else ""
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed with status {process.returncode}.")
    return Cost(wall, _cpu() - before, peak / 1e6, out)


def _cpu() -> float:
    """Seconds that all children that have ended took."""
    times = psutil.Process().cpu_times()
    return float(times.children_user + times.children_system)


def _memory(process: psutil.Process) -> int:
    """Bytes of a process and its children."""
    total = 0
    try:
        for one in (process, *process.children(recursive=True)):
            total += one.memory_info().rss
    except psutil.NoSuchProcess:
        pass
    return total


def write(folder: Path, tokens: int) -> int:
    """Write the same tokens as a run folder and as npy pairs, step by step; how many there are."""
    (folder / "npy").mkdir(parents=True)
    step = done = 0
    while done < tokens:
        rng = np.random.default_rng(step)
        lengths = rng.integers(2_300, TIME + 1, ROWS)
        keep = np.cumsum(lengths) <= tokens - done
        lengths = (
            np.where(keep, lengths, 0) if keep.any() else np.minimum(lengths, tokens - done) * (np.arange(ROWS) < 1)
        )
        mask = np.arange(TIME) < lengths[:, None]
        rollout = -rng.exponential(0.5, (ROWS, TIME)).astype(np.float32)
        trainer = np.minimum(rollout + 0.03 * rng.standard_normal((ROWS, TIME), dtype=np.float32), 0)
        run = sp.Run.from_padded(mask=mask, rollout_logp=rollout, trainer_logp=trainer, sample=np.arange(ROWS))
        sp.write(run, folder / "run", step=step)
        np.save(
            folder / "npy" / f"prob_diff_step_{step}.npy", np.where(mask, np.abs(np.exp(trainer) - np.exp(rollout)), 0)
        )
        np.save(folder / "npy" / f"prob_mask_step_{step}.npy", mask)
        step, done = step + 1, done + int(mask.sum())
    return done


def size(folder: Path) -> float:
    """Megabytes of the files of a folder."""
    return sum(file.stat().st_size for file in folder.iterdir()) / 1e6


def rows(folder: Path, tokens: int) -> list[dict[str, Any]]:
    """The lines of the table for one number of tokens."""
    print(f"writing {tokens:,} tokens", file=sys.stderr, flush=True)
    assert write(folder, tokens) == tokens
    program = [sys.executable, "-m", "samepolicy", "measure", str(folder / "run"), "--json", "--workers"]
    calls = {
        "samepolicy measure, 1 worker": ([*program, "1"], folder / "run"),
        "samepolicy measure, 2 workers": ([*program, "2"], folder / "run"),
        "plain NumPy over npy pairs": (
            [sys.executable, "-c", PLAIN.format(time=TIME), str(folder / "npy")],
            folder / "npy",
        ),
    }
    found = {name: cost(command) for name, (command, _) in calls.items()}
    one, two, plain = found.values()
    assert one.out == two.out
    _same(json.loads(one.out), plain.out, tokens)
    return [
        {
            "tokens": f"{tokens / 1e6:g} M",
            "way": name,
            "seconds": f"{c.wall:.1f}",
            "CPU seconds": f"{c.cpu:.1f}",
            "peak memory, MB": round(c.peak),
            "read, MB": round(size(calls[name][1])),
        }
        for name, c in found.items()
    ]


def _same(ours: dict[str, Any], plain: str, tokens: int) -> None:
    """Both ways have to have measured the same."""
    count, mean, std, largest = map(float, plain.split())
    mine = ours["metrics"]["prob_diff"]
    assert ours["counts"]["measured"] == count == tokens
    for value, other in ((mine["mean"], mean), (mine["std"], std), (mine["max"], largest)):
        assert abs(value - other) <= 1e-4 * other, (value, other)


def main() -> None:
    """Run and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--millions", type=int, nargs="+", default=[10, 100], help="how many million tokens")
    parser.add_argument("--large", action="store_true", help="300 million, too: 6 GB of disk")
    parser.add_argument(
        "--folder", type=Path, help="where to put the runs for a while; the system's place unless given"
    )
    asked = parser.parse_args()
    table = []
    for millions in [*asked.millions, *([300] if asked.large else [])]:
        with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
            table += rows(Path(folder), millions * 1_000_000)
    title = (
        "`samepolicy measure` of a run folder, every metric that needs only log-probs and mask, beside plain NumPy for "
        f"mean, std, max and sums by position of one quantity over npy pairs [{ROWS}, {TIME}] of the same tokens. "
        "Files have just been written and are in the page cache; seconds include the start of the interpreter and of "
        "the workers."
    )
    publish("scale", title, table, packages=("pyarrow",))


if __name__ == "__main__":
    main()
