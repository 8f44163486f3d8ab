"""One headless Chromium for all tests of pages in a process, however many fixtures ask for it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
_HELD: dict[str, Any] = {"users": 0}


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser; it ends with the last one who uses it, since playwright starts only once in a thread."""
    if not _HELD["users"]:
        _HELD["stack"], _HELD["browser"] = _start()
    _HELD["users"] += 1
    try:
        yield _HELD["browser"]
    finally:
        _HELD["users"] -= 1
        if not _HELD["users"]:
            _HELD.pop("stack").close()


def _start() -> tuple[ExitStack, Any]:
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SAMEPOLICY_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    assert path, "The tests of pages need Chromium: apt-get install chromium, or set SAMEPOLICY_CHROMIUM."
    stack = ExitStack()
    driver = stack.enter_context(sync_playwright())
    browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
    stack.callback(browser.close)
    return stack, browser
