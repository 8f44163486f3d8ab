"""One headless Chromium for every test of a page, and pages to open in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import samepolicy as sp
from samepolicy.demo import recorded
from samepolicy.report import html
from tests.chromium import chromium
from tests.report.runs import faulty, hostile, value_of, with_finding


@dataclass
class Tab:
    """A page that is open, with everything it complained about and asked for."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def quiet(self) -> None:
        """Nothing went wrong, and nothing was asked of a network."""
        assert self.complaints == []
        assert [r for r in self.requests if not r.startswith(("file:", "data:", "blob:"))] == []

    def text(self, selector: str) -> str:
        """What an element says."""
        return " ".join(self.page.locator(selector).first.inner_text().split())

    def token(self) -> tuple[int, int]:
        """The chosen token."""
        return tuple(self.page.evaluate("[SP.state.row, SP.state.at]"))

    def drawn(self) -> None:
        """Draw every figure, wherever it is."""
        self.page.evaluate("SP.charts.all()")
        self.until("document.querySelectorAll('.chart[data-drawn] .main-svg').length > 0")

    def until(self, expression: str) -> None:
        """Wait until this is true; playwright's own waiting needs `eval`, which the page's policy forbids."""
        for _ in range(400):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"never true: {expression}")


Open = Callable[..., Tab]


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def shared(visit_module: Open, demo: Path) -> Tab:
    """The recorded run's page, open for all tests of a module that leave it as it was or do not care."""
    return visit_module(demo)


@pytest.fixture
def visit(browser: Any) -> Iterator[Open]:
    """Open a file in a context of its own."""
    yield from opener(browser)


@pytest.fixture(scope="module")
def visit_module(browser: Any) -> Iterator[Open]:
    """The same, closed at the end of the module."""
    yield from opener(browser)


def opener(browser: Any) -> Iterator[Open]:
    """A function that opens a file; what it opened is closed at the end."""
    contexts = []

    def open_page(file: Path, at: str = "", *, width: int = 1280, **options: Any) -> Tab:
        context = browser.new_context(viewport={"width": width, "height": 860}, **options)
        contexts.append(context)
        tab = Tab(context.new_page())
        tab.page.set_default_timeout(60_000)
        tab.page.on("console", lambda m: tab.complaints.append(m.text) if m.type in ("error", "warning") else None)
        tab.page.on("pageerror", lambda e: tab.complaints.append(str(e)))
        tab.page.on("request", lambda r: tab.requests.append(r.url))
        tab.page.goto(f"{file.as_uri()}{at}")
        tab.until("document.documentElement.dataset.charts")
        return tab

    yield open_page
    for context in contexts:
        context.close()


def written(folder: Path, value: dict[str, Any]) -> Path:
    return html.write(html.render(value), folder / "report.html")


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded run, with text."""
    from samepolicy.report.pieces import pieces_of
    from samepolicy.testing import smollm2_path

    value = value_of(sp.diagnose(recorded()), pieces=pieces_of(smollm2_path()), title="demo")
    return written(tmp_path_factory.mktemp("demo"), value)


@pytest.fixture(scope="session")
def different(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A faulty run whose diagnosis names a cause."""
    return written(tmp_path_factory.mktemp("different"), with_finding(value_of(faulty(temperature=0.7))))


@pytest.fixture(scope="session")
def attack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose every text attacks the page."""
    run, pieces = hostile()
    return written(tmp_path_factory.mktemp("attack"), value_of(sp.diagnose(run), pieces=pieces, title="<b>attack"))
