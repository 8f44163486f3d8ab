"""`samepolicy correct`."""

from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from samepolicy.cli import choices, options, output
from samepolicy.cli.options import UsageError
from samepolicy.cli.skipped import Skipped
from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.whatif import Rule

EPILOG = (
    "A switch belongs to the --with or --from before it: `--with tis --threshold 3 --with icepop --sweep`. Behind "
    "--from, the framework's own flags are switches: `--from swift --rollout-importance-sampling-mode token_mask`."
)
ON, OFF = ("true", "1", "yes"), ("false", "0", "no")


@dataclass
class Asked:
    """One --with or --from, with the switches behind it.

    Attributes:
        name: of the preset, or of the framework.
        framework: whether it is a framework.
        thresholds: every --threshold behind it.
        sweep: whether --sweep is.
        flags: the framework's own flags.
    """

    name: str
    framework: bool = False
    thresholds: list[float] = field(default_factory=list)
    sweep: bool = False
    flags: dict[str, Any] = field(default_factory=dict)


_ASKED: ContextVar[tuple[Asked, ...]] = ContextVar("asked")
"""What the command that is being run was asked to try."""


class CLASS(TyperCommand):
    """Takes out --with and --from with what belongs to each, since their order matters; parses the rest as ever."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Split the command line."""
        declared = {name for param in self.params for name in (*param.opts, *param.secondary_opts)} | {"--help"}
        found: list[Asked] = []
        rest: list[str] = []
        tokens = _Tokens(args)
        try:
            for token in tokens:
                if not _take(token, tokens, found, declared):
                    rest.append(token)
        except InputError:
            raise
        except ValueError as error:
            raise UsageError(str(error), ctx=ctx) from error
        _ASKED.set(tuple(found))
        return super().parse_args(ctx, rest)


def command(
    run: options.RunFolder,
    with_: Annotated[
        list[str] | None, typer.Option("--with", metavar="NAME", help="Try a correction by its name; may be repeated.")
    ] = None,
    threshold: Annotated[
        list[float] | None, typer.Option(help="Its threshold instead of the usual one; several are tried one by one.")
    ] = None,
    sweep: Annotated[bool, typer.Option("--sweep", help="Try it at seven thresholds around its own.")] = False,
    from_: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="FRAMEWORK", help="Try what a framework's own flags, which follow, mean."),
    ] = None,
    divide_by: Annotated[
        Literal["mask", "kept"], typer.Option(help="What the loss divides by: all sampled tokens, or those kept.")
    ] = "mask",
    steps: choices.Steps = None,
    samples: choices.Samples = None,
    finish_reason: choices.Reasons = None,
    skip_bad: choices.SkipBad = False,
    workers: choices.Workers = None,
    resume: choices.Resume = None,
    plots: Annotated[Path | None, typer.Option(help="A new .html file to write the figures to.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show the responses that lose most one by one, with what is known of them.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Say what each correction would do to a recorded batch, and which one to take.

    Without --with and --from every correction that has a name is tried. Needs no model; a run folder is read shard by
    shard on all cores, so it may be larger than memory. The numbers do not depend on how the work is spread.
    """
    from samepolicy.fleet import plan_of
    from samepolicy.report import whatif as view
    from samepolicy.whatif.gathered import Gather

    del with_, threshold, sweep, from_  # CLASS has taken them out of the command line, since their order matters
    _refuse(plots)
    asked = _ASKED.get(())
    rules = [rule for one in asked for rule in _rules(one)]
    sweeps = [one.name for one in asked if one.sweep] or (["tis", "mis"] if plots else [])
    skipped = Skipped() if skip_bad else None
    with output.progress(quiet=as_json) as tell:
        tell(f"looking at {run}", 0, 1)
        gather = Gather(tuple(rules) or None, tuple(sweeps))
        chosen = choices.where(steps, samples, finish_reason)
        plan = plan_of(run, where=chosen, on_bad=skipped, also=(gather,))
        all_of_it = plan.run(plan.way(workers), tell=tell, resume=resume)
        found = all_of_it.also[0].result(all_of_it.summary, divide_by)
    if plots is not None:
        from samepolicy.report.figures import page

        with plots.open("x", encoding="utf-8") as file:
            file.write(page(found))
        output.note(f"The figures are in {plots}.")
    value = found.as_dict() | ({"skipped": skipped.sentences} if skipped else {})
    output.show(view.whatif(found, everything=everything), value, as_json=as_json)


def _refuse(plots: Path | None) -> None:
    """Refuse, before any work is done, a file that could not be written or would be lost."""
    if plots is None:
        return
    if plots.exists():
        raise InputError(f"{plots} is there already, and nothing is ever overwritten; give a new .html file.")
    if not plots.absolute().parent.is_dir():
        raise InputError(f"There is no folder {plots.parent}; make it first, or give a file in another place.")


def _rules(asked: Asked) -> "list[Rule]":
    """What a --with or a --from means."""
    from samepolicy.corrections.frameworks import builder
    from samepolicy.whatif import Rule, preset, sweep

    if asked.framework:
        return [Rule(asked.name, builder(asked.name)(**asked.flags))]
    rule = preset(asked.name)
    return [*sweep(rule, asked.thresholds)] if asked.thresholds else [rule]


# ------------------------------------------------------------------------------------------ reading the command line


class _Tokens(Iterator[str]):
    """The words of a command line, of which the next one can be looked at."""

    def __init__(self, words: Sequence[str]) -> None:
        self.left = list(words)

    def __next__(self) -> str:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    @property
    def next(self) -> str:
        """The next word, or nothing."""
        return self.left[0] if self.left else ""

    def value(self, flag: str, given: str | None) -> str:
        """What stands behind a switch: after its "=", or as the next word."""
        found = given if given is not None else next(self, None)
        if found is None:
            raise ValueError(f"{flag} needs a value")
        return found


def _take(token: str, tokens: _Tokens, found: list[Asked], declared: set[str]) -> bool:
    """Whether a word belongs to a --with or --from; if so, it is taken with its value."""
    flag, equals, value = token.partition("=")
    given = value if equals else None
    last = found[-1] if found else None
    if flag in ("--with", "--from"):
        name = tokens.value(flag, given)
        found.append(Asked(_framework(name), framework=True) if flag == "--from" else Asked(name))
    elif flag in ("--threshold", "--sweep"):
        if last is None or last.framework:
            raise ValueError(f"{flag} goes behind a --with")
        if flag == "--sweep":
            last.sweep = True
        else:
            last.thresholds.append(_number(flag, tokens.value(flag, given)))
    elif last is not None and last.framework and flag.startswith("--") and flag not in declared:
        last.flags |= _flag(last.name, flag, given, tokens)
    else:
        return False
    return True


def _framework(name: str) -> str:
    """A framework by its name.

    Raises:
        InputError: there is none.
    """
    from samepolicy.corrections.frameworks import all_frameworks

    known = all_frameworks()
    if (found := name.lower().replace("-", "_")) not in known:
        raise InputError(f"There is no framework {name!r}; choose {', '.join(known)}.")
    return found


def _flag(framework: str, flag: str, given: str | None, tokens: _Tokens) -> dict[str, Any]:
    """A framework's flag with its value, as the type that the framework's function has for it."""
    from samepolicy.corrections.frameworks import all_frameworks

    hints = get_type_hints(all_frameworks()[framework].correction)
    hints.pop("return")
    name = next((n for n in hints if n.lower() == flag[2:].replace("-", "_").lower()), None)
    if name is None:
        raise InputError(f"{framework} has no flag {flag}; it has {', '.join(_switch(n) for n in hints)}.")
    hint = hints[name]
    if hint is bool:
        return {name: _yes(flag, given, tokens)}
    if get_origin(hint) is Sequence:
        if get_args(hint) != (float,):
            raise InputError(f"{flag} is no switch; build it in Python with Correction.from_{framework}(…).")
        return {name: _numbers(flag, given, tokens)}
    return {name: _value(flag, tokens.value(flag, given), hint)}


def _switch(name: str) -> str:
    """A flag as it is written."""
    return "--" + name.replace("_", "-")


def _yes(flag: str, given: str | None, tokens: _Tokens) -> bool:
    """A yes-or-no flag, which may stand alone."""
    if given is None and tokens.next.lower() not in (*ON, *OFF):
        return True
    text = tokens.value(flag, given)
    if text.lower() not in (*ON, *OFF):
        raise ValueError(f"{flag} is true or false, not {text!r}")
    return text.lower() in ON


def _numbers(flag: str, given: str | None, tokens: _Tokens) -> list[float]:
    """Numbers behind one another."""
    found = [_number(flag, tokens.value(flag, given))]
    while tokens.next.replace(".", "", 1).lstrip("-").isdigit():
        found.append(_number(flag, next(tokens)))
    return found


def _value(flag: str, text: str, hint: Any) -> Any:
    """A word as what the flag takes: none, a number, or a word."""
    kinds = get_args(hint) if get_origin(hint) is not Literal and get_args(hint) else (hint,)
    if NoneType in kinds and text.lower() in ("none", "null"):
        return None
    words = any(kind is str or get_origin(kind) is Literal for kind in kinds)
    if float in kinds and not words:
        return _number(flag, text)
    if float in kinds:
        try:
            return float(text) if "_" not in text else text
        except ValueError:
            return text
    return text


def _number(flag: str, text: str) -> float:
    """A number."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{flag} needs a number, not {text!r}") from None
