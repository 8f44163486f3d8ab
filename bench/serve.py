"""The live page over 10,000 steps: until they are measured, until the page shows them, and until a new step is seen."""

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import samepolicy as sp
from _publish import publish
from samepolicy.records.arrow import write_table
from samepolicy.records.store import write
from samepolicy.serve.server import Address, Live

STEPS, UPDATES = int(os.environ.get("SAMEPOLICY_BENCH_STEPS", "10000")), 10
ROWS, TIME = 8, 64


def step_of(number: int) -> sp.Run:
    """A step whose gap drifts, with a jump every 2500 steps."""
    rng = np.random.default_rng(number)
    rollout = -rng.exponential(1.0, (ROWS, TIME))
    noise = rng.normal(0, 0.01 + 0.01 * (number // 2500), rollout.shape)
    return sp.Run.from_lists(
        response_ids=rng.integers(0, 1000, rollout.shape),
        rollout_logp=rollout,
        trainer_logp=np.minimum(rollout + noise, 0),
        advantage=rng.standard_normal(rollout.shape),
        step=np.full(ROWS, number),
    )


def recorded(folder: Path) -> None:
    """A folder of steps; parts are written without flushing each to the disk."""
    write(step_of(0), folder)
    for number in range(1, STEPS):
        with (folder / f"part-{number:08d}-000000.parquet").open("wb") as file:
            write_table(step_of(number), file)


def until(true: Any, pause: float = 0.01) -> float:
    """Seconds until something is so."""
    begin = time.perf_counter()
    while not true():
        time.sleep(pause)
    return time.perf_counter() - begin


def opened(browser: Any, url: str) -> tuple[Any, float]:
    """A page with everything in its first window drawn, and the seconds that took."""
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    begin = time.perf_counter()
    page.goto(f"{url}#last=0")
    drawn = "document.documentElement.dataset.shown && document.querySelectorAll('#lines .main-svg').length"
    until(lambda: page.evaluate(f"Boolean({drawn})"))
    return page, time.perf_counter() - begin


def update(page: Any, folder: Path, number: int) -> float:
    """Seconds from a part's appearance until the page shows its step."""
    write(step_of(number), folder)
    return until(lambda: page.evaluate(f"document.querySelector('h1').textContent === 'Step {number}'"))


def main() -> None:
    """Run and publish."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SAMEPOLICY_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("Chromium is missing; run apt-get install chromium, or set SAMEPOLICY_CHROMIUM.")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        folder = Path(place) / "run"
        recorded(folder)
        with Live(folder, Address(port=0)) as live:
            thread = threading.Thread(target=live.run)
            thread.start()
            state = live.watch.history
            measured = until(lambda: state.revision and state.rows() and not state.state.waiting, 0.1)
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page, first = opened(browser, live.url)
            _, second = opened(browser, live.url)
            updates = [update(page, folder, STEPS + i) for i in range(UPDATES)]
            begin = time.perf_counter()
            live.reports.ask(STEPS).result()
            report = time.perf_counter() - begin
            browser.close()
            live.stop()
            thread.join()
    rows = [
        {"what": f"measure {STEPS:,} parts, once", "seconds": f"{measured:.1f}"},
        {"what": "open the page, all steps in sight", "seconds": f"{first:.2f}"},
        {"what": "open it in a second tab", "seconds": f"{second:.2f}"},
        {"what": "a new step, from its file to the page (median)", "seconds": f"{median(updates):.2f}"},
        {"what": "the same, slowest of ten", "seconds": f"{max(updates):.2f}"},
        {"what": "first report of a step", "seconds": f"{report:.2f}"},
    ]
    title = (
        f"The live page over {STEPS:,} steps of [{ROWS}, {TIME}] tokens, Chromium and server on {os.cpu_count()} cores."
    )
    publish("serve", title, rows, packages=("starlette", "uvicorn", "plotly"))


if __name__ == "__main__":
    main()
