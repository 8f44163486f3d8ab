"""The one JSON value of every result: {"schema": 1, "counts": …, "metrics": …}, and more beside it where there is."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from samepolicy.blocks import Counts
from samepolicy.diagnose import Diagnosis, diagnose
from samepolicy.errors import MissingColumnError
from samepolicy.fleet import Sample
from samepolicy.health import judge
from samepolicy.records.declared import dtype_of
from samepolicy.records.run import Run
from samepolicy.structure.ids import declared
from samepolicy.summary import Summary, json_number, measure

if TYPE_CHECKING:
    from samepolicy.report.whole import Whole
    from samepolicy.whatif import WhatIf


def of_diagnosis(found: Diagnosis, drawn: Sample | None = None) -> dict[str, Any]:
    """What `check` and `diagnose` return, as it is; of a sample also how it was drawn."""
    return found.as_dict() | ({"sample": drawn.drawn.as_dict()} if drawn else {})


def of_all(found: Diagnosis, drawn: Sample) -> Diagnosis:
    """The diagnosis of a sample with the metrics of all responses in the place of its own, where these are known.

    One value of all responses that is no log-prob makes the verdict `different`, whether it was drawn or not.
    """
    if drawn.drawn.metrics != "all":
        return found
    dtypes = {"rollout_dtype": dtype_of(found.run.rollout), "trainer_dtype": dtype_of(found.run.trainer)}
    summary = drawn.whole.summary
    found = replace(found, summary=summary, readings=judge(summary, **dtypes, experts=declared(found.run, "experts")))
    bad = list(_no_logps(summary.counts))
    if not bad or any(fact.breaks for fact in found.facts):
        return found
    return replace(
        found,
        verdict="different",
        sentence=f"The two policies differ: of all {summary.counts.tokens} tokens under the mask, {'; '.join(bad)}. "
        f"The sample holds none of these; by itself it says: {found.sentence}",
        next="Look at the first such token: `samepolicy report` shows the responses that are farthest apart.",
    )


def _no_logps(counts: Counts) -> Iterator[str]:
    """Values under the mask that are no log-probs, in words."""
    for side in ("rollout", "trainer"):
        for name, words in (("nonfinite", "NaN or infinite"), ("positive", "above 0")):
            if number := getattr(counts, f"{name}_{side}"):
                yield f"{number} values of the {side} are {words}"


def of_report(
    found: Diagnosis,
    *,
    whatif: "WhatIf | None" = None,
    pieces: Mapping[int, bytes] | None = None,
    title: str = "",
    budget: int | None = None,
    whole: "Whole | None" = None,
    drawn: Sample | None = None,
) -> dict[str, Any]:
    """The value of a report: that of the diagnosis, and beside it everything that its page draws.

    Args:
        found: the diagnosis, with the run that it judged.
        whatif: what corrections would do; made from the run where it has both log-probs.
        pieces: bytes by token id; by default what the run holds.
        title: what the report is of.
        budget: how many tokens to keep one by one, about.
        whole: what is counted of all responses, where the diagnosis is of a sample.
        drawn: that sample.
    """
    from samepolicy.report.page.tokens import BUDGET
    from samepolicy.report.page.value import value
    from samepolicy.report.pieces import pieces_in

    known = pieces_in(whole.run if whole else found.run) if pieces is None else pieces
    kept = BUDGET if budget is None else budget
    rules = whole.whatif if whole else whatif or _whatif(found.run)
    made = value(found, rules, pieces=known, title=title, budget=kept, whole=whole)
    return made | ({"sample": drawn.drawn.as_dict()} if drawn else {})


def usual(value: Mapping[str, Any], metric: str, readout: str) -> tuple[list[Any], Any]:
    """The usual ranges of a readout with where it lies, and the one to show alone: the first that it is inside of."""
    ranges = [r for r in value["health"] if (r["metric"], r["readout"]) == (metric, readout)]
    return ranges, next((r for r in ranges if r["state"] == "normal"), ranges[0] if ranges else None)


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
