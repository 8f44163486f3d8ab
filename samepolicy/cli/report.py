"""`samepolicy report`."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from samepolicy.cli import causes, choices, engines, large, options, output
from samepolicy.cli.skipped import Skipped
from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.diagnose import Diagnosis
    from samepolicy.engines.base import Engine
    from samepolicy.fleet import Plan, Sample
    from samepolicy.report.whole import Whole
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


CLASS = causes.CauseCommand


def command(
    run: options.RunFolder,
    out: Html = None,
    markdown: Markdown = None,
    junit: Junit = None,
    tokenizer: Tokenizer = None,
    tokens: Tokens = 65_536,
    trainer: options.Trainer = None,
    trainer_dtype: options.TrainerDtype = None,
    rollout_dtype: options.RolloutDtype = None,
    checkpoints: causes.Checkpoints = None,
    weights: causes.Weights = None,
    layers: causes.Layers = None,
    device: options.Device = None,
    trust_remote_code: options.Trust = False,
    steps: choices.Steps = None,
    samples: choices.Samples = None,
    finish_reason: choices.Reasons = None,
    skip_bad: choices.SkipBad = False,
    workers: choices.Workers = None,
    resume: choices.Resume = None,
    sample: choices.Sample = None,
    as_json: options.AsJson = False,
) -> None:
    """Show a recorded run from its verdict down to each token, as one HTML file that opens without a network.

    A Markdown summary and JUnit tests say the same to a pull request and to a continuous integration. The status is
    that of `diagnose`. Of a large run everything that is counted is of all responses, and the worst and a sample are
    shown one by one.
    """
    from samepolicy.report import data, html, pieces

    _refuse(out, markdown if str(markdown) != "-" else None, junit)
    known = pieces.pieces_of(tokenizer) if tokenizer is not None else None
    chosen = engines.choices("trainer", dtype=trainer_dtype, device=device, trust_remote_code=trust_remote_code)
    more = causes.given(trainer, chosen, checkpoints, weights, layers)
    skipped = Skipped() if skip_bad else None
    asked = large.Asked(
        run, choices.where(steps, samples, finish_reason), sample, workers, skipped, resume, rollout_dtype
    )
    with output.progress(quiet=as_json) as tell:
        made = _judged(asked, trainer, chosen, more, tell)
        tell("writing the report", 0, 1)
        value: dict[str, Any] = {"skipped": skipped.sentences} if skipped else {}
        if out is not None or as_json:
            value |= data.of_report(
                made.found,
                whatif=made.whatif,
                pieces=known,
                title=run.resolve().name,
                budget=tokens,
                whole=made.whole,
                drawn=made.drawn,
            )
        if out is not None:
            html.write(html.render(value), out)
    _others(data.of_diagnosis(made.found, made.drawn), markdown, junit)
    _say(made, value, as_json=as_json, quiet=str(markdown) == "-", out=out)
    raise typer.Exit(made.found.exit_code)


@dataclass(frozen=True)
class _Judged:
    """The verdict with what stands beside it on a page."""

    found: "Diagnosis"
    whatif: "WhatIf | None" = None
    whole: "Whole | None" = None
    drawn: "Sample | None" = None


def _judged(
    asked: large.Asked, trainer: str | None, chosen: dict[str, Any], more: dict[str, Any], tell: output.Tell
) -> _Judged:
    """The verdict, with causes where a trainer is at hand, and what corrections would do."""
    from samepolicy.engines.base import engine
    from samepolicy.report import data

    tell(f"looking at {asked.path}", 0, 1)
    plan = asked.plan()
    loaded = None if trainer is None else engine(trainer, **chosen)
    if asked.sampled(plan):
        return _streamed(asked, plan, loaded, more, tell)
    run = asked.read(plan)
    tell("judging", 0, 1)
    return _Judged(*data.judged(run, trainer=loaded, **more, progress=tell))


def _streamed(
    asked: large.Asked, plan: "Plan", trainer: "Engine | None", more: dict[str, Any], tell: output.Tell
) -> _Judged:
    """The same of a run that is streamed: the verdict of a sample, everything that is counted of all."""
    from samepolicy.diagnose import diagnose
    from samepolicy.report import data, whole

    assert plan.source is not None
    columns = plan.source.columns
    plan = plan.asking(*whole.asked(columns), by="step" if "step" in columns else None)
    drawn = asked.draw(plan, tell)
    found = diagnose(drawn.run, trainer=trainer, **more, progress=tell)
    if drawn.drawn.metrics != "all":
        return _Judged(found, drawn=drawn)
    all_of_it = whole.whole(plan, plan.way(asked.workers), drawn, tell)
    if trainer is not None:  # what it scored is seen on the sample alone
        all_of_it = replace(all_of_it, run=found.run, numbers=sorted(drawn.numbers.tolist()))
    return _Judged(data.of_all(found, drawn), all_of_it.whatif, all_of_it, drawn)


def _others(value: dict[str, Any], markdown: Path | None, junit: Path | None) -> None:
    """Write what else was asked for."""
    from samepolicy.report import ci

    if junit is not None:
        junit.write_text(ci.junit(value), encoding="utf-8", errors="replace")
    if markdown is not None and str(markdown) == "-":
        output.line(ci.markdown(value).rstrip("\n"))
    elif markdown is not None:
        markdown.write_text(ci.markdown(value), encoding="utf-8", errors="replace")


def _say(made: _Judged, value: dict[str, Any], *, as_json: bool, quiet: bool, out: Path | None) -> None:
    """The verdict in a terminal, and where the report is."""
    from rich.text import Text

    if as_json or not quiet:
        found, drawn = made.found, f"\nSample: {made.drawn.drawn}." if made.drawn else ""
        beware = "".join(f"\nBeware: {warning}." for warning in found.warnings)
        view = Text.assemble((f"{found.verdict}: ", "bold"), found.sentence, drawn, beware, f"\n{found.next}")
        output.show(view, value, as_json=as_json)
    if out is not None:
        output.note(f"The report is in {out}.")


def _refuse(out: Path | None, markdown: Path | None, junit: Path | None) -> None:
    """Refuse, before any work is done, files that must not be written, and one file for two of them."""
    from samepolicy.report import ci, html

    marks = ((out, html.MARK), (markdown, ci.MARKS["markdown"]), (junit, ci.MARKS["junit"]))
    given = [(file, mark) for file, mark in marks if file is not None]
    if len({os.path.realpath(file) for file, _ in given}) < len(given):
        raise InputError("Two of --out, --markdown and --junit name one file; give each a file of its own.")
    for file, mark in given:
        html.refuse(file, mark=mark)
