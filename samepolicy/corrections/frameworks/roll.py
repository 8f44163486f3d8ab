"""ROLL: unverified until run."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from samepolicy.corrections.base import Step
from samepolicy.corrections.correction import Correction
from samepolicy.corrections.frameworks import one_of
from samepolicy.corrections.reject import Measure, Reduce, Reject
from samepolicy.corrections.spans import Over
from samepolicy.corrections.truncate import Truncate
from samepolicy.errors import InputError

LEVELS = ("token", "segment", "geometric", "sequence")
FILTER = {
    "enabled": False,
    "agg_type": "token",
    "ratio_enabled": True,
    "ratio_low": 0.8,
    "ratio_high": 1.2,
    "diff_enabled": False,
    "diff_low": -0.2,
    "diff_high": 0.2,
}
"""The fields of one filter with their defaults."""


def correction(
    *,
    enabled: bool = False,
    weight_type: Literal["token", "segment", "geometric", "sequence"] = "token",
    upper_bound: float | None = 1.2,
    filters: Sequence[Mapping[str, Any]] = (),
) -> Correction:
    """The correction that ROLL's `train_infer_correction` means: the fields of `is_weight`, and its `filters`.

    The weight is the ratio of the token, of the run of sampled tokens it is in (geometric mean), of the sequence's
    geometric mean or of its product, held to upper_bound. A filter keeps tokens whose ratio, or difference of
    probabilities (mean over a segment or sequence, sum for "sequence"), lies within its bounds. `detach=False` of
    theirs has no place here: weights are always detached.

    Divides by: what was kept, since filters change the response mask.

    Raises:
        InputError: an unknown field or level, or bounds that cannot be.

    Reference: https://github.com/alibaba/ROLL, `roll/utils/train_infer_corrections.py`,
    `roll/configs/base_config.py`; unverified until run.
    """
    one_of("weight_type", weight_type, LEVELS)
    steps: list[Step] = []
    if enabled:
        over: Over = weight_type
        steps.append(Truncate(float("inf") if upper_bound is None else upper_bound, over=over))
    for given in filters:
        unknown = set(given) - set(FILTER)
        if unknown:
            raise InputError(f"A filter of ROLL has no {sorted(unknown)[0]!r}; it has {', '.join(FILTER)}.")
        one_of("agg_type", given.get("agg_type", "token"), LEVELS)
        steps += _filter({**FILTER, **given})
    return Correction(*steps)


def _filter(fields: Mapping[str, Any]) -> list[Step]:
    """The steps of one filter."""
    level = fields["agg_type"]
    spans: dict[str, Literal["token", "sequence", "segment"]] = {"token": "token", "segment": "segment"}
    over = spans.get(level, "sequence")
    found: list[Step] = []
    kinds: tuple[tuple[str, Measure, Reduce], ...] = (("ratio", "ratio", "geometric"), ("diff", "prob_diff", "mean"))
    for name, measure, mean in kinds:
        if fields["enabled"] and fields[f"{name}_enabled"]:
            reduce: Reduce = "sum" if level == "sequence" else "mean" if level == "token" else mean
            low, high = fields[f"{name}_low"], fields[f"{name}_high"]
            found.append(Reject(measure, below=low, above=high, over=over, reduce=reduce))
    return found
