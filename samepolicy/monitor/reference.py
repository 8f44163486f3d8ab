"""How far the policy has moved from its reference: k1, k2, k3 over tokens and over completions, and their bands."""

from math import isfinite, nan
from typing import Any

import numpy as np
from jaxtyping import Float

from samepolicy.arrays import Array, segment, to_numpy
from samepolicy.blocks import Batch
from samepolicy.kl import kl_values

KINDS = ("k1", "k2", "k3")
BANDS = (0.01, 0.1, 0.2)
"""Nats per token, of k2: below the first hardly moving, up to the second healthy, above the last too far."""
PREFIX = "samepolicy/reference_kl"
APART = 2.0
"""k2 and k3 that differ by more than this factor are far apart, once the policy has left the first band."""


def reference_kl(*, policy: Array, reference: Array, mask: Array, offsets: Any = None) -> dict[str, float]:
    """The divergence of the policy from its reference, three ways, over tokens and over completions.

    With log r = log π_ref - log π_θ: k1 = -log r, k2 = ½(log r)², k3 = r - 1 - log r. Tokens without a finite log-prob
    on both sides are left out and counted.

    Args:
        policy: log-probs under the policy that is trained, float [batch, time], or [tokens] with offsets.
        reference: log-probs under the reference policy, same shape.
        mask: 1 where the policy sampled the token, same shape.
        offsets: where each packed sequence begins and the last ends, int [sequences + 1].

    Returns:
        Nats per token: `…/k1_token_mean`, `…/k1_completion_mean` (the mean over each completion, then over them) and
        so on; `actor/kl_loss`, the token mean of k2; `…/band` (0 hardly moving, 1 healthy, 2 between, 3 too far); and
        `…/left_out`, tokens.

    >>> found = reference_kl(policy=np.log([[0.5]]), reference=np.log([[0.25]]), mask=np.ones((1, 1)))
    >>> round(found["actor/kl_loss"], 4), found["samepolicy/reference_kl/band"]
    (0.2402, 3.0)
    """
    batch = Batch({"trainer_logp": reference, "rollout_logp": policy}, mask, offsets)
    sums, lengths, left_out = [np.zeros((len(KINDS), 0))], [np.zeros(0)], 0
    with np.errstate(over="ignore"):
        for rows, cut in batch.cuts():
            block = batch.block(rows, cut)
            sums.append(_sums(block.columns["rollout_logp"], block.columns["trainer_logp"], block.lengths))
            lengths.append(to_numpy(block.lengths))
            left_out += block.counts.tokens - block.counts.measured
    found = _means(np.concatenate(sums, axis=1), np.concatenate(lengths))
    kl = found[f"{PREFIX}/k2_token_mean"]
    band = float(np.searchsorted(BANDS, kl, side="right")) if isfinite(kl) else nan
    return {"actor/kl_loss": kl, **found, f"{PREFIX}/band": band, f"{PREFIX}/left_out": float(left_out)}


def warnings(found: dict[str, float]) -> dict[str, str]:
    """What the numbers say that should be looked at, by a short name each."""
    k2, k3 = found[f"{PREFIX}/k2_token_mean"], found[f"{PREFIX}/k3_token_mean"]
    said = {}
    if k2 > BANDS[-1]:
        said["reference_kl"] = f"the policy is {k2:.3g} nats per token from its reference, above {BANDS[-1]}: too far"
    if k2 > BANDS[0] and not 1 / APART <= k3 / k2 <= APART:
        said["reference_k3"] = f"k2 {k2:.3g} and k3 {k3:.3g} are far apart, so policy and reference are, too"
    return said


def _sums(policy: Array, reference: Array, lengths: Array) -> Float[np.ndarray, "kinds sequences"]:
    """The sum of each kind over each sequence."""
    values = [kl_values(current=policy, reference=reference, kind=kind) for kind in KINDS]  # type: ignore[arg-type]
    return np.stack([to_numpy(segment(v, lengths, "sum")).astype(np.float64) for v in values])


def _means(sums: Float[np.ndarray, "kinds sequences"], lengths: Float[np.ndarray, " sequences"]) -> dict[str, float]:
    """Means over tokens, and over the sequences that have a token."""
    filled = lengths > 0
    found = {}
    for kind, row in zip(KINDS, sums[:, filled], strict=True):
        found[f"{PREFIX}/{kind}_token_mean"] = float(row.sum() / lengths.sum()) if filled.any() else nan
        found[f"{PREFIX}/{kind}_completion_mean"] = float((row / lengths[filled]).mean()) if filled.any() else nan
    return found
