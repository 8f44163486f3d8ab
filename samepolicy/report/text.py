"""A diagnosis for a terminal: the verdict first, then what it rests on, then what to do."""

from collections.abc import Iterator, Sequence
from math import hypot, isnan, sqrt

from rich.console import Group, RenderableType
from rich.text import Text

from samepolicy.causes import Finding
from samepolicy.diagnose import Diagnosis, Gap, Rung
from samepolicy.fleet import Sample
from samepolicy.floor import Floor
from samepolicy.records.declared import assumed
from samepolicy.report.measures import declaration, metrics_table
from samepolicy.report.tables import STATUS, Indented, heading, inline, number, paragraph, rows, table, times
from samepolicy.structure import counted

VERDICT = {"same": "green", "numerics": "green", "different": "red", "inconclusive": "yellow"}
SELF_ROWS = {
    "trainer_alone": "trainer–itself",
    "rollout_prefill": "rollout–itself",
    "rollout_woken": "rollout–woken",
}
PLACE = {"below": ("rounding", "green"), "above": ("more", "bold red"), "unclear": ("unclear", "yellow")}


def diagnosis(found: Diagnosis, drawn: Sample | None = None, *, everything: bool = False) -> RenderableType:
    """A diagnosis as it is shown.

    Args:
        found: the diagnosis.
        drawn: the sample that it is of, where it is of one.
        everything: show every metric with all its readouts, not the main ones.

    Returns:
        What rich prints.
    """
    return Group(
        _verdict(found),
        *([inline("Sample", f"{drawn.drawn}")] if drawn else []),
        *_sides(found),
        *_causes(found),
        *_gap(found),
        heading("Eight steps of a consistency test"),
        _rungs("step", found.steps, numbered=True),
        heading("Ladder", "where the two sides can part, in the order to look"),
        _rungs("rung", found.ladder),
        heading("Metrics", "beside what others call normal; a measured floor beats all of these"),
        metrics_table(found.summary, found.readings, everything=everything),
        *_rest(found),
    )


def _verdict(found: Diagnosis) -> RenderableType:
    """The word, and its sentence."""
    colour = VERDICT[found.verdict]
    return Group(
        Text.assemble(("Verdict: ", "bold"), (found.verdict, f"bold {colour}")), paragraph(found.sentence, "bold")
    )


def _sides(found: Diagnosis) -> Iterator[RenderableType]:
    """What each side is, in a line."""
    lines = [f"{side:8} {declaration(getattr(found.run, side))}" for side in ("rollout", "trainer")]
    lines[1] += " (of the engine that was given; the run declares no trainer)" if assumed(found.run) else ""
    yield paragraph("\n".join(lines), "dim")
    for warning in found.warnings:
        yield inline("Beware", warning)


def _causes(found: Diagnosis) -> Iterator[RenderableType]:
    """The named causes with their proof, and the ledger."""
    if not found.findings:
        return
    yield heading("Causes", "named because undoing them closes the gap, or by the proof that is told")
    columns = ("nats/token", "explained")
    made = table("cause", "side", *columns, "proof", numbers=columns, fixed=("side", "proof"))
    yield Indented(rows(made, [_cause_row(finding) for finding in found.findings]))
    for finding in found.findings:
        yield paragraph(f"{finding.cause}: {finding.evidence}.")
        if finding.alternatives:
            names = ", ".join(finding.alternatives)
            yield paragraph(f"As good as {finding.cause}: {names}. To tell them apart: {finding.separate}.", "dim")
    if found.ledger is not None and found.ledger.residual is not None:
        left = found.ledger.residual
        yield paragraph(f"Once they are undone, {left.mean_abs:.2g} nats a token are left, {left}.", "dim")


def _cause_row(finding: Finding) -> Sequence[str | Text]:
    """One named cause."""
    share = "–"
    if finding.explained is not None:
        ends = (
            f" ({finding.low:.0%} to {finding.high:.0%})"
            if finding.low is not None and finding.high is not None
            else ""
        )
        share = f"{finding.explained:.0%}{ends}"
    return finding.told, finding.side, number(finding.nats, 3), share, finding.proof


def _gap(found: Diagnosis) -> Iterator[RenderableType]:
    """Who is how far from whom, the floors beside it, and each side against itself."""
    yield heading("How far apart", "nats per token; the floor is what rounding alone does")
    columns = ("mean abs", "rms", "floor", "G/floor²", "95 % interval")
    made = table("", *columns, " ", numbers=columns, fixed=("", " "))
    yield Indented(rows(made, [*_gap_rows(found), *_self_rows(found)]))
    yield paragraph("\n".join(_remarks(found)), "dim")


def _gap_rows(found: Diagnosis) -> Iterator[Sequence[str | Text]]:
    """The pair, then each side against float32."""
    floor = found.floor
    if found.gap is not None:
        yield _gap_row("trainer–rollout", found.gap, pair_floor(floor))
    elif "logp_diff" in found.summary:
        yield (
            "trainer–rollout",
            number(found.summary["logp_diff"]["mean"], 3),
            *("–",) * 4,
            Text("no floor", "yellow"),
        )
    for side in found.sides:
        level = getattr(floor, side.name, None)
        yield _gap_row(f"{side.name}–float32", side.gap, level.overall if level else None)


def _gap_row(name: str, gap: Gap, floor: float | None) -> Sequence[str | Text]:
    """One comparison."""
    sizes = number(gap.mean_abs, 3), number(sqrt(gap.mean_square), 3), number(floor, 3)
    return name, *sizes, times(gap.ratio), _interval(gap), Text(*PLACE[gap.place])


def _interval(gap: Gap) -> str:
    """The interval of a gap; a dash where one prompt gives none."""
    return "–" if isnan(gap.low) else f"{times(gap.low)} to {times(gap.high)}"


def _self_rows(found: Diagnosis) -> Iterator[Sequence[str | Text]]:
    """Each engine against itself."""
    for key, name in SELF_ROWS.items():
        check = found.self_checks.get(key)
        if check and check["rms"] is not None:
            yield name, number(check["mean_abs"], 3), number(check["rms"], 3), "", "", "", ""


def _remarks(found: Diagnosis) -> Iterator[str]:
    """What the table's rows and words mean, and who is further from float32."""
    if found.gap is not None:
        few = "" if found.gap.limit == 1.5 else " (with fewer than 12 prompts)"
        counts = f"{counted(found.gap.tokens, 'token')} of {counted(found.gap.prompts, 'prompt')}"
        tails, cap = (f"{found.gap.tails:.2%}", ", which count as 8") if found.gap.tails else ("none", "")
        yield f"Up to {found.gap.limit:g} floors²{few} is rounding. {counts}, {tails} beyond 8 floors{cap}."
    innocent = found.verdict == "different" and all(side.gap.place == "below" for side in found.sides)
    if len(found.sides) == 2 and not innocent and not any(fact.breaks for fact in found.facts):
        who = f"the {found.further}" if found.further else "neither side clearly"
        owner = found.run.info.get("reference", {}).get("owner")
        model = f"the {owner}'s model" if owner in ("rollout", "trainer") else "the reference"
        yield f"Further from the float32 forward of its own declaration, by {model}: {who}."
    if found.self_checks:
        ways = "the trainer one by one and in a batch, the rollout decoding and in one forward"
        slept = ", or before and after it slept" if "rollout_woken" in found.self_checks else ""
        yield f"Against itself: {ways}{slept}."
    if found.gap is None and found.floor is not None:
        yield f"Floor not known: {'; '.join(found.floor.missing)}."


def pair_floor(floor: Floor | None) -> float | None:
    """The floor of trainer against rollout over all tokens, sqrt(e_R² + e_T² + e_cast²), nats; None if not known."""
    if floor is None or floor.rollout is None or floor.trainer is None:
        return None
    return hypot(floor.rollout.overall, floor.trainer.overall, floor.cast.overall if floor.cast else 0.0)


def _rungs(name: str, rungs: Sequence[Rung], *, numbered: bool = False) -> RenderableType:
    """Steps or rungs with status and why."""
    made = table(name, "status", "why", fixed=("status",))
    made.columns[0].max_width = 26
    for i, rung in enumerate(rungs, start=1):
        title = Text(f"{i} {rung.name}" if numbered else rung.name)
        made.add_row(title, Text(rung.status, STATUS[rung.status]), Text(rung.why))
    return Indented(made)


def _rest(found: Diagnosis) -> Iterator[RenderableType]:
    """What the gap does over the steps, what was not checked, and what to do next."""
    if found.course is not None:
        yield inline("Over the steps", f"{found.course}.")
    if found.open_rungs:
        names = ", ".join(rung.name for rung in found.open_rungs)
        yield inline("Not checked", f"{names} (the ladder says what it would take)")
    if found.kept and (found.findings or found.tried):
        yield inline("Causes", "as they were found with a model, and kept in the run; --trainer looks again")
    if found.tried:
        yield inline("Tried, and not it", ", ".join(found.tried))
    if found.unchecked and found.verdict in ("different", "inconclusive"):
        takes: dict[str, list[str]] = {}
        for cause in found.unchecked:
            takes.setdefault(cause.takes, []).append(cause.name)
        told = (f"{', '.join(names)}: it takes {what}" for what, names in takes.items())
        yield inline("Causes not checked", "; ".join(told))
    yield inline("Next", found.next)
