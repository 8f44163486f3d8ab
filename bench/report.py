"""The report of a large batch: until it is written, and until it can be used and is drawn in Chromium."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

import samepolicy as sp
from _publish import publish

ROWS, TIME, REPEATS = 256, 4096, 5


def batch() -> sp.Run:
    """Every optional column that a report draws; no two numbers are alike, so that nothing packs well."""
    rng = np.random.default_rng(0)
    shape = (ROWS, TIME)
    rollout = -rng.exponential(0.8, shape)
    columns: dict[str, Any] = {
        "response_ids": rng.integers(0, 49_152, shape),
        "rollout_logp": rollout.astype(np.float32),
        "trainer_logp": np.minimum(rollout + 0.05 * rng.standard_t(4, shape), 0).astype(np.float32),
        "trainer_entropy": rng.exponential(1, shape).astype(np.float32),
        "advantage": rng.standard_normal(shape).astype(np.float32),
        "policy_version": rng.integers(0, 9, shape),
    }
    side = sp.Side(dtype="bfloat16")
    return sp.Run.from_padded(mask=np.ones(shape, dtype=bool), **columns, rollout=side, trainer=side)


def written(run: Path, page: Path) -> float:
    """Seconds of `samepolicy report`, from the start of its process to its end; a gap has status 1."""
    start = perf_counter()
    subprocess.run(
        [sys.executable, "-m", "samepolicy", "report", str(run), "-o", str(page)],
        check=False,
        stdout=subprocess.DEVNULL,
    )
    return perf_counter() - start


def opened(browser: Any, page: Path) -> tuple[float, float]:
    """Seconds from the start of the navigation until tables, keys and tokens work, and until the charts are drawn."""
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_function("document.documentElement.dataset.charts")
    times = tab.evaluate(
        "[document.documentElement.dataset.ready, document.documentElement.dataset.charts].map(Number)"
    )
    context.close()
    return times[0] / 1000, times[1] / 1000


def main() -> None:
    """Run and publish."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SAMEPOLICY_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("Chromium is missing; run apt-get install chromium, or set SAMEPOLICY_CHROMIUM.")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        run, page = Path(place) / "run", Path(place) / "report.html"
        sp.write(batch(), run)
        writing = [written(run, page) for _ in range(REPEATS)]
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        ready, drawn = zip(*(opened(browser, page) for _ in range(REPEATS)), strict=True)
        browser.close()
        size = page.stat().st_size / 1e6
    found = {
        "write it (`samepolicy report`, whole process)": writing,
        "open it: tables, keys and tokens work": ready,
        "open it: the charts in sight are drawn": drawn,
    }
    rows = [{"what": what, "median seconds": f"{median(times):.2f}"} for what, times in found.items()]
    title = f"The report of [{ROWS}, {TIME}] tokens, {size:.1f} MB, written and opened on {os.cpu_count()} cores."
    publish("report", title, rows, packages=("jinja2", "plotly"))


if __name__ == "__main__":
    main()
