"""The checker that the import hook puts around every function of the package while it is tested."""

import typing
from collections.abc import Callable
from typing import Any

from beartype import BeartypeConf, beartype

_BEARTYPE = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a fine float, as for type checkers


def checked(target: Any) -> Any:
    """Check a function's arguments and result against its annotations at each call.

    What means something only to type checkers (`Self`, a protocol, a name under TYPE_CHECKING) is left unchecked.
    """
    if isinstance(target, Callable) and not isinstance(target, type):
        scope = getattr(target, "__globals__", {})
        target.__annotations__ = {name: checkable(hint, scope) for name, hint in target.__annotations__.items()}
    return _BEARTYPE(target)


def checkable(hint: Any, scope: dict[str, Any]) -> Any:
    """The annotation, or Any where it cannot be checked at run time."""
    if isinstance(hint, str):
        try:
            hint = eval(hint, scope)  # the package's own annotation
        except NameError:
            return Any
    return Any if only_static(hint) else hint


def only_static(hint: Any) -> bool:
    """Whether `Self`, or a protocol without `@runtime_checkable`, is the annotation or lies anywhere within it."""
    protocol = getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
    return hint is typing.Self or protocol or any(only_static(part) for part in typing.get_args(hint))
