"""The size of a gap in multiples of the rounding floor, with its uncertainty."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float, Int

from samepolicy.arrays import Ragged
from samepolicy.floor.evidence import apart, column
from samepolicy.floor.floor import Floor
from samepolicy.ratio import log_ratio
from samepolicy.records.run import Run
from samepolicy.summary import json_number

CAP = 8.0
"""A token's difference counts up to this many floors; the share beyond it is told apart."""

TAILS = 0.05
"""Share of tokens beyond the cap up to which a gap may be rounding; of healthy runs it is 0.001 at most."""

LIMIT, LIMIT_FEW, FEW = 1.5, 2.0, 12
"""G / floor² up to which a gap is rounding; the second one holds with fewer than `FEW` prompts."""

DRAWS, LEVEL = 2000, 0.95
"""Bootstrap draws over prompts, and the coverage of the interval."""

MOST = 1000
"""Units that are drawn one by one; more are drawn in blocks."""

Place: TypeAlias = Literal["above", "below", "unclear"]
"""Where an interval lies against the limit."""


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How large a difference is against the floor.

    Attributes:
        ratio: G / floor², G = token mean of min(d², (8 floor)²); 1 is what rounding alone gives.
        low: lower end of the 95 % interval over prompts; NaN with fewer than two prompts.
        high: upper end.
        tokens: tokens compared.
        prompts: prompts they belong to.
        mean_abs: token mean of abs d, nats.
        mean_square: token mean of d², uncapped, nats².
        tails: share of the tokens whose abs d was capped.
    """

    ratio: float
    low: float
    high: float
    tokens: int
    prompts: int
    mean_abs: float
    mean_square: float
    tails: float

    @property
    def limit(self) -> float:
        """The ratio up to which this gap is rounding."""
        return LIMIT if self.prompts >= FEW else LIMIT_FEW

    @property
    def place(self) -> Place:
        """Whether the whole interval lies above the limit, or at and below it, or neither.

        Where more than `TAILS` of the tokens are capped, it is above: a few large floors hide what most tokens show.
        """
        if self.low > self.limit or (self.tails > TAILS and not np.isnan(self.low)):
            return "above"
        return "below" if self.high <= self.limit else "unclear"

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; a number that does not exist is null."""
        values = {name: json_number(value) for name, value in asdict(self).items()}
        return values | {"limit": self.limit, "place": self.place}

    @property
    def interval(self) -> str:
        """The interval in words; one prompt gives none."""
        if np.isnan(self.low):
            return "no interval from one prompt"
        return f"95 % interval {self.low:.3g} to {self.high:.3g}"

    def __str__(self) -> str:
        """The ratio with its interval."""
        return f"{self.ratio:.3g} times the floor² ({self.interval}, limit {self.limit:g})"


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """The tokens of a run that both sides gave a log-prob of: under the mask, finite, not above 0.

    Attributes:
        index: place among the packed tokens, int [pairs].
        rollout: the rollout's log-prob, nats, float64 [pairs].
        trainer: the trainer's, nats, float64 [pairs].
        difference: trainer - rollout, nats, float64 [pairs].
        prompt: number of the prompt, int [pairs]; a `group` is one prompt, without groups a response is.
        position: place in the response, from 0, int [pairs].
    """

    index: Int[np.ndarray, " pairs"]
    rollout: Float[np.ndarray, " pairs"]
    trainer: Float[np.ndarray, " pairs"]
    difference: Float[np.ndarray, " pairs"]
    prompt: Int[np.ndarray, " pairs"]
    position: Int[np.ndarray, " pairs"]


def pairs(run: Run) -> Pairs | None:
    """The comparable tokens of an aligned run; None where it lacks one side's log-probs."""
    if "rollout_logp" not in run or "trainer_logp" not in run:
        return None
    rollout, trainer = column(run, "rollout_logp"), column(run, "trainer_logp")
    good = run.mask.values & np.isfinite(rollout) & np.isfinite(trainer) & (rollout <= 0) & (trainer <= 0)
    index = np.flatnonzero(good)
    row = np.repeat(np.arange(len(run)), run.lengths)[index]
    return Pairs(
        index=index,
        rollout=rollout[index],
        trainer=trainer[index],
        difference=log_ratio(trainer=trainer[index], rollout=rollout[index]),
        prompt=_prompts(run)[row],
        position=index - run.offsets[:-1][row],
    )


def of_pair(run: Run, found: Pairs, floor: Floor) -> Gap:
    """The gap of trainer against rollout on the pair's floor."""
    return measure(found.difference, floor.pair_square(run)[found.index], found.prompt)


def of_declarations(run: Run, found: Pairs, floor: Floor) -> Gap:
    """What is left of the gap once the difference of the two declarations is taken off: d - (S(c_T) - S(c_R))."""
    declared = apart(run, "trainer_reference_logp", "rollout_reference_logp")
    return measure(found.difference - declared[found.index], floor.pair_square(run)[found.index], found.prompt)


def measure(
    difference: Float[np.ndarray, " tokens"],
    floor_square: Float[np.ndarray, " tokens"],
    prompt: Int[np.ndarray, " tokens"],
    *,
    seed: int = 0,
) -> Gap:
    """Measure a difference in multiples of the floor.

    G = token mean of min(d², (8 floor)²); the ratio is G over the token mean of floor².

    Args:
        difference: the difference of each token, nats [tokens]; tokens that are not finite are left out.
        floor_square: the square of each token's floor, nats² [tokens].
        prompt: number of the prompt of each token, int [tokens].
        seed: seed of the bootstrap.

    Returns:
        The gap; all its numbers are NaN where no token is left.

    >>> measure(np.array([0.3, -0.1]), np.array([0.02, 0.02]), np.array([0, 1])).ratio
    2.5
    """
    good = np.isfinite(difference) & np.isfinite(floor_square)
    difference, floor_square, prompt = difference[good], floor_square[good], prompt[good]
    with np.errstate(over="ignore"):
        square, top = difference**2, CAP**2 * floor_square
    capped = np.minimum(square, top)
    unit = np.unique(prompt, return_inverse=True)[1]
    sums = [np.bincount(unit, weights=w).astype(np.float64) for w in (capped, floor_square)]
    low, high = bootstrap_ratio(*sums, seed=seed)
    some = len(square) > 0
    return Gap(
        ratio=float(capped.sum() / floor_square.sum()) if some else float("nan"),
        low=low,
        high=high,
        tokens=len(square),
        prompts=len(sums[0]),
        mean_abs=float(np.abs(difference).mean()) if some else float("nan"),
        mean_square=float(square.mean()) if some else float("nan"),
        tails=float((square > top).mean()) if some else float("nan"),
    )


def bootstrap_ratio(
    numerator: Float[np.ndarray, " units"], denominator: Float[np.ndarray, " units"], *, seed: int = 0
) -> tuple[float, float]:
    """The percentile interval of Σ numerator / Σ denominator when whole units are drawn again with replacement.

    More than `MOST` units are first summed in that many blocks of neighbours, which leaves the spread as it is.

    Args:
        numerator: sum of each unit (prompt), [units].
        denominator: sum of each unit, above 0, [units].
        seed: seed of the draws.

    Returns:
        Lower and upper end of the 95 % interval; NaN with fewer than two units, which say nothing about each other.

    >>> bootstrap_ratio(np.array([2.0, 2.0]), np.array([1.0, 1.0]))
    (2.0, 2.0)

    Reference: Efron and Tibshirani, "An Introduction to the Bootstrap" (1993), chapter 13.
    """
    units = len(numerator)
    if units < 2:
        return float("nan"), float("nan")
    if units > MOST:
        starts = np.linspace(0, units, MOST, endpoint=False).astype(np.int64)
        numerator, denominator, units = np.add.reduceat(numerator, starts), np.add.reduceat(denominator, starts), MOST
    times = np.random.default_rng(seed).multinomial(units, np.full(units, 1 / units), size=DRAWS)
    drawn = (times @ numerator) / (times @ denominator)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _prompts(run: Run) -> Int[np.ndarray, " responses"]:
    """A number for the prompt of each response."""
    if "group" not in run or isinstance(run["group"], Ragged):
        return np.arange(len(run))
    numbers: np.ndarray = np.unique(np.asarray([str(g) for g in run["group"]]), return_inverse=True)[1]
    return numbers
