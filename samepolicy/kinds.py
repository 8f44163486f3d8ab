"""Settings that are text, a truth value, a whole number or a number: refused in one sentence where they are not."""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, get_args, get_type_hints

import numpy as np

from samepolicy.errors import InputError

_KINDS: dict[type, tuple[str, Any]] = {
    str: ("text", str),
    bool: ("True or False", bool),
    int: ("a whole number", int),
    float: ("a number", int | float),
}
"""What each kind of setting is called, and the types that are of it."""


def check_kind(name: str, value: object, kind: type) -> None:
    """Refuse a setting of another kind; a whole number is a number, too, and a truth value is none.

    Raises:
        InputError: names the setting and what it is.
    """
    told, types = _KINDS[kind]
    if not isinstance(value, types) or (isinstance(value, bool) and kind is not bool):
        raise InputError(f"{name} must be {told}, but it is {value!r}.")


def choose(what: str, value: str, valid: Sequence[str]) -> str:
    """Give the value back if it is a valid one, else refuse it and list those."""
    if value not in valid:
        raise InputError(f"{what} {value!r} is not known; it can be {', '.join(valid)}.")
    return value


def require(settings: object, rules: Mapping[str, bool]) -> None:
    """Refuse settings that break a rule.

    Args:
        settings: an object with the settings as attributes.
        rules: whether each holds; its text begins with the setting's name.

    Raises:
        InputError: the first rule that does not hold, and the value.
    """
    for rule, holds in rules.items():
        if not holds:
            raise InputError(f"{rule}, but it is {getattr(settings, rule.split()[0])!r}.")


def kind_of(hint: Any) -> type:
    """The kind of a setting from its type hint, such as `str | None`.

    >>> kind_of(int), kind_of(str | None)
    (<class 'int'>, <class 'str'>)
    """
    found: type = next((part for part in get_args(hint) if part is not type(None)), hint)
    return found


def plain(given: Mapping[str, Any], declared: type) -> dict[str, Any]:
    """Settings as plain text and numbers: a path as text, and text or a number of NumPy as a number where one is due.

    Args:
        given: the settings.
        declared: the class that declares each of them.

    Raises:
        InputError: one is of another kind than declared.
    """
    hints = get_type_hints(declared)
    made = {name: _plain(value, kind_of(hints[name])) for name, value in given.items()}
    for name, value in made.items():
        if value is not None or type(None) not in get_args(hints[name]):
            check_kind(name, value, kind_of(hints[name]))
    return made


def _plain(value: Any, kind: type) -> Any:
    """One value, as Python has it by itself."""
    value = value.item() if isinstance(value, np.generic) else value
    value = os.fspath(value) if isinstance(value, os.PathLike) else value
    with suppress(ValueError):  # a switch is text where another engine has a text of its name
        return kind(value) if isinstance(value, str) and kind in (int, float) else value
    return value
