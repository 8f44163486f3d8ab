"""`samepolicy report`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from samepolicy.cli import engines, options, output
from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.diagnose import Diagnosis
    from samepolicy.records.run import Run
    from samepolicy.whatif import WhatIf

EPILOG = engines.EPILOG.format(how="--NAME or --trainer-NAME")
Html = Annotated[Path | None, typer.Option("--out", "-o", help="The .html file to write; replaces only a report.")]
Markdown = Annotated[
    Path | None, typer.Option(help="A .md file with a summary for a pull request to write; - prints it.")
]
Junit = Annotated[Path | None, typer.Option(help="A JUnit .xml file to write, for a continuous integration.")]
Tokenizer = Annotated[
    Path | None, typer.Option(help="A folder with tokenizer.json or a .gguf file, to show text for ids.")
]
Tokens = Annotated[int, typer.Option(min=0, help="Tokens to keep one by one, about; the rest is kept in bins.")]


class CLASS(engines.EngineCommand):
    """Takes the trainer's options."""

    sides: ClassVar[tuple[str, ...]] = ("trainer", "")


def command(
    run: options.RunFolder,
    out: Html = None,
    markdown: Markdown = None,
    junit: Junit = None,
    tokenizer: Tokenizer = None,
    tokens: Tokens = 65_536,
    trainer: Annotated[
        str | None, typer.Option(help="The trainer's model as kind:path; scores what the verdict and the causes lack.")
    ] = None,
    trainer_dtype: Annotated[str | None, typer.Option(help="The trainer's dtype, such as bfloat16.")] = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    as_json: options.AsJson = False,
) -> None:
    """Show a recorded run from its verdict down to each token, as one HTML file that opens without a network.

    A Markdown summary and JUnit tests say the same to a pull request and to a continuous integration. The status is
    that of `diagnose`.
    """
    from samepolicy.records.store import read
    from samepolicy.report import ci, data, html, pieces

    _refuse(out, html.MARK)
    _refuse(junit, ci.MARKS["junit"])
    _refuse(markdown if str(markdown) != "-" else None, ci.MARKS["markdown"])
    known = pieces.pieces_of(tokenizer) if tokenizer is not None else None
    chosen = engines.choices("trainer", dtype=trainer_dtype, device=device, trust_remote_code=trust_remote_code)
    with output.progress(quiet=as_json) as tell:
        found, whatif = _judged(read(run), trainer, chosen, tell)
        tell("writing the report", 0, 1)
        value: dict[str, Any] = {}
        if out is not None or as_json:
            value = data.of_report(found, whatif=whatif, pieces=known, title=run.resolve().name, budget=tokens)
        if out is not None:
            html.write(html.render(value), out)
    _others(found, markdown, junit)
    _say(found, value, as_json=as_json, quiet=str(markdown) == "-", out=out)
    raise typer.Exit(found.exit_code)


def _judged(
    run: "Run", trainer: str | None, chosen: dict[str, Any], tell: output.Tell
) -> "tuple[Diagnosis, WhatIf | None]":
    """The verdict, with causes where a trainer is at hand, and what corrections would do."""
    from samepolicy.engines.base import engine
    from samepolicy.report import data

    if trainer is None and chosen:
        raise InputError("Options of an engine need an engine; give --trainer as kind:path.")
    tell("judging", 0, 1)
    return data.judged(run, trainer=engine(trainer, **chosen) if trainer else None, progress=tell)


def _others(found: "Diagnosis", markdown: Path | None, junit: Path | None) -> None:
    """Write what else was asked for."""
    from samepolicy.report import ci

    if junit is not None:
        junit.write_text(ci.junit(found.as_dict()), encoding="utf-8", errors="replace")
    if markdown is not None and str(markdown) == "-":
        output.line(ci.markdown(found.as_dict()).rstrip("\n"))
    elif markdown is not None:
        markdown.write_text(ci.markdown(found.as_dict()), encoding="utf-8", errors="replace")


def _say(found: "Diagnosis", value: dict[str, Any], *, as_json: bool, quiet: bool, out: Path | None) -> None:
    """The verdict in a terminal, and where the report is."""
    from rich.text import Text

    if as_json or not quiet:
        view = Text.assemble((f"{found.verdict}: ", "bold"), found.sentence, f"\n{found.next}")
        output.show(view, value, as_json=as_json)
    if out is not None:
        output.note(f"The report is in {out}.")


def _refuse(file: Path | None, mark: str) -> None:
    """Refuse, before any work is done, a file that must not be written."""
    from samepolicy.report import html

    if file is not None:
        html.refuse(file, mark=mark)
