"""Print a bench's table, keep it as JSON, and put it into docs/benchmarks.md between the bench's own marks."""

import json
import platform
import re
import sys
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"


def publish(
    name: str, title: str, rows: Sequence[dict[str, Any]], *, packages: Sequence[str] = (), script: str = ""
) -> None:
    """Publish one table.

    Args:
        name: the bench script's name, which marks its section.
        title: one sentence that says what was compared with what.
        rows: the table; every row has the same keys.
        packages: packages whose versions belong to the figures.
        script: the bench script, where the section's name is another.
    """
    versions = {p: version(p) for p in ("numpy", *packages)}
    machine = f"{platform.machine()}, Python {platform.python_version()}, " + ", ".join(
        f"{p} {v}" for p, v in versions.items()
    )
    table = markdown(rows)
    print(f"{title}\n\n{table}\n\n{machine}")
    results = ROOT / "build" / "bench"
    results.mkdir(parents=True, exist_ok=True)
    (results / f"{name}.json").write_text(json.dumps({"title": title, "rows": rows, "versions": versions}, indent=1))
    section = f"<!-- {name} -->\n{title}\n\n{table}\n\n`python bench/{script or name}.py`, {machine}.\n<!-- /{name} -->"
    page = PAGE.read_text(encoding="utf-8")
    mark = re.compile(rf"<!-- {name} -->.*<!-- /{name} -->", re.DOTALL)
    PAGE.write_text(
        mark.sub(lambda _: section, page) if mark.search(page) else f"{page.rstrip()}\n\n## {name}\n\n{section}\n",
        encoding="utf-8",
    )


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Rows as a Markdown table; a dash where there are none."""
    if not rows:
        return "–"
    lines = ["| " + " | ".join(rows[0]) + " |", "|" + " --- |" * len(rows[0])]
    return "\n".join([*lines, *("| " + " | ".join(str(v) for v in row.values()) + " |" for row in rows)])


def interleaved(repeats: int, *calls: Callable[[], Any]) -> list[list[float]]:
    """Seconds of each call, run in turn so that a change of the machine's speed meets all alike; one warm-up each."""
    for call in calls:
        call()
    seconds: list[list[float]] = [[] for _ in calls]
    for done in range(repeats):
        print(f"round {done + 1} of {repeats}", file=sys.stderr, flush=True)
        for call, found in zip(calls, seconds, strict=True):
            start = perf_counter()
            call()
            found.append(perf_counter() - start)
    return seconds


def compared(
    what: str, calls: Mapping[str, Callable[[], Any]], *, repeats: int, against: str
) -> tuple[list[dict[str, str]], dict[str, float]]:
    """Time calls in turn, and how many times as long as one of them each took.

    Args:
        what: what the calls are, the heading of their names.
        calls: the calls by name.
        repeats: rounds.
        against: the name of the call that the others are compared with.

    Returns:
        Rows for `publish`, and the median seconds by name.
    """
    seconds = dict(zip(calls, interleaved(repeats, *calls.values()), strict=True))
    middle = {name: median(taken) for name, taken in seconds.items()}
    rows = [
        {what: name, "median seconds": f"{middle[name]:.2f}", f"over {against}": over(taken, seconds[against])}
        for name, taken in seconds.items()
    ]
    return rows, middle


def peak_mb(call: Callable[[], Any]) -> float:
    """The most memory that a call holds beside its input, in MB (NumPy reports its arrays to tracemalloc)."""
    tracemalloc.start()
    call()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / 1e6


def peak_resident_mb(call: Callable[[], Any]) -> float:
    """The most resident memory that a call adds to this process, in MB: of any library's (Linux)."""
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    call()
    return (_status("VmHWM") - before) / 1e6


def _status(field: str) -> float:
    """A field of this process's status, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * float(lines[field].split()[0])


def over(one: Sequence[float], other: Sequence[float]) -> str:
    """How many times as long as the other one took, pair by pair: the median, and the quartiles.

    >>> over([2.0, 2.2, 2.4], [2.0, 2.0, 2.0])
    '1.100 (1.050 to 1.150)'
    """
    low, middle, high = quantiles([a / b for a, b in zip(one, other, strict=True)], n=4, method="inclusive")
    return f"{middle:.3f} ({low:.3f} to {high:.3f})"
