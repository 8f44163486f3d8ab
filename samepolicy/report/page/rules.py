"""Corrections in the browser: what each does to a token that is shown, and sums that a threshold can be moved over."""

from typing import Any

import numpy as np

from samepolicy.corrections import Correction, Truncate
from samepolicy.corrections.base import BatchMaskStep, ScaleStep
from samepolicy.report.bins import Bins
from samepolicy.report.packed import packed
from samepolicy.report.view import View
from samepolicy.whatif import WhatIf
from samepolicy.whatif.part import Part

MOST = 32
"""Rules of which each token says what they do to it; one bit each."""


def of_tokens(view: View, keep: np.ndarray, whatif: WhatIf, *, batches: bool = True) -> dict[str, Any]:
    """What each rule does to the kept tokens, as the corrections themselves say.

    Args:
        view: what is shown.
        keep: which tokens are kept, bool [tokens].
        whatif: the rules, in the order of their bits.
        batches: whether the view holds whole batches; otherwise rules that look at one are left out.

    Returns:
        {"names", "drops", "clips"}: bit i of a token's number is rule i; `drops` where the token is left without
        weight, `clips` where its weight is a bound that ratios are held to.
    """
    able = [o for o in whatif.outcomes if o.correction.steps and (batches or not _together(o.correction))]
    rules = able[:MOST]
    drops, clips = np.zeros((2, int(keep.sum())), dtype=np.uint32)
    rows = np.unique(view.row[keep])
    part, whole = Part(view.run.select(rows), 0), Part(view.run, 0)
    places = np.isin(view.row, rows)
    for i, outcome in enumerate(rules):
        used, where = (whole, keep) if _together(outcome.correction) else (part, keep[places])
        weights, kept, _ = used.corrected(outcome.correction)
        sampled, weight = used.mask[where], weights[where]
        drops |= (sampled & ~(kept[where] & (weight > 0))).astype(np.uint32) << np.uint32(i)
        clips |= (sampled & _held(outcome.correction, weight)).astype(np.uint32) << np.uint32(i)
    return {"names": [o.label for o in rules], "drops": packed(drops, "u4"), "clips": packed(clips, "u4")}


def _together(correction: Correction) -> bool:
    """Whether a step looks at a whole batch."""
    return any(isinstance(step, BatchMaskStep | ScaleStep) for step in correction.steps)


def _held(correction: Correction, weight: np.ndarray) -> np.ndarray:
    """Which weights are those that a truncation holds ratios to."""
    bounds = [b for step in correction.steps if isinstance(step, Truncate) for b in (step.above, step.below) if b]
    found = np.zeros(len(weight), dtype=bool)
    for bound in bounds:
        found |= np.isclose(weight, bound, rtol=1e-6, atol=0.0)
    return found


def sums(bins: Bins) -> dict[str, Any]:
    """The tokens in bins of d, each with its count and the sums of its ratios and of their squares.

    From these a browser computes the ESS and the shares under any bound on token ratios: exactly, but for the one bin
    that the bound lies in.

    Args:
        bins: the run in bins; its values must be d.

    Returns:
        {"edges", "count", "w", "w2"}; edges are even in asinh(d / 0.01).
    """
    filled = np.flatnonzero(bins.steps[0])
    first, last = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 0)
    count, w, w2 = bins.steps[:, first:last]
    edges = packed(bins.ends.steps[first : last + 1])
    return {"edges": edges, "count": packed(count), "w": packed(w), "w2": packed(w2)}
