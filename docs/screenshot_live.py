"""Take the picture of the live page that the documentation shows: `python docs/screenshot_live.py`.

The run is made up: 400 steps of random log-probs whose gap grows at step 300, so that there is something to see.
"""

import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from screenshots import HEIGHT, IMAGES, WIDTH, shrink

import samepolicy as sp
from samepolicy.serve.server import Address, Live

STEPS, JUMP = 400, 300
SIDES = {"rollout": sp.Side(engine="vllm", dtype="bfloat16"), "trainer": sp.Side(engine="fsdp", dtype="bfloat16")}


def record(folder: Path) -> None:
    """Have a monitor write the run."""
    rng = np.random.default_rng(0)
    with sp.Monitor(save_dir=folder, calm=0, grid=None, **SIDES) as monitor:
        for step in range(STEPS):
            rollout = -rng.exponential(1.0, (16, 64))
            noise = rng.normal(0, 0.05 if step >= JUMP else 0.02, rollout.shape) * rng.lognormal(0, 0.4)
            trainer = np.minimum(rollout + noise, -1e-4)
            mask, advantage = np.ones(rollout.shape), rng.standard_normal(rollout.shape)
            monitor(step=step, rollout=rollout, trainer=trainer, mask=mask, advantage=advantage)


def main() -> None:
    """Record, serve, photograph."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SAMEPOLICY_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("Chromium is missing; run apt-get install chromium, or set SAMEPOLICY_CHROMIUM.")
    with tempfile.TemporaryDirectory() as place, sync_playwright() as driver:
        folder = Path(place) / "grpo-run"
        folder.mkdir()
        record(folder)
        with Live(folder, Address(port=0)) as live:
            thread = threading.Thread(target=live.run)
            thread.start()
            history = live.watch.history
            while len(history.rows()) < STEPS or history.state.waiting:
                time.sleep(0.1)
            time.sleep(1)
            browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
            page.goto(live.url)
            page.wait_for_timeout(4000)
            target = IMAGES / "serve.png"
            page.screenshot(path=target)
            browser.close()
            live.stop()
            thread.join()
    shrink(target)
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
