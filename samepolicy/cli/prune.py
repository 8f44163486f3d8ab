"""`samepolicy prune`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samepolicy.cli import options, output

if TYPE_CHECKING:
    from samepolicy.records.prune import Pruned

Folder = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder on this machine.")]
Every = Annotated[int, typer.Option(min=1, help="Keep every step that this number divides.")]
Keep = Annotated[int, typer.Option("--worst", min=0, help="Keep so many responses of each other step: the worst.")]
By = Annotated[str, typer.Option(help="The metric that says which responses are worst.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it; without this nothing is changed, and it says what would be.")]


def command(
    run: Folder,
    every: Every = 10,
    worst: Keep = 8,
    by: By = "logp_diff",
    yes: Yes = False,
    as_json: options.AsJson = False,
) -> None:
    """Make a run folder smaller: every k-th step stays whole, and of the others the worst responses.

    The newest step stays whole, too, and so does every response with a log-prob that is missing or infinite. Nothing is
    changed without --yes. Parts are replaced one by one, each in one move, so an interruption loses nothing that stays.
    """
    from samepolicy.records.prune import prune

    found = prune(run, every=every, worst=worst, by=by, write=yes)
    output.show(view(found), found.as_dict(), as_json=as_json)


def view(found: "Pruned") -> str:
    """What was done, or would be, in sentences."""
    did, would = ("", "") if found.done else ("would ", "Nothing is changed yet; --yes does it.")
    share = found.bytes_after / max(1, found.bytes_before)
    lines = [
        f"{found.kept:,} of {found.responses:,} responses {did}stay: those of {found.whole_steps:,} of {found.steps:,} "
        f"steps, and the {found.worst} worst of each other step by {found.by}.",
        f"{found.rewritten:,} parts {did}hold less, and {found.removed:,} {did}go.",
        f"{found.bytes_before:,} bytes {did}become {found.bytes_after:,} ({share:.0%}).",
        f"Compression: {found.compression}; columns take {found.ratio:.0%} of their size without it.",
    ]
    return "\n".join([*lines, *([would] if would else [])])
