"""The verdict on a measured run: one of four words, a sentence, and what to do next. The cause is a separate matter."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from samepolicy.causes import Finding
from samepolicy.diagnose.measured import Measured
from samepolicy.diagnose.naming import NOTHING, Named
from samepolicy.floor.gap import Gap
from samepolicy.records.declared import dtype_of
from samepolicy.structure import counted

Word: TypeAlias = Literal["same", "numerics", "different", "inconclusive"]
"""The four verdicts."""

SAME = 1e-4
"""Two policies are the same where the rms of d is at most this, nats."""

STRANGE = 5.0
"""A model from which both sides are this many times farther than from each other is not taken for theirs."""

OTHER_MODEL = (
    "give the very model that the trainer held when it scored this run, or declare what both sides apply to it"
)
AGAIN = "Nothing to mend. Check again after a weight update, since weights that stay behind show only then."


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict, in a sentence, with the next step."""

    word: Word
    sentence: str
    next: str


def decide(m: Measured, named: Named = NOTHING) -> Verdict:
    """Apply the rules in order.

    `different` if structure shows it, or a cause that the gap does not show is proved; `inconclusive` if there is
    nothing to compare or one column is a copy; `same` if the uncapped mean square of d is at most (1e-4)²; then by
    where the interval of G / floor² lies: `numerics` at or below the limit, `different` above it, `inconclusive` across
    it or without a floor.
    """
    if m.broken:
        return _broken(m, named)
    if m.pairs is None or not len(m.pairs.index):
        return _nothing(m)
    if m.copy:
        sentence = f"Nothing can be told: {m.copy.sentence}."
        return Verdict(word="inconclusive", sentence=sentence, next=_stop(m.copy.fix))
    proved = [f for f in named.findings if f.proof in ("structural", "surprisal")]
    if proved and not (m.gap and m.gap.place == "above"):
        return _proved(m, proved)
    if m.mean_square <= SAME**2:
        size = f"the log-ratio is {np.sqrt(m.mean_square):.1e} nats rms over {counted(len(m.pairs.index), 'token')}"
        return Verdict(word="same", sentence=f"The two policies are the same: {size} (limit {SAME:g}).", next=_again(m))
    if m.gap is None:
        return _no_floor(m)
    if m.gap.place == "above":
        return _different(m, m.gap, named)
    if _stranger(m) and not named.findings:
        return Verdict(word="inconclusive", sentence=f"The gap cannot be placed: {_who(m)}.", next=_stop(OTHER_MODEL))
    return _numerics(m, m.gap) if m.gap.place == "below" else _unclear(m.gap)


def _proved(m: Measured, findings: list[Finding]) -> Verdict:
    """The gap shows nothing, a cause is proved all the same."""
    what = "; ".join(f"{f.told}: {f.evidence}" for f in findings)
    size = f" The gap itself is {_size(m.gap)}." if m.gap else ""
    return Verdict(word="different", sentence=f"The two policies differ: {what}.{size}", next=_stop(_fixes(findings)))


def _broken(m: Measured, named: Named) -> Verdict:
    """Structure alone shows that the run is broken."""
    what = "; ".join(fact.sentence for fact in m.broken)
    rest = f" {_upper(_causes(named.findings))}." if named.findings else ""
    if m.gap is not None and m.gap.place == "below":
        rest += " What can be compared is within rounding."
    elif m.gap is not None:
        rest += f" On what can be compared the gap is {_size(m.gap)}."
    todo = _fixes(named.findings) if named.findings else m.broken[0].fix
    return Verdict(word="different", sentence=f"The two policies differ: {what}.{rest}", next=_stop(todo))


def _nothing(m: Measured) -> Verdict:
    """There is no token with a log-prob on both sides."""
    lacking = [side for side in ("rollout", "trainer") if f"{side}_logp" not in m.run]
    if lacking:
        what = f"the run has no log-probs of the {' and the '.join(lacking)}"
        todo = "Record the rollout's log-probs." if "rollout" in lacking else "Score the run with the trainer."
    else:
        what, todo = "no token is under the mask", "Give responses with at least one token under the mask."
    return Verdict(word="inconclusive", sentence=f"There is nothing to compare: {what}.", next=todo)


def _no_floor(m: Measured) -> Verdict:
    """The gap is known, the floor is not."""
    assert m.pairs is not None
    size = f"{np.abs(m.pairs.difference).mean():.2g} nats a token on average"
    why = "; ".join(m.floor.missing)
    bare = [side for side in ("rollout", "trainer") if dtype_of(getattr(m.run, side)) is None]
    how = f"Side(dtype=…), or {' and '.join(f'--{side}-dtype' for side in bare)}"
    first = f"Declare the dtype of the {' and the '.join(bare)} with {how}, and give" if bare else "Give"
    ids = " and ".join(name for name in ("prompt_ids", "response_ids") if name not in m.run)
    before = f"Record {ids} in the run. " if ids else ""
    model = "the trainer's model to score with: diagnose(run, trainer=…), or --trainer on the command line."
    todo = f"{before}{first} {model}"
    sentence = f"The gap is {size}, but how large rounding is here is not known: {why}."
    return Verdict(word="inconclusive", sentence=sentence, next=todo)


def _numerics(m: Measured, gap: Gap) -> Verdict:
    """The gap is rounding."""
    tails = f", {gap.tails:.2%} of the tokens beyond 8 floors" if gap.tails else ""
    sentence = f"The two policies agree within rounding: the gap is {_size(gap)}{tails}."
    return Verdict(word="numerics", sentence=sentence, next=_again(m))


def _again(m: Measured) -> str:
    """What to do where the gap is nothing: look at what was seen inside the engines, if that is more than rounding."""
    seen = [fact.sentence for fact in m.facts if fact.name in ("tensors", "layers") and fact.status == "failed"]
    if not seen:
        return AGAIN
    return f"{'. '.join(seen)}. These tokens do not show it: see that it is of the engines of this run, and mend it."


def _different(m: Measured, gap: Gap, named: Named) -> Verdict:
    """The gap is more than rounding; its cause is named, or known from two declarations that differ, or unknown."""
    where = f" {_upper(str(m.where))}." if m.where else ""
    if named.findings:
        what = f"The two policies differ: {_causes(named.findings)}"
        sentence = f"{what}. The gap is {_size(gap)}. {_upper(_who(m))}."
        return Verdict(word="different", sentence=sentence, next=_stop(_fixes(named.findings)))
    fact = m.fact("sampling")
    told = _declared_apart(m) and fact is not None and fact.status == "failed"
    what = "The two policies differ" if told else "The two policies differ, cause unknown"
    close = f" {_upper(named.closest)}." if named.closest else ""
    sentence = f"{what}: the gap is {_size(gap)}. {_upper(_who(m))}.{close}{where}"
    todo = m.where.next if m.where and not _declared_apart(m) else "declare and apply the same settings on both sides"
    todo = OTHER_MODEL if _stranger(m) else todo
    return Verdict(word="different", sentence=sentence, next=_stop(todo))


def _unclear(gap: Gap) -> Verdict:
    """The interval lies across the limit, or there is none."""
    if np.isnan(gap.high):
        why = f"the gap is {gap.ratio:.3g} times the floor², but one prompt gives no interval"
        todo = "Give two prompts or more; twelve make a sharp verdict."
    else:
        why = f"the gap is {_size(gap)}, across the limit of {gap.limit:g}"
        todo = f"Give more prompts than {gap.prompts}: four times as many halve the interval."
    return Verdict(word="inconclusive", sentence=f"The data cannot place the gap: {why}.", next=todo)


def _causes(findings: Sequence[Finding]) -> str:
    """Named causes in words."""
    return " and ".join(str(f) for f in findings)


def _fixes(findings: Sequence[Finding]) -> str:
    """What to do about them."""
    return ". ".join(f"To mend {f.cause}: {f.fix.rstrip('.')}" for f in findings)


def _who(m: Measured) -> str:
    """Which side misses what its own declaration predicts."""
    missing = [side for side in m.sides if side.misses]
    if len(missing) == 1:
        side, other = missing[0], next(s for s in m.sides if s is not missing[0])
        rest = "meets its own" if other.gap.place == "below" else "may miss its own, too"
        owner = m.run.info.get("reference", {}).get("owner")
        doubt = f" (a fault inside the {owner}'s own model would look the same)" if owner == other.name else ""
        by = f"by {side.floors:.2g} of its floors"
        return f"{_reference(m)}, the {side.name} misses what it declares {by} and the {other.name} {rest}{doubt}"
    if missing and _stranger(m):
        near, far = np.sqrt(m.mean_square), min(side.rms for side in m.sides)
        return (
            f"{_reference(m)}, both sides are {far:.2g} nats rms from their declaration and {near:.2g} from each other"
        )
    if missing:
        sizes = " and the ".join(f"{side.name} by {side.floors:.2g}" for side in missing)
        return f"{_reference(m)}, both sides miss what they declare, the {sizes} of their floors"
    if _declared_apart(m):
        fact = m.fact("sampling")
        what = f" ({fact.sentence})" if fact and fact.status == "failed" else ""
        return f"each side does what it declares, so the two declarations differ{what}"
    return "neither side clearly misses what it declares"


def _stranger(m: Measured) -> bool:
    """Whether both sides miss the reference by far more than each other, as they do where it is another model."""
    both = len(m.sides) == 2 and all(side.misses for side in m.sides)
    return both and min(side.rms for side in m.sides) > STRANGE * float(np.sqrt(m.mean_square))


def _reference(m: Measured) -> str:
    """By whose model the declarations were scored."""
    owner = m.run.info.get("reference", {}).get("owner")
    return f"by the {owner}'s model in float32" if owner in ("rollout", "trainer") else "by the reference in float32"


def _declared_apart(m: Measured) -> bool:
    """Whether the difference of the declarations explains the gap and neither side misses its own."""
    return m.left is not None and m.left.place == "below" and not any(side.misses for side in m.sides)


def _size(gap: Gap) -> str:
    """The gap in words."""
    counts = f"{counted(gap.tokens, 'token')} of {counted(gap.prompts, 'prompt')}, mean abs d {gap.mean_abs:.2g} nats"
    least = "at least " if gap.tails >= 0.5 else ""  # most tokens are capped
    return f"{least}{gap.ratio:.3g} times the rounding floor² ({gap.interval}; {counts})"


def _upper(text: str) -> str:
    """The text with a capital."""
    return text[:1].upper() + text[1:]


def _stop(text: str) -> str:
    """The text as a sentence."""
    return f"{_upper(text)}." if text else ""
