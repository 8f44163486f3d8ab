"""What a diagnosis says."""

from dataclasses import dataclass, field
from typing import Any

from samepolicy.causes import Finding
from samepolicy.diagnose.course import Course
from samepolicy.diagnose.ladder import Rung
from samepolicy.diagnose.ledger import Ledger
from samepolicy.diagnose.naming import Unchecked
from samepolicy.diagnose.sides import SideGap, further
from samepolicy.diagnose.verdict import Word
from samepolicy.diagnose.where import Where
from samepolicy.floor import Floor
from samepolicy.floor.gap import Gap
from samepolicy.health import Reading
from samepolicy.records.run import Run
from samepolicy.structure import Fact, other_model, unasked
from samepolicy.summary import Summary

EXIT_CODES: dict[Word, int] = {"same": 0, "numerics": 0, "different": 1, "inconclusive": 3}
"""Exit status of the command line for each verdict; 2 is bad input."""

OUTDATED = (
    "the causes that this run keeps were named in other responses, before something of it was changed, or by another "
    "version of samepolicy, and do not count here; give the trainer's model to look again"
)


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The verdict on a run and everything it rests on.

    Attributes:
        verdict: "same", "numerics", "different" or "inconclusive".
        sentence: the verdict in words, with its numbers.
        next: what to do now.
        summary: the metrics of the run.
        gap: the gap in multiples of the floor; None where it is not known.
        floor: how large rounding is, per side and surprisal bin; None where neither side's is known.
        sides: how far each side is from the float32 forward of its own declaration.
        where: where the differences are.
        course: what the gap does over the steps; None where the run has too few.
        steps: the eight steps of a consistency test.
        ladder: the nine rungs.
        facts: every structural test.
        readings: metrics beside their usual ranges; a measured floor beats them.
        self_checks: each engine against itself, nats, as `check` measured it.
        findings: named causes, most likely first.
        ledger: nats per token of each named cause, and what is left; None where there was nothing to explain.
        unchecked: causes that could not be checked, with what it would take.
        tried: causes that were undone and did not close the gap, where none did.
        kept: causes are as an earlier diagnosis found them with a model, and the run kept them.
        outdated: the run keeps names that were found in another one, and that do not count.
        run: the run with all columns that were scored; not part of `as_dict`.
    """

    verdict: Word
    sentence: str
    next: str
    summary: Summary
    gap: Gap | None
    floor: Floor | None
    sides: tuple[SideGap, ...]
    where: Where | None
    steps: tuple[Rung, ...]
    ladder: tuple[Rung, ...]
    facts: tuple[Fact, ...]
    readings: tuple[Reading, ...]
    self_checks: dict[str, Any]
    run: Run = field(repr=False)
    findings: tuple[Finding, ...] = ()
    ledger: Ledger | None = None
    unchecked: tuple[Unchecked, ...] = ()
    tried: tuple[str, ...] = ()
    course: Course | None = None
    kept: bool = False
    outdated: bool = False

    @property
    def exit_code(self) -> int:
        """0 for `same` and `numerics`, 1 for `different`, 3 for `inconclusive`."""
        return EXIT_CODES[self.verdict]

    @property
    def open_rungs(self) -> tuple[Rung, ...]:
        """The rungs that were not checked, with what each would take."""
        return tuple(rung for rung in self.ladder if rung.status == "not checked")

    @property
    def further(self) -> str | None:
        """Which side is clearly further from float32; None where neither is, it is not known, or structure failed."""
        return None if any(fact.breaks for fact in self.facts) else further(self.sides)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings that an engine takes unasked, a reference of another model, and names of another run."""
        missed = self.outdated and self.verdict in ("different", "inconclusive")
        return *unasked(self.run), *other_model(self.run), *([OUTDATED] if missed else [])

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a number that does not exist is null."""
        head = {"schema": 1, "verdict": self.verdict, "sentence": self.sentence, "next": self.next}
        return {
            **head,
            **{key: value for key, value in self.summary.as_dict().items() if key != "schema"},
            "gap": self.gap and self.gap.as_dict(),
            "floor": self.floor and self.floor.as_dict(),
            "sides": {side.name: side.as_dict() for side in self.sides} | {"further_from_float32": self.further},
            "where": self.where and self.where.as_dict(),
            "course": self.course and self.course.as_dict(),
            "steps": [step.as_dict() for step in self.steps],
            "ladder": [rung.as_dict() for rung in self.ladder],
            "findings": [finding.as_dict() for finding in self.findings],
            "ledger": self.ledger and self.ledger.as_dict(),
            "residual": self.ledger and self.ledger.residual and self.ledger.residual.as_dict(),
            "unchecked": [cause.as_dict() for cause in self.unchecked],
            "tried": list(self.tried),
            "kept": self.kept,
            "health": [reading.as_dict() for reading in self.readings],
            "self_checks": self.self_checks,
            "semantics": self.run.info.get("semantics"),
            "layers": self.run.info.get("layers"),
            "warnings": list(self.warnings),
        }

    def __str__(self) -> str:
        """The verdict, its sentence, the gap, the sides, and what was not checked."""
        lines = [f"{self.verdict}: {self.sentence}", *(str(side) for side in self.sides)]
        if self.floor is not None:
            lines.append(str(self.floor))
        if self.ledger is not None:
            lines.append(f"ledger: {self.ledger}")
        if self.course is not None:
            lines.append(f"over the steps: {self.course}")
        if self.open_rungs:
            lines.append(f"not checked: {', '.join(rung.name for rung in self.open_rungs)}")
        return "\n".join([*lines, f"next: {self.next}"])
