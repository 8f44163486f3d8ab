"""Metrics for a terminal: beside usual ranges, group by group, and under a framework's names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from samepolicy.health import Reading
from samepolicy.metrics import all_metrics
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.report.tables import STATE, Indented, heading, interval, number, paragraph, rows, table
from samepolicy.structure.fact import counted
from samepolicy.summary import Summary

MAIN = (
    ("logp_diff", "mean"),
    ("logp_diff", "p99"),
    ("logp_diff", "max"),
    ("prob_diff", "mean"),
    ("prob_diff", "max"),
    ("prob_corr", "pearson"),
    ("rel_diff", "mean"),
    ("k1", "mean"),
    ("k3", "mean"),
    ("ratio", "mean"),
    ("ratio", "std"),
    ("mult_error", "mean"),
    ("ess_token", "ess"),
    ("chi2_token", "chi2"),
    ("rollout_ppl", "mean"),
    ("trainer_ppl", "mean"),
)
"""The readouts that are shown unless all are asked for."""

GROUPED = (("logp_diff", "mean"), ("prob_diff", "mean"), ("k1", "mean"), ("k3", "mean"), ("ess_token", "ess"))
"""The readouts that are shown for each group."""


def summary(
    found: Summary,
    readings: Sequence[Reading] = (),
    grouped: Mapping[str, Summary] | None = None,
    *,
    by: str = "",
    everything: bool = False,
    names: str = "samepolicy",
) -> RenderableType:
    """What `measure` and `measure_by` return.

    Args:
        found: the summary of everything.
        readings: its values beside usual ranges.
        grouped: a summary of each group.
        by: what the groups are of.
        everything: show every metric with all its readouts.
        names: a framework whose names to show beside.
    """
    parts: list[RenderableType] = [
        counts(found),
        heading("Metrics", "beside what others call normal"),
        metrics_table(found, readings, everything=everything),
    ]
    if grouped is not None:
        parts += [
            heading(f"By {by.replace('_', ' ')}", "means over the tokens of each"),
            Indented(_groups_table(grouped, by)),
        ]
    if names != "samepolicy":
        keys = rows(table("key", "value", numbers=("value",)), ((k, number(v)) for k, v in found.flat(names).items()))
        parts += [heading(f"As {names} names them"), Indented(keys)]
    partial = list(_partial(found))
    if partial:
        parts += [heading("Measured on a part of the tokens"), paragraph("\n".join(partial))]
    if found.missing:
        parts += [heading("Not measured"), paragraph("\n".join(_missing(found)))]
    return Group(*parts)


def run(found: Run, where: str) -> RenderableType:
    """What a run holds, after it was read or scored.

    Args:
        found: the run.
        where: the folder that it was written to.
    """
    sides = "\n".join(f"{side:8} {declaration(getattr(found, side))}" for side in ("rollout", "trainer"))
    head = f"{counted(len(found), 'response')} with {counted(found.tokens, 'sampled token')}, written to {where}"
    return Group(Text(head, "bold"), paragraph(f"columns  {', '.join(found.columns)}\n{sides}"))


def declaration(side: Side) -> str:
    """What a side declares, in a line; of a model's path its last part.

    >>> from samepolicy.records.side import Sampling
    >>> declaration(Side(engine="hf", model="a/b", dtype="bfloat16", sampling=Sampling(temperature=0.7)))
    'hf, bfloat16, temperature 0.7, a/b'
    """
    settings = side.sampling.changed if side.sampling else {}
    changed = [f"{name} {value}" for name, value in settings.items()]
    raw = ["raw log-probs"] if side.sampling and side.sampling.logprobs == "raw" and changed else []
    model = side.model and (Path(side.model).name if Path(side.model).is_absolute() else side.model)
    parts = [side.framework, side.engine, side.dtype, *changed, *raw, model]
    return ", ".join(part for part in parts if part) or "declares nothing"


def counts(found: Summary) -> Text:
    """What was there, in a line, and every oddity among it."""
    c = found.counts
    words = {name.replace("_", " "): value for name, value in asdict(c).items() if value}
    usual = ("sequences", "tokens", "measured")
    odd = "".join(f", {value} {name}" for name, value in words.items() if name not in usual)
    line = f"{c.measured} of {counted(c.tokens, 'token')} measured, in {counted(c.sequences, 'response')}"
    return Text.assemble((line, "bold"), (odd, "yellow"))


def _groups_table(found: Mapping[str, Summary], by: str) -> Table:
    """The main readouts of each group."""
    shown = [(metric, readout) for metric, readout in GROUPED if any(metric in group for group in found.values())]
    titles = [metric for metric, _ in shown]
    made = table(by, "tokens", *titles, numbers=("tokens", *titles), fixed=(by,))
    body = (
        (label, str(group.counts.measured), *(number(_read(group, *place)) for place in shown))
        for label, group in found.items()
    )
    return rows(made, body)


def metrics_table(found: Summary, readings: Sequence[Reading] = (), *, everything: bool = False) -> RenderableType:
    """The main readouts beside usual ranges, or all readouts of all metrics."""
    if not found.metrics:
        return paragraph("Nothing could be measured.")
    columns = ("metric", "value", "same", "usual", " ", "says")
    made = table(*columns, numbers=columns[1:3], fixed=("metric", "usual", " "))
    main = Indented(_main_rows(made, found, readings))
    if not everything:
        return main
    every = rows(table("metric", "readouts", "unit", fixed=("metric",)), _every_row(found))
    return Group(main, heading("Every metric"), Indented(every))


def _main_rows(made: Table, found: Summary, readings: Sequence[Reading]) -> Table:
    """A row for each readout, and one more for each further range of the same readout."""
    places = [*MAIN, *((r.threshold.metric, r.threshold.readout) for r in readings)]
    for metric, readout in dict.fromkeys(places):
        if metric not in found:
            continue
        ranges = [r for r in readings if (r.threshold.metric, r.threshold.readout) == (metric, readout)]
        name = f"{metric} {readout}" if readout not in ("ess", "chi2", "pearson", "share") else metric
        ideal = number(all_metrics()[metric].ideal) if readout in ("mean", "ess", "chi2", "pearson", "max") else ""
        head = (name, number(_read(found, metric, readout)), "" if ideal == "–" else ideal)
        tails = [_usual(reading) for reading in ranges] or [("", Text(), "")]
        rows(made, [(*head, *tails[0]), *(("", "", "", *tail) for tail in tails[1:])])
    return made


def _usual(reading: Reading) -> tuple[str, Text, str]:
    """The usual range, who says so, and where the value lies."""
    told = reading.threshold
    source = told.source if told.models == "any" else f"{told.source}; {told.models}"
    return interval(told.low, told.high), Text(reading.state, STATE[reading.state]), source


def _every_row(found: Summary) -> Iterator[tuple[str, str, str]]:
    """Each metric with all of its readouts in one cell."""
    for name, readouts in found.metrics.items():
        yield name, "  ".join(f"{key}={number(value)}" for key, value in readouts.items()), all_metrics()[name].unit


def _partial(found: Summary) -> Iterator[str]:
    """Metrics of tokens that do not cover all measured ones: some runs, or tokens, lack their columns."""
    by_count: dict[float, list[str]] = {}
    for name, readouts in found.metrics.items():
        count = readouts.get("count", found.counts.measured)
        if all_metrics()[name].span == "token" and count < found.counts.measured:
            by_count.setdefault(count, []).append(name)
    for count, metrics in by_count.items():
        yield f"{', '.join(metrics)}: {count} of {found.counts.measured} tokens"


def _missing(found: Summary) -> Iterator[str]:
    """What was not measured, by the columns that it would take."""
    by_columns: dict[tuple[str, ...], list[str]] = {}
    for name, needs in found.missing.items():
        by_columns.setdefault(needs, []).append(name)
    for needs, metrics in by_columns.items():
        yield f"{', '.join(metrics)}: it takes {' and '.join(needs)}"


def _read(found: Summary, metric: str, readout: str) -> float | None:
    """One readout, or None where the metric was not measured."""
    return found[metric].get(readout) if metric in found else None
