"""Where a gap is, in numbers and in words, and which experiment would tell more; no cause is named here."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from samepolicy.floor.gap import LIMIT, Pairs
from samepolicy.summary import json_number

FIRST = 4
"""Tokens of a response that count as its first."""

SURE, UNSURE = 0.9, 0.5
"""Probabilities (of the rollout) from which a token is sure, and below which it is unsure."""

WORSE = 1.5
"""The first tokens are worse than the rest where their mean abs d is larger by this factor."""

GROWS = 4.0
"""A gap grows with uncertainty where unsure tokens show this many times what sure ones show."""


@dataclass(frozen=True, kw_only=True)
class Where:
    """A profile of the differences.

    Attributes:
        first: mean abs d of the first four tokens of the responses, nats; NaN where there are none, as below.
        rest: the same of all later tokens.
        sure: the same of tokens whose rollout probability is 0.9 or more.
        unsure: the same of those below 0.5.
        mean: mean d, nats; sampled from the recorded rollout policy it cannot be clearly above 0.
        ratio: mean of exp(d); 1 where the rollout's log-probs are those it sampled with, 1 or less where it truncates.
        prompts: share of the prompts whose own gap is above the limit; NaN without a floor.
    """

    first: float
    rest: float
    sure: float
    unsure: float
    mean: float
    ratio: float
    prompts: float

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a part without tokens is null."""
        return {name: json_number(value) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        """The profile in words."""
        return "; ".join(part for part in (self._position(), self._certainty(), self._spread(), self._sign()) if part)

    @property
    def next(self) -> str:
        """The experiment that tells most about a gap of this shape."""
        if self.first > WORSE * self.rest:
            return (
                "record trainer_prompt_ids, which shows another template or a lost system prompt at once; else print "
                "prompt ids, attention mask and position ids of both sides for one short prompt"
            )
        if self.unsure > GROWS * self.sure:
            return (
                "sample one batch at temperature 1 with top-p 1, top-k off and penalty 1 on both sides; if the gap "
                "stays, compare the weights of the two sides, then the slice of logits that the trainer reads"
            )
        return "compare the weights of the two sides tensor by tensor, then the slice of logits that the trainer reads"

    def _position(self) -> str:
        text = f"mean abs d {self.first:.2g} on the first {FIRST} tokens and {self.rest:.2g} later"
        return text if np.isfinite(self.first) and np.isfinite(self.rest) else ""

    def _certainty(self) -> str:
        unsure = f"{self.unsure:.2g} where it is not (p < {UNSURE})"
        text = f"{self.sure:.2g} where the rollout is sure (p ≥ {SURE}) and {unsure}"
        return text if np.isfinite(self.sure) and np.isfinite(self.unsure) else ""

    def _spread(self) -> str:
        return f"{self.prompts:.0%} of the prompts show it" if np.isfinite(self.prompts) else ""

    def _sign(self) -> str:
        return f"mean d {self.mean:+.2g}, mean ratio {self.ratio:.3g}" if np.isfinite(self.mean) else ""


def profile(found: Pairs, floor_square: np.ndarray | None) -> Where:
    """Describe the differences by place, certainty, prompt and sign.

    Args:
        found: the comparable tokens.
        floor_square: the square of each token's floor, nats² [pairs]; None where it is not known.
    """
    size, sure = np.abs(found.difference), np.exp(found.rollout)
    with np.errstate(over="ignore"):
        ratio = _mean(np.exp(found.difference))
    return Where(
        first=_mean(size[found.position < FIRST]),
        rest=_mean(size[found.position >= FIRST]),
        sure=_mean(size[sure >= SURE]),
        unsure=_mean(size[sure < UNSURE]),
        mean=_mean(found.difference),
        ratio=ratio,
        prompts=_share(found, floor_square),
    )


def _share(found: Pairs, floor_square: np.ndarray | None) -> float:
    """Share of the prompts whose own mean square is above the limit."""
    if floor_square is None or not len(found.prompt):
        return float("nan")
    good = np.isfinite(floor_square)
    _, unit = np.unique(found.prompt[good], return_inverse=True)
    with np.errstate(over="ignore"):
        gap = np.bincount(unit, weights=found.difference[good] ** 2)
    return _mean(gap > LIMIT * np.bincount(unit, weights=floor_square[good]))


def _mean(values: np.ndarray) -> float:
    """The mean, or NaN where there is nothing."""
    return float(values.mean()) if len(values) else float("nan")
