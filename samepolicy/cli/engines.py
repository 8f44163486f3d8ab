"""Engines on the command line: `kind:path`, and every option of a kind as a switch of its own.

Nobody lists the switches here: `--NAME` and `--SIDE-NAME` exist for each field of each kind's `Options`.
"""

import re
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, ClassVar, TypeAlias, get_args, get_type_hints

from typer.core import TyperCommand

from samepolicy.cli.options import UsageError

Choices: TypeAlias = dict[str, dict[str, Any]]
"""Options of engines by side; those of the side "" are for every side."""

_CHOSEN: ContextVar[Choices] = ContextVar("chosen")
"""What the switches of the command that is being run say."""

EPILOG = "Every option of an engine is a switch, too ({how}); `samepolicy explain hf` lists those of hf."


class EngineCommand(TyperCommand):
    """A command that takes the engines' options as switches."""

    sides: ClassVar[tuple[str, ...]] = ("",)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take out the switches that belong to engines, then parse the rest as ever."""
        declared = {name for param in self.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
        found: Choices = {side: {} for side in self.sides}
        rest: list[str] = []
        tokens = iter(args)
        for token in tokens:
            flag, _, value = token.partition("=")
            place = self._place(flag) if flag.startswith("--") and len(flag) > 2 and flag not in declared else None
            if place is None:
                rest.append(token)
            else:
                side, name, kind = place
                try:
                    found[side][name] = _value(kind, value if "=" in token else None, tokens)
                except ValueError as error:
                    raise UsageError(f"{flag} {error}.", ctx=ctx) from error
        _CHOSEN.set(found)
        return super().parse_args(ctx, rest)

    def _place(self, flag: str) -> tuple[str, str, type] | None:
        """Side, option and type that a switch stands for."""
        name, types = flag[2:].replace("-", "_"), _types()
        for side in self.sides:
            option = name if not side else name.removeprefix(f"{side}_") if name.startswith(f"{side}_") else ""
            if option in types:
                return side, option, types[option]
        return None


def choices(side: str = "", **declared: Any) -> dict[str, Any]:
    """The engine options of one side: those for every side, then its own.

    Args:
        side: "rollout", "trainer", or "" for a command with one engine.
        **declared: options that the command declares itself; None is not given.
    """
    found = _CHOSEN.get({})
    given = {name: value for name, value in declared.items() if value not in (None, False)}
    return {**found.get("", {}), **given, **(found.get(side, {}) if side else {})}


def spec(name: str) -> str:
    """An engine from the name of a model: hf, unless a kind stands before it.

    >>> spec("some/folder"), spec("toy:"), spec("hf:some/folder")
    ('hf:some/folder', 'toy:', 'hf:some/folder')
    """
    return name if re.match(r"[a-z]\w+:", name) else f"hf:{name}"


def _types() -> dict[str, type]:
    """The type of every option of every kind of engine."""
    from importlib import import_module

    from samepolicy.engines.base import kinds

    hints = [get_type_hints(import_module(f"samepolicy.engines.{kind}").Options) for kind in reversed(kinds())]
    return {name: _plain(hint) for found in hints for name, hint in found.items()}


def _plain(hint: Any) -> type:
    """The type of a hint such as `str | None`."""
    found: type = next((part for part in get_args(hint) if part is not type(None)), hint)
    return found


def _value(kind: type, value: str | None, tokens: Iterator[str]) -> Any:
    """The value of a switch: after its "=", or the next word; a yes-or-no switch takes none."""
    if kind is bool and value is None:
        return True
    text = next(tokens, None) if value is None else value
    if text is None or kind is bool:
        raise ValueError("takes no value" if kind is bool else "needs a value")
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"needs a value of type {kind.__name__}, but it is {text!r}") from error
