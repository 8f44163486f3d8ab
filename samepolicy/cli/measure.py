"""`samepolicy measure`."""

from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from samepolicy.cli import options, output

if TYPE_CHECKING:
    from samepolicy.health import Reading
    from samepolicy.records.run import Run
    from samepolicy.summary import Summary

Runs = Annotated[
    list[Path], typer.Argument(metavar="RUN", help="Run folders, or dumps of other programs; several are merged.")
]
By = Annotated[
    str | None,
    typer.Option(help="Measure groups apart, too: by step, position, probability, turn, version, finish_reason, …"),
]
Names = Annotated[str, typer.Option(help="A framework whose own keys to give beside, such as verl.")]


def command(
    runs: Runs,
    by: By = None,
    names: Names = "samepolicy",
    everything: options.Everything = False,
    as_json: options.AsJson = False,
) -> None:
    """Measure how far apart the two sides of recorded runs are; needs no model."""
    from samepolicy.records.store import read
    from samepolicy.report import data, measures
    from samepolicy.summary import measure

    loaded, summaries, parts = [], [], []
    with output.progress(quiet=as_json) as tell:
        for i, path in enumerate(runs):
            tell(f"measuring {path}", i, len(runs))
            run = read(path)
            summaries.append(measure(run, names=names))
            parts.append(_groups(run, by, names))
            loaded.append(run.without(*run.columns))
    found, groups = reduce(add, summaries), _merged(parts) if by else None
    readings = _readings(found, loaded)
    view = measures.summary(found, readings, groups, by=by or "", everything=everything, names=names)
    output.show(view, data.of_summary(found, groups=groups, by=by or "", names=names), as_json=as_json)


def _groups(run: "Run", by: str | None, names: str) -> "dict[str, Summary]":
    """The groups of one run; none where none are asked for."""
    from samepolicy.grouping import measure_by

    return measure_by(run, by, names=names) if by else {}


def _merged(parts: "list[dict[str, Summary]]") -> "dict[str, Summary]":
    """The groups of all runs together, label by label."""
    merged: dict[str, Summary] = {}
    for part in parts:
        for label, group in part.items():
            merged[label] = merged[label] + group if label in merged else group
    return merged


def _readings(found: "Summary", runs: "list[Run]") -> "tuple[Reading, ...]":
    """The values beside usual ranges; those for one dtype only where all runs declare the same."""
    from samepolicy.health import judge
    from samepolicy.records.declared import dtype_of

    declared = {(dtype_of(run.rollout), dtype_of(run.trainer)) for run in runs}
    rollout, trainer = declared.pop() if len(declared) == 1 else (None, None)
    return judge(found, rollout_dtype=rollout, trainer_dtype=trainer)
