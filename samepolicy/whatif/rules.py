"""What is tried on a batch: corrections with a name, and the same ones at other thresholds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite

from samepolicy.corrections import PRESETS, Correction, Step
from samepolicy.corrections.base import MaskStep, WeightStep
from samepolicy.errors import InputError

BOUNDS = ("above", "budget", "below")
"""The fields that a step's threshold can be in, in the order in which they are looked for."""
RATIO_LIKE = (None, "ratio", "mult_error")
"""Measures whose bounds lie around 1; a step without a measure bounds the ratio."""
STEPS = tuple(2.0**k for k in range(-3, 4))
"""A sweep moves the threshold from an eighth to eight times its distance from agreement."""


@dataclass(frozen=True)
class Rule:
    """A correction to try.

    Attributes:
        name: what to call it; the rules of a sweep share theirs.
        correction: the steps.
    """

    name: str
    correction: Correction

    @property
    def threshold(self) -> float | None:
        """The threshold, see `with_threshold`; None where no step has one."""
        place = _place(self.correction)
        return None if place is None else float(getattr(self.correction.steps[place[0]], place[1]))


def preset(name: str, threshold: float | None = None) -> Rule:
    """A preset as a rule, with another threshold if one is given.

    Args:
        name: a name of `corrections.PRESETS`.
        threshold: see `with_threshold`.

    Returns:
        The rule.

    Raises:
        InputError: no preset has this name (the message lists those there are), or an impossible threshold.

    >>> print(preset("tis", 3.0).correction)
    Correction(Truncate(3.0))
    """
    if name not in PRESETS:
        raise InputError(f"There is no correction {name!r}; choose {', '.join(PRESETS)}.")
    rule = Rule(name, PRESETS[name].correction)
    return rule if threshold is None else with_threshold(rule, threshold)


def with_threshold(rule: Rule, threshold: float) -> Rule:
    """The rule with another threshold.

    It is that of the step that gives the weight, or where none does, of the first one that says what to keep. A step
    with two bounds gets both, alike on either side of agreement: 1/τ and τ of a ratio, -τ and τ of a difference.

    Args:
        rule: the rule.
        threshold: τ, in the unit of what the step bounds.

    Returns:
        The rule with the same name.

    Raises:
        InputError: the rule has no threshold, or a step cannot have this one.

    >>> print(with_threshold(preset("icepop"), 4.0).correction)
    Correction(Band(0.25, 4.0))
    """
    place = _place(rule.correction)
    if place is None:
        raise InputError(f"{rule.name} has no threshold; choose a correction that has one.")
    index, field = place
    step = rule.correction.steps[index]
    changed = {field: threshold, **_other_bound(rule, step, threshold)}
    steps = [*rule.correction.steps[:index], replace(step, **changed), *rule.correction.steps[index + 1 :]]
    return Rule(rule.name, Correction(*steps, missing=rule.correction.missing))


def sweep(rule: Rule, thresholds: Sequence[float] | None = None) -> tuple[Rule, ...]:
    """The rule at several thresholds.

    Args:
        rule: the rule.
        thresholds: the thresholds; by default seven, from an eighth to eight times as far from agreement as its own.

    Returns:
        One rule for each threshold, all with the same name.

    Raises:
        InputError: the rule has no threshold, or cannot have one of these.

    >>> [round(r.threshold, 3) for r in sweep(preset("tis"))]
    [1.125, 1.25, 1.5, 2.0, 3.0, 5.0, 9.0]
    """
    if thresholds is None:
        thresholds = _around(rule)
    return tuple(with_threshold(rule, t) for t in thresholds)


def _around(rule: Rule) -> list[float]:
    """Thresholds around the rule's own."""
    place = _place(rule.correction)
    if place is None or rule.threshold is None:
        raise InputError(f"{rule.name} has no threshold to sweep; choose a correction that has one.")
    own = rule.threshold if isfinite(rule.threshold) else 2.0
    measure = getattr(rule.correction.steps[place[0]], "measure", None)
    if measure in RATIO_LIKE and place[1] == "above" and own > 1:
        return [1 + (own - 1) * k for k in STEPS]
    return [own * k for k in STEPS]


def _place(correction: Correction) -> tuple[int, str] | None:
    """Which step has the threshold, and in which field."""
    steps = list(enumerate(correction.steps))
    weighing = [(i, s) for i, s in steps if isinstance(s, WeightStep)]
    for i, step in [*weighing, *((i, s) for i, s in steps if isinstance(s, MaskStep))]:
        for field in BOUNDS:
            if getattr(step, field, None) is not None:
                return i, field
    return None


def _other_bound(rule: Rule, step: Step, threshold: float) -> dict[str, float]:
    """The lower bound of a step that has two."""
    below = getattr(step, "below", None)
    if below is None or getattr(step, "above", None) is None:
        return {}
    if getattr(step, "measure", None) not in RATIO_LIKE:
        return {"below": -threshold}
    if not threshold > 1:
        raise InputError(f"{rule.name} keeps ratios between 1/τ and τ, so τ must be above 1, but it is {threshold:g}.")
    return {"below": 1 / threshold}
