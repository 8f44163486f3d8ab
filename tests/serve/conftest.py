"""Live pages over folders that a monitor writes, and tabs of a real browser to open them in."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import samepolicy as sp
from samepolicy.serve.server import Address, Live
from tests.chromium import chromium
from tests.report.conftest import Tab

SIDES = {"rollout": sp.Side(engine="vllm", dtype="bfloat16"), "trainer": sp.Side(engine="hf", dtype="bfloat16")}


def batch(step: int, *, spread: float = 0.01, rows: int = 4, length: int = 12) -> dict[str, Any]:
    """What a trainer hands to a monitor at a step."""
    rng = np.random.default_rng(step)
    rollout = -rng.exponential(1.0, (rows, length))
    trainer = np.minimum(rollout + rng.normal(0, spread, rollout.shape), 0)
    ids = rng.integers(0, 50, rollout.shape)
    advantage = rng.standard_normal(rollout.shape)
    return {
        "rollout": rollout,
        "trainer": trainer,
        "mask": np.ones(rollout.shape),
        "response_ids": ids,
        "advantage": advantage,
    }


def record(folder: Path, spreads: dict[int, float], **columns: Any) -> None:
    """Have a monitor write these steps, each with a gap of a size."""
    with sp.Monitor(save_dir=folder, calm=0, grid=None, **SIDES) as monitor:
        for step, spread in spreads.items():
            monitor(step=step, **batch(step, spread=spread), **columns)


def until(true: Callable[[], Any], seconds: float = 15.0) -> Any:
    """Wait for something; its value."""
    end = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < end, "It did not come."
        time.sleep(0.02)
    return found


@contextmanager
def running(folder: Path, **address: Any) -> Iterator[Live]:
    """A live page that answers, with everything in the folder measured."""
    with Live(folder, Address(**{"port": 0, **address})) as live:
        live.watch.interval = 0.05
        thread = threading.Thread(target=live.run)
        thread.start()
        try:
            until(lambda: live.watch.folder and not live.watch.history.state.waiting and live.watch.history.revision)
            yield live
        finally:
            live.stop()
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder of a run."""
    made = tmp_path / "my run"
    made.mkdir()
    return made


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Tab]]:
    """Open an address in a context of its own, and wait for the steps."""
    contexts = []

    def open_page(url: str, *, width: int = 1280, shown: bool = True, **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 860}, **options)
        contexts.append(context)
        tab = Tab(context.new_page())
        tab.page.set_default_timeout(20_000)
        tab.page.on("console", lambda m: tab.complaints.append(m.text) if m.type in ("error", "warning") else None)
        tab.page.on("pageerror", lambda e: tab.complaints.append(str(e)))
        tab.page.on("request", lambda r: tab.requests.append(r.url))
        tab.page.goto(url)
        if shown:
            wait(tab, "document.documentElement.dataset.shown")
        return tab

    yield open_page
    for context in contexts:
        context.close()


def wait(tab: Tab, true: str, seconds: float = 40.0) -> None:
    """Wait for something in a page; playwright's own waiting is code that the page's policy refuses."""
    end = time.monotonic() + seconds
    while not tab.page.evaluate(f"Boolean({true})"):
        assert time.monotonic() < end, f"It did not come: {true}"
        tab.page.wait_for_timeout(40)


def quiet(tab: Tab, live: Live) -> None:
    """Nothing went wrong, and nothing was asked of another host."""
    assert tab.complaints == []
    ours = live.url.partition("?")[0]
    assert [r for r in tab.requests if not r.startswith((ours, "data:", "blob:"))] == []
