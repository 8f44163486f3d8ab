"""Shape checks at run time, reproducible property tests, and what `--core` and `--no-skips` mean.

Importing samepolicy below the hook checks every annotated shape and type of the package, in tests only.
"""

import logging
import os
import re
import signal
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from jaxtyping import install_import_hook

import tests.shapes  # noqa: F401 - the hook below finds it loaded

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the workers share the cores; must be set before torch is loaded

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # in the background of a shell, which the tests' processes inherit
    signal.signal(signal.SIGINT, signal.default_int_handler)

install_import_hook("samepolicy", "tests.shapes.checked")

hypothesis.settings.register_profile(
    "samepolicy", deadline=None, derandomize=True, max_examples=50, print_blob=False, database=None
)
hypothesis.settings.load_profile("samepolicy")

HEAVY = r"(import|from) (torch|transformers|peft|trl|verl|vllm|httpx)\b"
FULL_MODULE = re.compile(rf"^(pytestmark = .*\bpytest\.mark\.full\b|{HEAVY})", re.MULTILINE)
GROUP = re.compile(r'^pytestmark = .*\bxdist_group\("([^"]+)"\)', re.MULTILINE)
FULL_EXAMPLE = re.compile(rf"^\s*{HEAVY}|\b(hf|vllm):", re.MULTILINE)


@pytest.fixture(autouse=True)
def loggers_speak() -> Generator[None, None, None]:
    """A test after which a warning of this package reaches nobody fails, and not the ones that look for warnings."""
    yield
    heard: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = heard.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    logger: logging.Logger | None = logging.getLogger("samepolicy.records")
    logger.warning("heard")
    logging.getLogger().removeHandler(handler)
    if heard:
        return
    chain = []
    while logger is not None:
        chain.append(f"{logger.name}: level {logger.level}, disabled {logger.disabled}, propagates {logger.propagate}")
        logger.disabled, logger.propagate = False, True
        logger.setLevel(logging.NOTSET if logger.parent else logger.level)
        logger = logger.parent
    logging.disable(logging.NOTSET)
    pytest.fail(f"No warning is heard after this test ({'; '.join(chain)}; {logging.root.manager.disable})")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--core", action="store_true", help="leave out what is marked `full` (needs more than core)")
    parser.addoption("--no-skips", action="store_true", help="a skipped test is a failure")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Modules of one `xdist_group` run on one worker, one after the other, so that they load their engine once.

    pytest 9.2 keeps ids where xdist 3.8 no longer finds them, so the group is read from the module's own text.
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid.partition("::")[0]) or nodeid

    return ByGroup(config, log) if config.getvalue("dist") == "loadgroup" else None


@cache
def group_of(file: str) -> str | None:
    """The `xdist_group` that a module marks all of its tests with."""
    path = Path(__file__).parent.parent / file
    found = GROUP.search(path.read_text(encoding="utf-8")) if path.is_file() else None
    return found[1] if found else None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With --core, a module that says `pytestmark = pytest.mark.full`, or imports torch at its top, is not imported."""
    if config.getoption("--core") and collection_path.suffix == ".py":
        return True if FULL_MODULE.search(collection_path.read_text(encoding="utf-8")) else None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give docstring examples `np`; with --core, leave out tests marked `full` and examples that load torch."""
    for item in items:
        if isinstance(item, pytest.DoctestItem):
            item.dtest.globs["np"] = np
    if config.getoption("--core"):
        full = [item for item in items if needs_more_than_core(item)]
        config.hook.pytest_deselected(items=full)
        items[:] = [item for item in items if item not in full]


def needs_more_than_core(item: pytest.Item) -> bool:
    """Whether a test is marked `full`, or is a docstring example that loads torch or a model."""
    if isinstance(item, pytest.DoctestItem):
        return any(FULL_EXAMPLE.search(example.source) for example in item.dtest.examples)
    return item.get_closest_marker("full") is not None


def fail_if_skipped(report: Any) -> None:
    """Turn a skip into a failure; an expected failure stays what it is."""
    if report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} was skipped, and --no-skips makes that a failure: {report.longrepr}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    report = yield
    if item.config.getoption("--no-skips"):
        fail_if_skipped(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    if collector.config.getoption("--no-skips"):
        fail_if_skipped(report)
    return report
