"""Loggers for a `Monitor`: scalars, histograms, the heat map of single tokens as an image, and alarms as events.

    monitor = sp.Monitor(loggers=(logger("tensorboard", folder="logs"),))

A class that derives from `Logger` in a module of this package is all it takes to add one. Each takes the run that is
open already, where its package has such a thing, and opens one of its own where there is none.
"""

import pkgutil
from functools import cache
from importlib import import_module
from typing import Any

from samepolicy.errors import InputError
from samepolicy.integrations.loggers.base import Bins, Entry, Logger

__all__ = ["Bins", "Entry", "Logger", "all_loggers", "logger"]


@cache
def all_loggers() -> dict[str, type[Logger]]:
    """Every logger by name; none of their packages is imported.

    >>> sorted(all_loggers())
    ['jsonl', 'mlflow', 'swanlab', 'tensorboard', 'trackio', 'wandb']
    """
    modules = {m.name: import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)}
    return {
        name: found
        for name, module in modules.items()
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Logger) and found.__module__ == module.__name__ != base()
    }


def base() -> str:
    """The module that holds what all of them share."""
    return Logger.__module__


def logger(name: str, /, **options: Any) -> Logger:
    """A logger by name.

    Args:
        name: "tensorboard", "wandb", "mlflow", "swanlab", "trackio" or "jsonl".
        **options: its own options, and `scalars` and `pictures` of `Logger`.

    Returns:
        The logger, ready; hand it to `Monitor(loggers=(…,))`.

    Raises:
        InputError: there is no such logger, or no such option.
        MissingDependencyError: its package is not installed.
    """
    if name not in all_loggers():
        raise InputError(f"There is no logger {name!r}; there are {', '.join(sorted(all_loggers()))}.")
    kind = all_loggers()[name]
    unknown = sorted({*options} - {*kind.__dataclass_fields__})
    if unknown:
        valid = ", ".join(f for f, field in kind.__dataclass_fields__.items() if field.init)
        raise InputError(f"The logger {name!r} has no option {unknown[0]!r}; it has {valid}.")
    return kind(**options)
