"""Engines on the command line: `kind:path`, and every option of a kind as a switch of its own.

Nobody lists the switches here: `--NAME` and `--SIDE-NAME` exist for each field of each kind's `Options`.
"""

import re
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, TypeAlias, get_type_hints

from typer.core import TyperCommand

from samepolicy.cli import output
from samepolicy.cli.options import UsageError
from samepolicy.errors import InputError

Choices: TypeAlias = dict[str, dict[str, Any]]
"""Options of engines by side; those of the side "" are for every side."""

_CHOSEN: ContextVar[Choices] = ContextVar("chosen")
"""What the switches of the command that is being run say."""

_KIND = re.compile(r"[a-z]\w+:")
"""What stands before an engine's path."""

EPILOG = "Every option of an engine is a switch, too ({how}); `samepolicy explain hf` (vllm, server, toy) lists them."


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
    """An engine from the name of a model: hf, unless a kind or an address stands there.

    >>> spec("some/folder"), spec("toy:"), spec("hf:some/folder"), spec("http://localhost:8000")
    ('hf:some/folder', 'toy:', 'hf:some/folder', 'http://localhost:8000')
    """
    return name if _KIND.match(name) else f"hf:{name}"


def of_side(side: str, given: str | None, model: str | None) -> str:
    """The engine of one side; a kind alone takes the model.

    Args:
        side: "rollout" or "trainer".
        given: what was given for this side: kind:path, a kind, or the address of a server.
        model: the model of both sides.

    Raises:
        InputError: neither is given.

    >>> of_side("rollout", "vllm", "some/folder"), of_side("trainer", None, "some/folder")
    ('vllm:some/folder', 'hf:some/folder')
    """
    from samepolicy.engines.base import kinds

    if given is None and model is None:
        raise InputError(f"The {side} has no engine; give a MODEL, or both --rollout and --trainer.")
    if given is None:
        return spec(str(model))
    return f"{given}:{_KIND.sub('', model)}" if given in kinds() and model is not None else given


def of_sides(specs: Mapping[str, str], own: Mapping[str, dict[str, Any]], **shared: Any) -> dict[str, dict[str, Any]]:
    """The engine options of several sides; one that is meant for all of them goes to the kinds that have it.

    Args:
        specs: each side's engine.
        own: options that the command declares for one side.
        **shared: options that it declares for all of them; None and False are not given.
    """
    from samepolicy.engines.base import options_of, split

    valid = {side: options_of(split(engine)[0]) for side, engine in specs.items()}
    somewhere = {name for names in valid.values() for name in names}
    found: dict[str, dict[str, Any]] = {}
    for side in specs:
        everywhere = choices(**shared)
        fitting = {n: v for n, v in everywhere.items() if n in valid[side] or n not in somewhere}
        mine = {n: v for n, v in choices(side, **own.get(side, {})).items() if n not in everywhere or n in valid[side]}
        found[side] = fitting | mine
    return found


def opened(spec: str, chosen: Mapping[str, Any], model: str | None) -> Any:
    """An engine, loaded; a server that needs a tokenizer and has none to give takes the model's.

    Args:
        spec: the engine.
        chosen: its options.
        model: the model of both sides, if one was given.
    """
    from samepolicy.engines.base import engine, split
    from samepolicy.engines.server import NoTokenizerError

    folder = _KIND.sub("", model or "")
    try:
        return engine(spec, **chosen)
    except NoTokenizerError:
        if not folder or split(spec)[0] != "server" or "tokenizer" in chosen:
            raise
    output.note(
        f"The server gives text alone; ids are made of it by the tokenizer of {folder} (another: --rollout-tokenizer)."
    )
    return engine(spec, **{**chosen, "tokenizer": folder})


def listing(spec: str, top: int) -> dict[str, int]:
    """The option of an engine that must be told beforehand how many likely tokens it will be asked for.

    >>> listing("vllm:some/folder", 50), listing("hf:some/folder", 50), listing("vllm:some/folder", 0)
    ({'top': 50}, {}, {})
    """
    from samepolicy.engines.base import options_of, split

    return {"top": top} if top and "top" in options_of(split(spec)[0]) else {}


def _types() -> dict[str, type]:
    """The type of every option of every kind of engine."""
    from importlib import import_module

    from samepolicy.engines.base import kinds
    from samepolicy.kinds import kind_of

    hints = [get_type_hints(import_module(f"samepolicy.engines.{kind}").Options) for kind in reversed(kinds())]
    return {name: kind_of(hint) for found in hints for name, hint in found.items()}


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
