"""Which responses of a run a command takes, said in the same words everywhere."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.records.where import Where

LONGEST = 1_000_000
"""Numbers of the longest range that is taken."""

Steps = Annotated[
    list[str] | None,
    typer.Option("--steps", metavar="N|A-B", help="Only these training steps, such as 3 or 10-20; may be repeated."),
]
Samples = Annotated[
    list[str] | None,
    typer.Option("--samples", metavar="N|A-B", help="Only these samples of each step or group; may be repeated."),
]
Reasons = Annotated[
    list[str] | None,
    typer.Option(
        "--finish-reason", metavar="NAME", help="Only responses that ended so, such as stop; may be repeated."
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out files that cannot be read; they are named and counted.")
]

SPREAD = "Large runs"
"""Where help lists what is about how a run is read."""
Workers = Annotated[
    int | None,
    typer.Option(
        min=1, rich_help_panel=SPREAD, help="Processes, one core each; as many as the run is worth unless given."
    ),
]

Resume = Annotated[
    Path | None,
    typer.Option(rich_help_panel=SPREAD, help="A file that keeps what is measured, to go on from if interrupted."),
]
Sample = Annotated[
    int | None,
    typer.Option(
        "--sample",
        min=0,
        metavar="N",
        rich_help_panel=SPREAD,
        help="Judge N responses drawn by chance, and only measure the others; 0 judges all. Unless given, 4,096 are "
        "drawn of a run of more than 4 million tokens, and any other is judged as a whole.",
    ),
]


def where(steps: list[str] | None, samples: list[str] | None, finish_reasons: list[str] | None) -> "Where":
    """The responses that the switches ask for."""
    from samepolicy.records.where import Where

    numbers = {"steps": _numbers("--steps", steps), "samples": _numbers("--samples", samples)}
    return Where.of(**numbers, finish_reasons=finish_reasons or None)


def _numbers(flag: str, words: list[str] | None) -> list[int] | None:
    """Numbers and ranges, such as 3 and 10-20, as numbers.

    >>> _numbers("--steps", ["3", "10-12"]), _numbers("--steps", None)
    ([3, 10, 11, 12], None)
    """
    found: list[int] = []
    for word in words or ():
        first, dash, last = word.partition("-")
        if not first.isdecimal() or (dash and not (last.isdecimal() and int(first) <= int(last))):
            raise InputError(f"{flag} takes a number such as 3 or a range such as 10-20, not {word!r}.")
        numbers = range(int(first), int(last or first) + 1)
        if len(numbers) > LONGEST:
            raise InputError(f"{flag} {word} is a range of more than {LONGEST:,} numbers; give a shorter one.")
        found += numbers
    return found or None
