"""What is a normal value? Published thresholds as data, each with its source and where it holds.

They are rules of thumb from others' models and kernels. A floor measured on the run itself beats all of these.
"""

from dataclasses import asdict, dataclass
from math import inf, isfinite
from typing import Any, Literal, TypeAlias

from samepolicy.summary import Summary, json_number

State: TypeAlias = Literal["normal", "low", "high", "no value"]
"""Where a value lies against its range."""

DENSE, MIXTURE = "dense", "mixture of experts"
"""Kinds of models that have usual ranges of their own."""

KNOWN = ("float32", "float16", "bfloat16", "fp8")


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A usual range of one metric.

    Attributes:
        metric: id of the metric.
        readout: which of its readouts.
        low: lowest usual value, in the metric's unit.
        high: highest usual value.
        meaning: what a value outside says.
        source: who says so.
        dtypes: it holds where the coarser of the two sides' dtypes is one of these; empty holds anywhere.
        models: the kind of model that it was stated for, which is shown; a run seldom says what its model is.
    """

    metric: str
    readout: str
    low: float
    high: float
    meaning: str
    source: str
    dtypes: tuple[str, ...] = ()
    models: str = "any"


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A measured value beside its usual range.

    Attributes:
        threshold: the range and its source.
        value: the measured value, in the metric's unit.
        state: normal, low, high, or no value.
    """

    threshold: Threshold
    value: float
    state: State

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping; an open end of the range and a value that does not exist are null."""
        ends = {key: value if isfinite(value) else None for key, value in self._ends()}
        rest = asdict(self.threshold) | ends | {"dtypes": list(self.threshold.dtypes)}
        return rest | {"value": json_number(self.value), "state": self.state}

    def _ends(self) -> tuple[tuple[str, float], tuple[str, float]]:
        return ("low", self.threshold.low), ("high", self.threshold.high)

    def __str__(self) -> str:
        """Value, range, and what a value outside means."""
        t = self.threshold
        models = "" if t.models == "any" else f", models: {t.models}"
        usual = f"usual {t.low:g} to {t.high:g}{models}"
        text = f"{t.metric} {t.readout} {self.value:.3g} is {self.state} ({usual}; {t.source})"
        return text if self.state == "normal" else f"{text}: {t.meaning}"


THRESHOLDS = (
    Threshold(
        metric="prob_diff",
        readout="mean",
        low=0.0,
        high=0.005,
        meaning="above 0.01 verl's FAQ speaks of a precision problem",
        source="verl FAQ",
    ),
    Threshold(
        metric="rel_diff",
        readout="mean",
        low=0.0,
        high=0.01,
        meaning="one model in two modes should agree to 1 % in float32; healthy bfloat16 pairs show 3 %",
        source="rule for float32 forwards",
        dtypes=("float32",),
    ),
    Threshold(
        metric="mult_error",
        readout="mean",
        low=1.0,
        high=1.05,
        meaning="the two sides' probabilities are off by more than 5 % on average",
        source="NeMo-RL guide",
    ),
    Threshold(
        metric="k1",
        readout="mean",
        low=-inf,
        high=0.01,
        meaning="the rollout policy is further from the trainer than sampling and training are usually",
        source="Tinker documentation",
    ),
    Threshold(
        metric="k3",
        readout="mean",
        low=0.0,
        high=1e-3,
        meaning="dense models lie at 1e-5 to 1e-3",
        source="miles documentation",
        models=DENSE,
    ),
    Threshold(
        metric="k3",
        readout="mean",
        low=0.0,
        high=0.1,
        meaning="even mixtures of experts lie at 1e-3 to 1e-1",
        source="miles documentation",
        models=MIXTURE,
    ),
    Threshold(
        metric="ess_token",
        readout="ess",
        low=0.3,
        high=1.0,
        meaning="importance weights leave too few effective tokens; better is 0.5",
        source="verl documentation",
    ),
    Threshold(
        metric="ratio",
        readout="mean",
        low=0.5,
        high=2.0,
        meaning="the ratio of the two policies is far from 1 on average",
        source="verl documentation",
    ),
    Threshold(
        metric="ratio",
        readout="std",
        low=0.0,
        high=1.0,
        meaning="importance weights scatter widely",
        source="verl documentation",
    ),
    Threshold(
        metric="k1",
        readout="mean",
        low=-0.1,
        high=0.1,
        meaning="the KL divergence of the two policies is large",
        source="verl documentation",
    ),
    Threshold(
        metric="chi2_token",
        readout="chi2",
        low=-inf,
        high=1.0,
        meaning="importance weights multiply the variance of the gradient",
        source="verl documentation",
    ),
    Threshold(
        metric="logp_diff",
        readout="mean",
        low=0.0,
        high=0.003,
        meaning="two float32 engines agree more closely than that",
        source="public reports",
        dtypes=("float32",),
    ),
    Threshold(
        metric="logp_diff",
        readout="mean",
        low=0.0,
        high=0.03,
        meaning="bfloat16 pairs show 0.007 to 0.03",
        source="public reports",
        dtypes=("bfloat16",),
        models="of a billion parameters or more",
    ),
    Threshold(
        metric="logp_diff",
        readout="mean",
        low=0.0,
        high=0.05,
        meaning="bfloat16 pairs of small models show 0.02 to 0.05",
        source="public reports",
        dtypes=("bfloat16",),
        models="below a billion parameters",
    ),
    Threshold(
        metric="logp_diff",
        readout="mean",
        low=0.0,
        high=0.12,
        meaning="fp8 shows two to four times what bfloat16 shows",
        source="public reports",
        dtypes=("fp8",),
    ),
)
"""The ranges, in the order in which they are shown."""


def judge(
    summary: Summary, *, rollout_dtype: str | None, trainer_dtype: str | None, experts: int | None = None
) -> tuple[Reading, ...]:
    """Put a summary's values beside the usual ranges that hold for these dtypes.

    Args:
        summary: what was measured.
        rollout_dtype: the rollout's declared dtype; None where it is not declared.
        trainer_dtype: the trainer's.
        experts: how many experts the model has; ranges for dense models and for mixtures of experts both apply where
            that is not known.

    Returns:
        One reading for each threshold that applies and whose metric was measured. A range for one dtype applies where
        the coarser of the two sides has it; where one is not declared, no such range applies.
    """
    coarsest = _coarser(rollout_dtype, trainer_dtype)
    other = None if experts is None else DENSE if experts else MIXTURE
    return tuple(
        _reading(summary, threshold)
        for threshold in THRESHOLDS
        if threshold.metric in summary
        and (not threshold.dtypes or coarsest in threshold.dtypes)
        and threshold.models != other
    )


def _reading(summary: Summary, threshold: Threshold) -> Reading:
    """One value beside its range."""
    value = summary[threshold.metric].get(threshold.readout, float("nan"))
    state: State = "normal"
    if value != value:
        state = "no value"
    elif value < threshold.low:
        state = "low"
    elif value > threshold.high:
        state = "high"
    return Reading(threshold=threshold, value=value, state=state)


def _coarser(first: str | None, second: str | None) -> str | None:
    """The coarser of two dtypes; None where one is not known.

    >>> _coarser("float32", "bfloat16"), _coarser("float32", None), _coarser("fp8_e4m3", "bfloat16")
    ('bfloat16', None, 'fp8')
    """
    ranks = [_rank(name) for name in (first, second)]
    known = [rank for rank in ranks if rank is not None]
    return KNOWN[max(known)] if len(known) == len(ranks) else None


def _rank(name: str | None) -> int | None:
    """How coarse a dtype is, or None where it is not known."""
    family = "fp8" if name and ("fp8" in name or "float8" in name) else name
    return KNOWN.index(family) if family in KNOWN else None
