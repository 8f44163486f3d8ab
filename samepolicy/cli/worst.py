"""`samepolicy worst`."""

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from samepolicy.cli import choices, options, output
from samepolicy.cli.skipped import Skipped

if TYPE_CHECKING:
    from rich.console import RenderableType

    from samepolicy.records.worst import Outlier, Worst

By = Annotated[str, typer.Option(help="The metric: any that has a value for each token or response.")]
Number = Annotated[int, typer.Option("-n", min=1, help="How many to show.")]
Over = Annotated[
    Literal["token", "response"], typer.Option(help="Rank single tokens, or responses by the mean over their tokens.")
]


def command(
    run: options.RunFolder,
    by: By = "logp_diff",
    number: Number = 10,
    over: Over = "token",
    steps: choices.Steps = None,
    samples: choices.Samples = None,
    finish_reason: choices.Reasons = None,
    skip_bad: choices.SkipBad = False,
    as_json: options.AsJson = False,
) -> None:
    """Show the tokens or responses where the two policies are farthest apart, with their text where it is recorded.

    Needs no model; a run folder is read part by part, so it may be larger than memory.
    """
    from samepolicy.records.outliers import metric_of, needed
    from samepolicy.records.stream import stream
    from samepolicy.records.worst import worst

    skipped, where = Skipped() if skip_bad else None, choices.where(steps, samples, finish_reason)
    asked: dict[str, Any] = vars(where)
    columns = {*needed(metric_of(by)), "trainer_logp", "rollout_logp", "response_ids", "token_text", "text"}
    columns |= {"step", "group", "sample"}
    parts = stream(run, columns=columns, on_bad=skipped, **asked)
    found = worst(parts, by=by, n=number, over=over)
    value: dict[str, Any] = found.as_dict() | ({"skipped": skipped.sentences} if skipped is not None else {})
    output.show(view(found), value, as_json=as_json)


def view(found: "Worst") -> "RenderableType":
    """The outliers as a table."""
    from rich.console import Group

    from samepolicy.report.tables import Indented, heading, rows, table

    token = found.over == "token"
    numbers = (found.by, "trainer", "rollout", "step", "response", *(("position", "id") if token else ("tokens",)))
    made = table(*numbers, "text", numbers=numbers)
    what = f"of {found.ranked:,} {found.over}s, by {found.by} in {found.unit}"
    parts: list[Any] = [heading(f"The worst {len(found.found)}", what), Indented(rows(made, map(_cells, found.found)))]
    if found.bad:
        parts.append(f"{found.bad:,} tokens have a log-prob that is missing, infinite or above 0, and are not ranked.")
    return Group(*parts)


def _cells(one: "Outlier") -> list[str]:
    """One row of the table."""
    from samepolicy.report.tables import number

    place = [_or_dash(one.position), _or_dash(one.id)] if one.position is not None else [str(one.tokens)]
    shown = one.text if one.position is None else _around(one)
    return [
        number(one.value), number(one.trainer_logp), number(one.rollout_logp), _or_dash(one.step), str(one.sequence),
        *place, repr(shown)[1:-1] if shown is not None else "–",
    ]  # fmt: skip


def _around(one: "Outlier") -> str | None:
    """A token in brackets, between its neighbours."""
    return None if one.text is None else f"{one.before or ''}[{one.text}]{one.after or ''}"


def _or_dash(value: int | None) -> str:
    """A number, or a dash."""
    return "–" if value is None else str(value)
