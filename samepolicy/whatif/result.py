"""What a what-if says: every rule's outcome on one batch, and which of them to take."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from samepolicy.corrections import PRESETS, Correction
from samepolicy.errors import InputError
from samepolicy.summary import Summary, json_number
from samepolicy.whatif.ratios import Ratios
from samepolicy.whatif.surrogate import Surrogate
from samepolicy.whatif.tally import Lost

DivideBy = Literal["mask", "kept"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What one rule does to the batch. Shares of tokens are of those under the mask.

    Attributes:
        name: the rule's name.
        correction: its steps.
        threshold: its threshold; None where it has none.
        kept: share of the tokens that carry weight.
        clipped: share of the measured tokens whose ratio the weight step's bounds changed: held, or zeroed.
        zeroed: share of the tokens that stay in the mask with weight 0.
        dropped: share of the tokens that leave the mask; kept + zeroed + dropped = 1.
        kept_sequences: share of the responses with tokens that keep a token with weight.
        clipped_sequences: share of the responses with a clipped token.
        ess_token: effective share of the sampled tokens under the weights; a token without weight counts as lost.
        ess_sequence: the same of each response's mean weight.
        pareto_k: shape of the tail of the weights; NaN where their largest are equal, as after truncation.
        weight_mean: mean weight over the mask that the rule leaves.
        weight_max: largest weight.
        surrogate: the objective under the rule; None where the run has no advantages.
        first: the responses that lose the largest share of their tokens, worst first, ten at most; of equal shares
            the larger mean abs d comes first.
    """

    name: str
    correction: Correction
    threshold: float | None
    kept: float
    clipped: float
    zeroed: float
    dropped: float
    kept_sequences: float
    clipped_sequences: float
    ess_token: float
    ess_sequence: float
    pareto_k: float
    weight_mean: float
    weight_max: float
    surrogate: Surrogate | None
    first: tuple[Lost, ...]

    @property
    def label(self) -> str:
        """The name, with the threshold where it is not the preset's own."""
        usual = self.name not in PRESETS or PRESETS[self.name].correction == self.correction
        return self.name if usual else f"{self.name} {self.threshold:g}"

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a number that does not exist is null."""
        found: dict[str, Any] = _plain(asdict(self))
        return found | {"correction": str(self.correction)}

    def __str__(self) -> str:
        """What is kept and what that is worth, in a line."""
        lost = f"{self.kept:.2%} kept, {self.clipped:.2%} clipped, {self.zeroed + self.dropped:.2%} without weight"
        return f"{self.label}: {lost}, ESS {self.ess_token:.3f}, weight up to {self.weight_max:.3g}"


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What to do.

    Attributes:
        rule: the rule to take: a name, "none" where no correction is needed; None where no rule can be named.
        sentence: what to do and why.
    """

    rule: str | None
    sentence: str


@dataclass(frozen=True, kw_only=True, eq=False)
class WhatIf:
    """One recorded batch under many corrections.

    Attributes:
        summary: every metric of the batch as it is, before any correction: raw ESS, Pareto k, ratios, sign skew.
        outcomes: what each rule does, in the order asked for; uncorrected and fully importance-weighted come first.
        sweeps: by name, what a rule does at several thresholds.
        untried: rules that need columns which the run does not have, each with these columns.
        advice: what to do.
        ratios: how the ratios are spread.
        prompts: how many prompts the bootstrap draws from; beyond 16,384 as many random groups of them.
        divide_by: what the surrogate divides by: all tokens under the mask as it was, or those that a rule keeps.
    """

    summary: Summary
    outcomes: tuple[Outcome, ...]
    sweeps: Mapping[str, tuple[Outcome, ...]]
    untried: Mapping[str, tuple[str, ...]]
    advice: Advice
    ratios: Ratios
    prompts: int
    divide_by: DivideBy

    def __getitem__(self, name: str) -> Outcome:
        """The outcome of this rule; of one at several thresholds the first.

        Raises:
            InputError: no rule of this name was tried.
        """
        for outcome in self.outcomes:
            if outcome.name == name:
                return outcome
        tried = ", ".join(dict.fromkeys(o.name for o in self.outcomes))
        raise InputError(f"There is no outcome of {name!r}; tried were {tried}.")

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a number that does not exist is null, and an infinity the string "inf" or "-inf"."""
        return {
            **self.summary.as_dict(),
            "advice": asdict(self.advice),
            "outcomes": [outcome.as_dict() for outcome in self.outcomes],
            "sweeps": {name: [o.as_dict() for o in swept] for name, swept in self.sweeps.items()},
            "untried": {name: list(needs) for name, needs in self.untried.items()},
            "ratios": self.ratios.as_dict(),
            "prompts": self.prompts,
            "divide_by": self.divide_by,
        }

    def __str__(self) -> str:
        """The advice, and a line for each rule."""
        return "\n".join([self.advice.sentence, *map(str, self.outcomes)])


def _plain(value: Any) -> Any:
    """Nested results with every number as JSON can hold it."""
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return json_number(value) if isinstance(value, float) else value
