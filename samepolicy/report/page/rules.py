"""Corrections in the browser: what each does to a token that is shown, and sums that a threshold can be moved over."""

from typing import Any

import numpy as np

from samepolicy.corrections import Correction, Truncate
from samepolicy.corrections.base import BatchMaskStep, ScaleStep
from samepolicy.report.packed import packed
from samepolicy.report.view import View
from samepolicy.whatif import WhatIf
from samepolicy.whatif.part import Part

BINS = 2048
MOST = 32
"""Rules of which each token says what they do to it; one bit each."""


def of_tokens(view: View, keep: np.ndarray, whatif: WhatIf) -> dict[str, Any]:
    """What each rule does to the kept tokens, as the corrections themselves say.

    Args:
        view: what is shown.
        keep: which tokens are kept, bool [tokens].
        whatif: the rules, in the order of their bits.

    Returns:
        {"names", "drops", "clips"}: bit i of a token's number is rule i; `drops` where the token is left without
        weight, `clips` where its weight is a bound that ratios are held to.
    """
    rules = [o for o in whatif.outcomes if o.correction.steps][:MOST]
    drops, clips = np.zeros((2, int(keep.sum())), dtype=np.uint32)
    rows = np.unique(view.row[keep])
    part, whole = Part(view.run.select(rows), 0), Part(view.run, 0)
    places = np.isin(view.row, rows)
    for i, outcome in enumerate(rules):
        together = any(isinstance(s, BatchMaskStep | ScaleStep) for s in outcome.correction.steps)
        used, where = (whole, keep) if together else (part, keep[places])
        weights, kept, _ = used.corrected(outcome.correction)
        sampled, weight = used.mask[where], weights[where]
        drops |= (sampled & ~(kept[where] & (weight > 0))).astype(np.uint32) << np.uint32(i)
        clips |= (sampled & _held(outcome.correction, weight)).astype(np.uint32) << np.uint32(i)
    return {"names": [o.label for o in rules], "drops": packed(drops, "u4"), "clips": packed(clips, "u4")}


def _held(correction: Correction, weight: np.ndarray) -> np.ndarray:
    """Which weights are those that a truncation holds ratios to."""
    bounds = [b for step in correction.steps if isinstance(step, Truncate) for b in (step.above, step.below) if b]
    found = np.zeros(len(weight), dtype=bool)
    for bound in bounds:
        found |= np.isclose(weight, bound, rtol=1e-6, atol=0.0)
    return found


def sums(view: View) -> dict[str, Any]:
    """The tokens in bins of d, each with its count and the sums of its ratios and of their squares.

    From these a browser computes the ESS and the shares under any bound on token ratios: exactly, but for the one bin
    that the bound lies in.

    Args:
        view: what is shown; its value must be d.

    Returns:
        {"edges", "count", "w", "w2"}; edges are even in asinh(d / 0.01).
    """
    end = np.arcsinh(max(float(np.abs(view.d).max(initial=0.0)), 1.0) / 0.01)
    edges = 0.01 * np.sinh(np.linspace(-end, end, BINS + 1))
    place = np.clip(np.searchsorted(edges, view.d, side="right") - 1, 0, BINS - 1)
    with np.errstate(over="ignore"):
        ratio = np.exp(view.d)
        parts = [np.bincount(place, weights=w, minlength=BINS) for w in (np.ones(len(ratio)), ratio, ratio**2)]
    filled = np.flatnonzero(parts[0])
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    count, w, w2 = (p[first:last] for p in parts)
    return {"edges": packed(edges[first : last + 1]), "count": packed(count), "w": packed(w), "w2": packed(w2)}
