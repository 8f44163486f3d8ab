"""From what a search, a structural check or a measured size shows to a finding, with its numbers and its sentence."""

import numpy as np

from samepolicy.causes import Cause, Check, Evidence, Finding, Settings, Undone
from samepolicy.causes.base import SideWord
from samepolicy.diagnose.search import Found
from samepolicy.diagnose.sets import Member


def searched(found: Found, member: Member, side: SideWord) -> Finding:
    """A cause that undoing shows."""
    cause, undone = member.cause, member.undone
    share, name = found.explained, cause.name
    moved = found.judge.moved(undone.settings)
    alternatives = found.alternatives.get(name, ())
    return Finding(
        cause=name,
        rung=cause.rung.value,
        parameters=dict(undone.parameters),
        explained=share and finite(share.value),
        low=share and finite(share.low),
        high=share and finite(share.high),
        nats=finite(_mean(moved) or 0.0),
        side=side,
        proof="undone",
        evidence=_sentence(found, member),
        fix=cause.parts.get("How to fix", ""),
        alternatives=alternatives,
        separate=cause.separate if alternatives else "",
        token=_farthest(moved, found.judge.evidence),
    )


def _sentence(found: Found, member: Member) -> str:
    """What a finding rests on."""
    name = member.name
    again, slope = found.reopened.get(name), found.slopes.get(name, float("nan"))
    start, end = found.judge.ratio(Settings()), found.judge.ratio(found.settings)
    several = " together with the others" if len(found.members) > 1 else ""
    floor = "the floor²" if found.judge.evidence.measured else "an assumed floor²"
    parts = [member.undone.sentence or "undone"]
    parts.append(f"undoing it{several} takes the gap from {start.value:.3g} to {end.value:.2g} times {floor}")
    if again is not None and len(found.members) > 1:
        parts.append(f"without it {again.value:.0%} of the gap opens again")
    if np.isfinite(slope):
        parts.append(f"slope {slope:.2f}")
    return "; ".join(parts)


def structural(cause: Cause, check: Check, evidence: Evidence) -> Finding:
    """A cause that arrays prove."""
    moved = np.full(len(evidence.recorded), np.nan)
    if check.settings != Settings():
        difference = np.abs(evidence.rescore(check.settings) - evidence.base)
        moved = np.where(evidence.comparable & np.isfinite(difference), difference, np.nan)
    return Finding(
        cause=cause.name,
        rung=cause.rung.value,
        parameters=dict(check.parameters),
        nats=_mean(moved),
        side=check.side,
        proof="structural",
        evidence=check.sentence,
        fix=cause.parts.get("How to fix", ""),
        token=_farthest(moved, evidence),
    )


def _mean(moved: np.ndarray) -> float | None:
    """How far tokens are moved on average, nats; None where nothing is known to be."""
    known = moved[np.isfinite(moved)]
    return finite(float(known.mean())) if len(known) else None


def _farthest(moved: np.ndarray, evidence: Evidence) -> tuple[int, int] | None:
    """The token that is moved most, response and position; None where none is, or the two sides have other ids."""
    if "trainer_response_ids" in evidence.run or not np.nan_to_num(moved).any():
        return None
    token = int(np.nanargmax(moved))
    return int(evidence.row[token]), int(evidence.position[token])


def self_proved(cause: Cause, undone: Undone, side: SideWord) -> Finding:
    """A cause that proves itself."""
    return Finding(
        cause=cause.name,
        rung=cause.rung.value,
        parameters=dict(undone.parameters),
        side=side,
        proof=cause.proof,
        evidence=undone.sentence,
        fix=cause.parts.get("How to fix", ""),
    )


def finite(value: float) -> float | None:
    """The number, or None where it is none."""
    return float(value) if np.isfinite(value) else None
