"""What a monitor measures on the training thread: under a framework's names only what its keys and the alarms read."""

from collections.abc import Mapping
from typing import Any

from samepolicy.arrays import Array, array_namespace, to_numpy
from samepolicy.blocks import Batch
from samepolicy.metrics import all_metrics
from samepolicy.names import metrics_of
from samepolicy.summary import Summary, measure_batch, reduce_batch
from samepolicy.trend import WATCHED

OURS = {
    "ess_token": "ess",
    "ratio": "mean",
    "ratio_above": "share",
    "update_ratio": "mean",
    "update_gap": "mean",
    "total_gap": "mean",
}
"""Readouts that are given under our own names beside a framework's, whatever correction is on."""
COUNTS = ("tokens", "measured", "missing", "nonfinite_trainer", "nonfinite_rollout")
"""Counts that are given beside a framework's names."""
USED = ("current_logp", "trainer_entropy", "advantage")
"""Columns that metrics can need beside the two log-probs."""


def measure_step(
    *, trainer: Array, rollout: Array, mask: Array, offsets: Any, names: str, columns: Mapping[str, Any]
) -> Summary:
    """The Summary of one step; a metric whose column is not there is among its `missing`."""
    used = {name: _per_token(columns[name], mask, offsets) for name in USED if columns.get(name) is not None}
    if names == "samepolicy":
        return measure_batch(trainer=trainer, rollout=rollout, mask=mask, offsets=offsets, **used)
    keep = metrics_of(names) | {*OURS} | {metric for metric, _ in WATCHED.values()}
    wanted = [metric for name, metric in all_metrics().items() if name in keep]
    return reduce_batch(Batch({"trainer_logp": trainer, "rollout_logp": rollout, **used}, mask, offsets), wanted)


def flat(summary: Summary, names: str) -> dict[str, float]:
    """The numbers of a step under the chosen names, and a few of our own beside a framework's."""
    found = summary.flat(names)
    if names == "samepolicy":
        return found
    ours = {f"samepolicy/{n}/{k}": summary[n][k] for n, k in OURS.items() if n in summary}
    counts = {f"samepolicy/counts/{n}": float(getattr(summary.counts, n)) for n in COUNTS}
    return {**ours, **counts, **found}


def _per_token(column: Array, mask: Array, offsets: Any) -> Array:
    """A column with one value per response as one per token."""
    if len(column.shape) == len(mask.shape) and offsets is None:
        return column
    if offsets is None:
        return array_namespace(column).broadcast_to(column[:, None], tuple(mask.shape))
    cuts = to_numpy(offsets)
    if column.shape[0] != len(cuts) - 1 or column.shape[0] == mask.shape[0]:
        return column
    xp = array_namespace(column)
    counts = xp.asarray(cuts[1:] - cuts[:-1], device=column.device)
    return xp.repeat(column, counts)
