"""The one JSON value of every result: {"schema": 1, "counts": …, "metrics": …}, and more beside it where there is."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from samepolicy.blocks import Counts
from samepolicy.diagnose import Diagnosis, diagnose
from samepolicy.errors import MissingColumnError
from samepolicy.records.run import Run
from samepolicy.summary import Summary, json_number, measure

if TYPE_CHECKING:
    from samepolicy.whatif import WhatIf


def of_diagnosis(found: Diagnosis) -> dict[str, Any]:
    """What `check` and `diagnose` return, as it is."""
    return found.as_dict()


def of_report(
    found: Diagnosis,
    *,
    whatif: "WhatIf | None" = None,
    pieces: Mapping[int, bytes] | None = None,
    title: str = "",
    budget: int | None = None,
) -> dict[str, Any]:
    """The value of a report: that of the diagnosis, and beside it everything that its page draws.

    Args:
        found: the diagnosis, with the run that it judged.
        whatif: what corrections would do; made from the run where it has both log-probs.
        pieces: bytes by token id; by default what the run holds.
        title: what the report is of.
        budget: how many tokens to keep one by one, about.
    """
    from samepolicy.report.page.tokens import BUDGET
    from samepolicy.report.page.value import value
    from samepolicy.report.pieces import pieces_in

    known = pieces_in(found.run) if pieces is None else pieces
    kept = BUDGET if budget is None else budget
    return value(found, whatif or _whatif(found.run), pieces=known, title=title, budget=kept)


def judged(run: Run, **options: Any) -> "tuple[Diagnosis, WhatIf | None]":
    """The diagnosis of a run and what corrections would do to it, side by side on two threads.

    Args:
        run: the run.
        **options: as `diagnose` takes them.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(_whatif, run)
        found = diagnose(run, **options)
        return found, ahead.result()


def _whatif(run: Run) -> "WhatIf | None":
    """What corrections would do; None where the run lacks a side."""
    from samepolicy.whatif import whatif

    return whatif(run) if "rollout_logp" in run and "trainer_logp" in run and len(run) else None


def of_summary(
    summary: Summary, *, groups: Mapping[str, Summary] | None = None, by: str = "", names: str = "samepolicy"
) -> dict[str, Any]:
    """What `measure` returns; with groups each of them in the same shape, and with a framework's names those too.

    Args:
        summary: of everything.
        groups: for each label a summary of its own.
        by: what the groups are of.
        names: whose names to add under "names".

    >>> from samepolicy.summary import measure_batch
    >>> logp = np.log([[0.5, 0.25]])
    >>> value = of_summary(measure_batch(trainer=logp, rollout=logp, mask=np.array([[1, 1]])))
    >>> value["schema"], value["counts"]["tokens"], value["metrics"]["k3"]["mean"]
    (1, 2, 0.0)
    """
    value = summary.as_dict()
    if groups is not None:
        value |= {"by": by, "groups": {label: group.as_dict() for label, group in groups.items()}}
    if names != "samepolicy":
        value["names"] = {key: json_number(number) for key, number in summary.flat(names).items()}
    return value


def of_run(run: Run) -> dict[str, Any]:
    """A run as it was read or scored: counts and metrics, its columns, and what each side declares."""
    sides = {side: getattr(run, side).as_dict() for side in ("rollout", "trainer")}
    return {**summary_of(run).as_dict(), "run": {"responses": len(run), "columns": sorted(run.columns), **sides}}


def summary_of(run: Run) -> Summary:
    """The metrics of a run; only counts where it lacks a side's log-probs."""
    try:
        return measure(run)
    except MissingColumnError:
        return Summary(Counts(sequences=len(run), tokens=run.tokens), {}, {})
