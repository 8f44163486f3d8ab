"""The ladder in the order people check in, and the eight steps of a consistency test, each with its status and why."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from samepolicy.causes import cause
from samepolicy.diagnose.measured import Measured
from samepolicy.diagnose.naming import NOTHING, Named
from samepolicy.diagnose.verdict import Verdict
from samepolicy.records.declared import scored_here
from samepolicy.structure import Status, counted
from samepolicy.structure.ids import by_text

RUNGS = ("tokens", "template", "shift", "mask", "sampling", "positions", "weights", "routing", "numerics")

RETRY = {
    "mask": "scoring again with the prompt hidden would show whether both sides attend to all of it",
    "sampling": "scoring again under other settings would show whether both sides apply them",
    "weights": "comparing the tensors would show whether both sides hold them",
}
"""Rungs that rest on declarations: where the gap says that a side does not do what it declares, they are open again."""


@dataclass(frozen=True, kw_only=True)
class Rung:
    """One rung or step.

    Attributes:
        name: what is checked.
        status: passed, failed, or not checked.
        why: what was found, or what the check would take.
    """

    name: str
    status: Status
    why: str

    def as_dict(self) -> dict[str, str]:
        """A JSON-ready mapping."""
        return {"name": self.name, "status": self.status, "why": self.why}

    def __str__(self) -> str:
        """Name, status and why."""
        return f"{self.name}: {self.status} ({self.why})"


def ladder(m: Measured, verdict: Verdict, named: Named = NOTHING) -> tuple[Rung, ...]:
    """Every rung with its status: a named cause decides, then a failed fact, then one that could not be checked."""
    return tuple(_with_causes(_rung(name, m, verdict), named) for name in RUNGS)


def _with_causes(rung: Rung, named: Named) -> Rung:
    """A rung in the light of what was named: failed by its causes; passed where those of other rungs explain all.

    Where nothing was named, it says which of its causes were undone for nothing.
    """
    mine = [f for f in named.findings if f.rung == rung.name]
    if mine:
        return Rung(name=rung.name, status="failed", why="; ".join(f"{f.told}: {f.evidence}" for f in mine))
    left = named.ledger.residual if named.ledger else None
    by_gap = rung.name in ("positions", "weights", "routing", "numerics", "sampling")
    if left is not None and left.place == "below" and by_gap and rung.status != "passed":
        causes = " and ".join(f.cause for f in named.findings)
        return Rung(name=rung.name, status="passed", why=f"with {causes} undone the gap is {left}")
    tried = [name for name in named.tried if cause(name).rung.value == rung.name]
    if tried and rung.status == "not checked":
        return Rung(
            name=rung.name, status=rung.status, why=f"{rung.why}; undoing {_listed(tried)} does not close the gap"
        )
    return rung


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence.

    >>> _listed(["rope"]), _listed(["packing_leak", "padding", "rope"])
    ('rope', 'packing_leak, padding or rope')
    """
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def steps(m: Measured, verdict: Verdict, named: Named = NOTHING) -> tuple[Rung, ...]:
    """The eight steps of a consistency test, in order."""
    rungs = {rung.name: rung for rung in ladder(m, verdict, named)}
    return (
        _prompts(m),
        _kept(m),
        _neutral(m),
        Rung(name="same weights", status=rungs["weights"].status, why=rungs["weights"].why),
        _scored(m),
        Rung(name="align response token i with logits m-1+i", status=rungs["shift"].status, why=rungs["shift"].why),
        _compared(m),
        _judged(verdict, m),
    )


def _rung(name: str, m: Measured, verdict: Verdict) -> Rung:
    """One rung from its facts and the gap."""
    found = [(fact.status, fact.sentence) for fact in m.facts if fact.rung == name]
    if name in ("positions", "routing", "numerics"):
        found = [*(f for f in found if f[0] != "not checked"), _by_gap(name, m, verdict)]
    sure = name == "weights" and m.fact("tensors") is not None
    if name in RETRY and not sure and _open(m) and all(status == "passed" for status, _ in found):
        found.append(("not checked", f"{'; '.join(why for _, why in found)}; {RETRY[name]}"))
    order: tuple[Status, ...] = ("failed", "not checked", "passed")
    for status in order:
        reasons = [why for s, why in found if s == status]
        if reasons:
            return Rung(name=name, status=status, why="; ".join(reasons))
    return Rung(name=name, status="not checked", why="the run has nothing to check it with")


def _by_gap(name: str, m: Measured, verdict: Verdict) -> tuple[Status, str]:
    """What the gap says about a rung that has no declaration to compare."""
    small = verdict.word in ("same", "numerics") or (m.gap is not None and m.gap.place == "below" and not m.copy)
    if name == "numerics":
        if small:
            return "passed", f"the gap is {m.gap}" if m.gap else "the log-ratio is at most 1e-4 rms"
        if m.gap is not None and m.gap.place == "above":
            return "failed", f"more than rounding: the gap is {m.gap}"
        return "not checked", verdict.sentence.rstrip(".")
    if small:
        return "passed", "the gap is at the rounding floor, which leaves no room for a difference here"
    take = {
        "positions": "scoring again with other position ids and rope settings",
        "routing": "the routed experts of both sides, if the model has experts",
    }
    known = m.fact("routing")
    if name == "routing" and known and known.status == "passed":
        return known.status, known.sentence
    return "not checked", f"it takes {take[name]}"


def _open(m: Measured) -> bool:
    """Whether the gap says that a side does not do what it declares."""
    return m.gap is not None and m.gap.place == "above"


def _prompts(m: Measured) -> Rung:
    """Step 1."""
    if "prompt_ids" not in m.run:
        return Rung(name="fixed prompts", status="not checked", why="prompt_ids are not recorded")
    distinct = len({tuple(p.tolist()) for p in m.run["prompt_ids"]})
    different = "1 prompt" if distinct == 1 else f"{distinct} different prompts"
    return Rung(name="fixed prompts", status="passed", why=f"{different}, kept as token ids")


def _kept(m: Measured) -> Rung:
    """Step 2."""
    name, needed = "sample and keep all of it", ("prompt_ids", "response_ids", "rollout_logp", "mask")
    lacking = [column for column in needed if column not in m.run]
    if m.run.rollout.sampling is None:
        lacking.append("the rollout's sampling parameters")
    if lacking:
        return Rung(name=name, status="not checked", why=f"not recorded: {', '.join(lacking)}")
    many = counted(len(m.run), "response")
    why = "prompt and response ids, log-probs, mask and sampling parameters; positions count on from the prompt"
    return Rung(name=name, status="passed", why=f"{counted(m.run.tokens, 'token')} of {many} with {why}")


def _neutral(m: Measured) -> Rung:
    """Step 3."""
    name, sampling = "neutral processors", m.run.rollout.sampling
    if sampling is None:
        return Rung(name=name, status="not checked", why="the rollout declares no sampling parameters")
    if not sampling.changed:
        return Rung(name=name, status="passed", why="temperature 1, top-p 1, top-k off, min-p off, penalty 1")
    told = ", ".join(f"{key} {value}" for key, value in sampling.changed.items())
    return Rung(name=name, status="passed", why=f"told otherwise: {told}, log-probs {sampling.logprobs}")


def _scored(m: Measured) -> Rung:
    """Step 5."""
    name = "score prompt + response"
    if "trainer_logp" not in m.run:
        return Rung(name=name, status="not checked", why="the trainer has not scored the run")
    fact = m.fact("same ids")
    if fact and fact.status == "failed":
        return Rung(name=name, status="failed", why=fact.sentence)
    if fact and by_text(m.run):
        return Rung(name=name, status=fact.status, why=fact.sentence)
    if scored_here(m.run, "trainer_logp"):
        return Rung(name=name, status="passed", why="one teacher-forced forward over the very ids that were sampled")
    if fact and fact.status == "passed":
        return Rung(name=name, status="passed", why=fact.sentence)
    why = "the trainer's log-probs are recorded, the ids they belong to are not"
    return Rung(name=name, status="not checked", why=why)


def _compared(m: Measured) -> Rung:
    """Step 7."""
    name, bad = "compare d and ratio", m.fact("log-probs")
    if m.pairs is None or not len(m.pairs.index) or m.where is None:
        return Rung(name=name, status="not checked", why="there is no token with a log-prob on both sides")
    size = float(np.abs(m.pairs.difference).mean())
    why = f"mean abs d {size:.3g} nats, mean ratio {m.where.ratio:.4g} over {counted(len(m.pairs.index), 'token')}"
    if bad and bad.status == "failed":
        return Rung(name=name, status="failed", why=f"{why}; {bad.sentence}")
    return Rung(name=name, status="passed", why=why)


def _judged(verdict: Verdict, m: Measured) -> Rung:
    """Step 8."""
    status: Status = "not checked" if verdict.word == "inconclusive" else "passed"
    if verdict.word == "different":
        status = "failed"
    return Rung(name="verdict", status=status, why=f"{verdict.word}{f': {m.gap}' if m.gap else ''}")
