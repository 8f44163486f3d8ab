"""`samepolicy import`."""

from pathlib import Path
from typing import Annotated

import typer

from samepolicy.cli import folders, options, output
from samepolicy.cli.skipped import Skipped

Map = Annotated[
    list[str] | None,
    typer.Option(
        "--map",
        metavar="OURS=THEIRS",
        help="Take a column from one of another name, as in trainer_logp=old_lp; repeat.",
    ),
]
Kind = Annotated[
    str | None, typer.Option("--format", help="The dump's format by name; found from the path if not given.")
]
Unsafe = Annotated[
    bool, typer.Option("--unsafe-pickle", help="Read a format that is a Python pickle; only if you trust its writer.")
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Leave out files that cannot be read; they are named and counted.")
]


def command(
    src: Annotated[Path, typer.Argument(metavar="SRC", help="A dump of another program.")],
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A new folder to write the run to.")],
    columns: Map = None,
    kind: Kind = None,
    unsafe_pickle: Unsafe = False,
    skip_bad: SkipBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Turn a dump of another program into a run folder, one part a step."""
    from samepolicy.records.formats import import_run
    from samepolicy.records.store import write_steps
    from samepolicy.report import data, measures

    folders.refuse(run)
    skipped = Skipped() if skip_bad else None
    found = import_run(src, columns=_map(columns), kind=kind, unsafe_pickle=unsafe_pickle, on_bad=skipped)
    write_steps(found, run)
    value = data.of_run(found) | ({"skipped": skipped.sentences} if skipped is not None else {})
    output.show(measures.run(found, str(run)), value, as_json=as_json)


def _map(given: list[str] | None) -> dict[str, str]:
    """Pairs of column names.

    >>> _map(["trainer_logp=old_lp"])
    {'trainer_logp': 'old_lp'}
    """
    from samepolicy.errors import InputError

    pairs = [entry.partition("=") for entry in given or ()]
    bad = next((ours + sign for ours, sign, theirs in pairs if not (ours and sign and theirs)), None)
    if bad is not None:
        raise InputError(f"--map takes OURS=THEIRS, as in trainer_logp=old_lp, not {bad!r}.")
    return {ours: theirs for ours, _, theirs in pairs}
