"""The flags that other frameworks' users know: one module each, with a function `correction(**flags) -> Correction`.

A module may also have `flat(stats)`, the framework's own logged keys. Each docstring says what the framework's loss
divides by, and where its documented meaning and its code differ.
"""

import inspect
import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from samepolicy.corrections.correction import Correction
from samepolicy.errors import InputError


@cache
def all_frameworks() -> dict[str, ModuleType]:
    """Every framework whose flags are known, by name.

    >>> "verl" in all_frameworks()
    True
    """
    return {m.name: import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)}


def builder(framework: str) -> Callable[..., Correction]:
    """The function from a framework's flags to a Correction, with unknown flags refused in one sentence."""
    function: Callable[..., Correction] = all_frameworks()[framework].correction
    valid = inspect.signature(function).parameters

    def build(**flags: Any) -> Correction:
        unknown = [n for n in flags if n not in valid]
        if unknown:
            raise InputError(f"{framework} has no flag {unknown[0]!r}; it has {', '.join(valid)}.")
        return function(**flags)

    build.__doc__ = function.__doc__
    build.__name__ = f"from_{framework}"
    return build


def one_of(flag: str, value: object, choices: tuple[object, ...]) -> None:
    """Refuse a flag's value that is none of its choices.

    Raises:
        InputError: with the choices in the sentence.
    """
    if value not in choices:
        raise InputError(f"{flag} cannot be {value!r}; choose {', '.join(map(str, choices))}.")
