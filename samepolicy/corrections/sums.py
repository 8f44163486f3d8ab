"""The sums that one block of tokens leaves behind, computed where the block lives and without waiting for it."""

import math
from typing import Any

from samepolicy.arrays import Array, array_namespace, dot
from samepolicy.corrections.base import Work

GROUPS = ("raw_token", "raw_geometric", "raw_product", "applied_token", "applied_sequence")
"""Sets of weights, each kept as how many, log of the largest, Σ w/w_max and Σ (w/w_max)²."""
PARTS = ("n", "top", "first", "second")


def log_weights(log: Array, among: Array) -> list[Any]:
    """[count, largest log, Σ w/w_max, Σ (w/w_max)²] of weights given by their logs, where `among` is true."""
    xp = array_namespace(log)
    if 0 in log.shape:
        return [0.0, -math.inf, 0.0, 0.0]
    held = xp.where(among, log, -xp.inf)
    top = xp.max(held)
    relative = xp.exp(held - xp.where(xp.isfinite(top), top, 0.0)).reshape(-1)
    return [xp.count_nonzero(among), top, xp.sum(relative), dot(relative, relative)]


def plain_weights(values: Array, among: Array) -> list[Any]:
    """The same of weights themselves, which are 0 where `among` is false."""
    xp = array_namespace(values)
    if 0 in values.shape:
        return [0.0, -math.inf, 0.0, 0.0]
    top = xp.max(values)
    relative = (values * xp.where(top > 0, 1 / top, 0.0)).reshape(-1)
    return [xp.count_nonzero(among), xp.log(top), xp.sum(relative), dot(relative, relative)]


def block_state(work: Work, weight: Array, measured: Array) -> dict[str, Any]:
    """Everything that is kept of one block, by name; `measured` are the tokens with both log-probs finite."""
    xp = array_namespace(weight)
    groups, missing = work.sequences, measured is not work.sampled
    lengths = groups.pool(measured) if missing else work.lengths
    filled, kept, given = lengths > 0, work.left, groups.pool(work.mask)
    sums, applied = work.log_ratio_sum, groups.pool(weight)
    per_token = xp.clip(lengths, 1, None)
    size = math.prod(weight.shape)
    found = {
        "raw_token": log_weights(work.log_ratio, measured),
        "raw_geometric": log_weights(sums / per_token, filled),
        "raw_product": log_weights(sums, filled),
        "applied_token": plain_weights(weight, work.keep),
        "applied_sequence": plain_weights(applied / per_token, kept > 0),
    }
    return {
        "sequences": lengths.shape[0],
        "filled": xp.count_nonzero(given > 0),
        "tokens": xp.sum(given),
        "raw_least": xp.min(xp.where(measured, work.log_ratio, xp.inf)) if size else math.inf,
        "applied_least": xp.min(xp.where(work.keep, weight, xp.inf)) if size else math.inf,
        **work.counts,
        **{f"{g}.{p}": v for g, values in found.items() for p, v in zip(PARTS, values, strict=True)},
    }
