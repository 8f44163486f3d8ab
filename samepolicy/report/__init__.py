"""Showing results: `data` is the one JSON value of each; `text`, `measures` and `html` are views of it."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from samepolicy.report import plots as plots
    from samepolicy.report.html import report as report

__all__ = ["plots", "report"]  # loaded when first used: most commands need neither


def __getattr__(name: str) -> Any:
    if name == "plots":
        return import_module("samepolicy.report.plots")
    if name == "report":
        return import_module("samepolicy.report.html").report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
