"""From a measured run and a reference to named causes, a ledger, and what could not be checked."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from samepolicy.causes import Cause, Evidence, Finding, Reference, Rung, Settings, Undone, all_causes
from samepolicy.causes.base import SideWord
from samepolicy.diagnose.columns import evidences, of
from samepolicy.diagnose.findings import searched, self_proved, structural
from samepolicy.diagnose.ledger import Ledger, ledger
from samepolicy.diagnose.measured import Measured
from samepolicy.diagnose.search import ENOUGH, Found, Search
from samepolicy.diagnose.sets import REOPENS, Member
from samepolicy.errors import SamePolicyError
from samepolicy.floor.gap import Gap, measure
from samepolicy.records.declared import effective
from samepolicy.records.run import Run


@dataclass(frozen=True, kw_only=True)
class Unchecked:
    """A cause that could not be checked.

    Attributes:
        name: the cause.
        takes: what checking it would take.
    """

    name: str
    takes: str

    def as_dict(self) -> dict[str, str]:
        """A JSON-ready mapping."""
        return {"cause": self.name, "takes": self.takes}

    def __str__(self) -> str:
        """The cause, and what it takes."""
        return f"{self.name}: it takes {self.takes}"


@dataclass(frozen=True, kw_only=True)
class Named:
    """What naming found.

    Attributes:
        findings: named causes, most likely first.
        ledger: what the gap is made of; None where there was nothing to explain.
        unchecked: causes that could not be checked.
        tried: causes that were undone in vain, where nothing was named.
        closest: the best set that is not good enough to be named, in words; empty where there is none.
    """

    findings: tuple[Finding, ...] = ()
    ledger: Ledger | None = None
    unchecked: tuple[Unchecked, ...] = ()
    tried: tuple[str, ...] = ()
    closest: str = ""


UNSAMPLED = ("end_token", "mask_misplaced", "stop_handling")
"""Causes by which the mask counts tokens that nobody sampled."""

NOTHING = Named()
"""Nothing was searched."""


@dataclass(kw_only=True)
class Naming:
    """Naming in the making: one piece of evidence after the other."""

    run: Run
    m: Measured
    reference: Reference
    causes: Sequence[Cause] = field(default_factory=lambda: tuple(all_causes().values()))
    findings: list[Finding] = field(default_factory=list)
    found: list[Found] = field(default_factory=list)
    unchecked: dict[str, str] = field(default_factory=dict)

    def name(self) -> Named:
        """Name what can be named."""
        for evidence in evidences(self.run, self.m, self.reference):
            self._explain(evidence)
        for mode in ("rollout", "trainer"):
            if self.m.floor.complete and mode not in {f.judge.evidence.mode for f in self.found} and self.m.pairs:
                self._proved(of(self.run, self.m, self.reference, mode))
        self._hidden()
        return Named(
            findings=tuple(sorted(self.findings, key=_rank)),
            ledger=self._ledger(),
            unchecked=tuple(Unchecked(name=n, takes=t) for n, t in self.unchecked.items() if n not in self._names),
            tried=self._tried(),
            closest=self._closest(),
        )

    @property
    def _names(self) -> set[str]:
        """Causes that are named."""
        return {f.cause for f in self.findings}

    def _explain(self, evidence: Evidence) -> None:
        """Search one column's causes; where none is found, number formats are measured."""
        proved = self._proved(evidence)
        found = Search(evidence, self.causes).run(proved)
        self.found.append(found)
        if evidence.mode == "pair" or not found.explained or found.explained.value < ENOUGH:
            self.unchecked |= found.unchecked
        for member in found.members:
            if member.name not in self._names:
                self.findings.append(searched(found, member, self._whose(evidence, member.undone)))
        if not found.members and found.judge.above(Settings()):
            self._sized(evidence)

    def _proved(self, evidence: Evidence) -> list[Member]:
        """Causes that arrays alone prove."""
        members = []
        for cause in self.causes:
            check = cause.check(evidence)
            if check.status != "proved":
                continue
            if cause.name not in self._names:
                self.findings.append(structural(cause, check, evidence))
            if check.settings != Settings():
                undone = Undone(settings=check.settings, parameters=check.parameters, side=check.side)
                members.append(Member(cause=cause, undone=undone))
        return members

    def _sized(self, evidence: Evidence) -> None:
        """Causes that only the size of the error shows."""
        for cause in (c for c in self.causes if c.proof == "size"):
            undone = self._first(cause, evidence)
            if undone is not None:
                self.findings.append(self_proved(cause, undone, self._whose(evidence, undone)))
                return

    def _hidden(self) -> None:
        """Causes that leave log-probs alone: what was sampled tells, once the rollout's other faults are undone."""
        if not self.m.floor.complete or self.m.pairs is None or self.m.copy:
            return
        if any(f.cause in UNSAMPLED and f.proof == "structural" for f in self.findings):
            return  # not all that the mask counts was sampled
        evidence = of(self.run, self.m, self.reference, "rollout")
        known = next((f for f in self.found if f.judge.evidence.mode == "rollout"), None)
        if known is not None and (known.explained is None or any(m.cause.rung is Rung.SAMPLING for m in known.members)):
            return  # what is unknown could be the sampler, and a named sampling cause is the sampler
        evidence = evidence.given(known.settings) if known else evidence
        for cause in (c for c in self.causes if c.proof == "surprisal"):
            undone = self._first(cause, evidence)
            if undone is not None:
                self.findings.append(self_proved(cause, undone, undone.side))

    def _first(self, cause: Cause, evidence: Evidence) -> Undone | None:
        """The first way of a cause that proves itself."""
        try:
            return next(iter(cause.undo(evidence)), None)
        except SamePolicyError as error:
            self.unchecked[cause.name] = str(error).rstrip(".")
            return None

    def _whose(self, evidence: Evidence, undone: Undone) -> SideWord:
        """Whose fault it is."""
        if undone.side != "unknown":
            return undone.side
        if evidence.mode in ("rollout", "trainer"):
            return evidence.side
        if evidence.mode == "declared":
            return _deviant(self.run)
        return "unknown"

    def _ledger(self) -> Ledger | None:
        """The ledger, where a gap was searched."""
        if not self.found or self.m.pairs is None:
            return None
        reopened = {name: e.value for f in self.found for name, e in f.reopened.items()}
        total = float(np.abs(self.m.pairs.difference).mean())
        return ledger(total, self.findings, reopened, self._residual())

    def _residual(self) -> Gap | None:
        """The gap of trainer and rollout once every named cause is undone, on the prompts that are read."""
        named = [f for f in self.found if f.members]
        if not named:
            return None
        evidence = named[0].judge.evidence
        taken = sum((_effect(f) for f in named), np.zeros(len(evidence.recorded)))
        whole = of(self.run, self.m, self.reference, "declared" if self.m.floor.complete else "pair")
        difference = whole.recorded - whole.base - taken
        read = evidence.read
        return measure(difference[read], whole.floor[read] ** 2, whole.prompt[read])

    def _tried(self) -> tuple[str, ...]:
        """What was tried for nothing."""
        return () if self.findings else tuple(dict.fromkeys(name for f in self.found for name in f.tried))

    def _closest(self) -> str:
        """The best set that was not good enough, where it explains anything to speak of."""
        known = (f.closest for f in self.found if not f.members)
        parts = [closest for closest in known if closest and closest.explained.value >= REOPENS]
        if not parts:
            return ""
        closest = max(parts, key=lambda one: one.explained.value)
        told = " with ".join(m.name for m in closest.members)
        why = "but too few tokens show it, or not in its full size," if closest.enough else "which is too little"
        return f"{told} would explain {closest.explained.value:.0%} of it, {why} to be named"


def name(run: Run, m: Measured, reference: Reference, *, causes: Sequence[Cause] | None = None) -> Named:
    """Name the causes of a gap.

    Args:
        run: the run, not aligned.
        m: what its columns show.
        reference: scores under other settings; without an engine only arrays tell.
        causes: those to think of; all by default.
    """
    chosen = tuple(all_causes().values()) if causes is None else tuple(causes)
    return Naming(run=run, m=m, reference=reference, causes=chosen).name()


def _effect(found: Found) -> np.ndarray:
    """What a side's named causes do to the log-ratio trainer - rollout."""
    evidence = found.judge.evidence
    moved = evidence.predicted(found.settings) - evidence.base
    return np.asarray(-moved if evidence.mode == "rollout" else moved)


def _deviant(run: Run) -> SideWord:
    """Where the declarations differ: the side whose log-probs are not those of the sampler."""
    from dataclasses import replace

    sampler = run.rollout.sampling
    if sampler is None or run.trainer.sampling is None:
        return "unknown"
    drawn = effective(replace(sampler, logprobs="processed"))
    ours, theirs = effective(sampler) == drawn, effective(run.trainer.sampling) == drawn
    if ours == theirs:
        return "unknown"
    return "trainer" if ours else "rollout"


def _rank(finding: Finding) -> tuple[int, float]:
    """Proved and undone causes first, the larger the earlier."""
    order = {"structural": 0, "undone": 0, "surprisal": 1, "size": 2}
    return order[finding.proof], -(finding.nats or 0.0)
