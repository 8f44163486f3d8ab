"""`samepolicy measure`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from samepolicy.cli import choices, options, output
from samepolicy.cli.choices import SPREAD
from samepolicy.cli.skipped import Skipped
from samepolicy.errors import InputError

if TYPE_CHECKING:
    from samepolicy.fleet import Measured, Plan, Way
    from samepolicy.health import Reading

Runs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN", help="Run folders or their URLs, or dumps of other programs; several are merged."),
]
By = Annotated[
    str | None,
    typer.Option(help="Measure groups apart, too: by step, position, probability, turn, version, finish_reason, …"),
]
Names = Annotated[str, typer.Option(help="A framework whose own keys to give beside, such as verl.")]
On = Annotated[
    Literal["ray"] | None,
    typer.Option("--on", rich_help_panel=SPREAD, help="Measure on a Ray cluster: that of RAY_ADDRESS, or a local one."),
]


def command(
    runs: Runs,
    by: By = None,
    names: Names = "samepolicy",
    steps: choices.Steps = None,
    samples: choices.Samples = None,
    finish_reason: choices.Reasons = None,
    skip_bad: choices.SkipBad = False,
    workers: choices.Workers = None,
    on: On = None,
    resume: choices.Resume = None,
    everything: options.Everything = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure how far apart the two sides of recorded runs are; needs no model.

    A run folder is read shard by shard on all cores, so it may be larger than memory. The numbers do not depend on how
    the work is spread.
    """
    from samepolicy.fleet import Measured, plan_of
    from samepolicy.report import data, measures

    if resume and len(runs) > 1:
        raise InputError("--resume keeps one run's measurement, but several are given; measure them one by one.")
    skipped, where = Skipped() if skip_bad else None, choices.where(steps, samples, finish_reason)
    found = Measured()
    with output.progress(quiet=as_json) as tell:
        for path in runs:
            tell(f"looking at {path}", 0, 1)
            plan = plan_of(path, by=by, names=names, where=where, on_bad=skipped)
            found += plan.run(_way(plan, workers, on), tell=tell, resume=resume)
    summary, groups = found.summary, found.groups if by else None
    view = measures.summary(summary, _readings(found), groups, by=by or "", everything=everything, names=names)
    value: dict[str, Any] = data.of_summary(summary, groups=groups, by=by or "", names=names)
    output.show(view, value | ({"skipped": skipped.sentences} if skipped else {}), as_json=as_json)


def _way(plan: "Plan", workers: int | None, on: str | None) -> "Way":
    """How to spread a run's shards."""
    if on == "ray":
        from samepolicy.integrations.ray import cluster

        return cluster(workers)
    return plan.way(workers)


def _readings(found: "Measured") -> "tuple[Reading, ...]":
    """The values beside usual ranges; those for one dtype only where all runs declare the same."""
    from samepolicy.health import judge

    rollout, trainer = next(iter(found.dtypes)) if len(found.dtypes) == 1 else (None, None)
    return judge(found.summary, rollout_dtype=rollout, trainer_dtype=trainer)
