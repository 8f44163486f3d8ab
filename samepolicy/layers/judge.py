"""Which steps differ by more than rounding: each against its own floor.

The floor of a step is what the two sides' rounding makes of it, sqrt(t² + (r·t)²). t is the trainer's own rounding in
that step, measured against a wider dtype, at least one unit roundoff, and at most 8 times what is usual for steps of
its kind. r says how much rougher the rollout's kernels of that kind are, the median over layers, between 1 and 4. A
step is beyond rounding where its error, over all tokens or over the worst twentieth, is more than 3 floors.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from samepolicy.layers import taps
from samepolicy.layers.local import Routes, Step
from samepolicy.layers.tally import Size, size

BEYOND = 3.0
"""Floors above which an error is no rounding."""

DOUBTFUL = 2.4
"""Floors above which it is not surely rounding either."""

USUAL = 8.0
ROUGHER = 4.0
SURE = 0.9
"""The least share of resamplings that must agree on the first tap."""

UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "bfloat16": 2.0**-9, "float16": 2.0**-11}
"""Half the distance between neighbouring numbers, relative."""

RESAMPLINGS = 200


@dataclass(frozen=True)
class Judged:
    """A step beside its floor.

    Attributes:
        pair: its error, relative, over all tokens.
        trainer: the trainer's own rounding in it.
        rollout: the rollout's error against the same reference.
        floor: what rounding explains.
        ratio: error over floor, the larger one of all tokens and of the worst ones.
    """

    pair: float
    trainer: float
    rollout: float
    floor: Size
    ratio: float

    @property
    def beyond(self) -> bool:
        """Whether rounding does not explain it; what is not a number is not explained."""
        return not self.ratio <= BEYOND


def judge(steps: Mapping[str, Step], routes: Mapping[int, Routes], dtype: str) -> dict[str, Judged]:
    """Judge every step.

    Args:
        steps: errors by tap.
        routes: by layer.
        dtype: the coarser of the two sides' dtypes.

    Returns:
        By tap in the order of computation; chosen experts count as one step, with the share of tokens whose choice the
        router logits do not explain as its error.
    """
    unit, found = UNIT[dtype], {}
    sizes = {tap: _sizes(step) for tap, step in steps.items()}
    usual, rougher = _usual(sizes, unit), _rougher(sizes, unit)
    for tap, (pair, ours, theirs) in sizes.items():
        part = taps.part_of(tap)
        factor = float(np.hypot(1.0, rougher[part]))
        floor = Size(
            factor * max(unit, min(ours.rms, USUAL * usual[part].rms)),
            factor * max(unit, min(ours.tail, USUAL * usual[part].tail)),
        )
        ratio = float(np.max([pair.rms / floor.rms, pair.tail / floor.tail]))
        found[tap] = Judged(pair.rms, ours.rms, theirs.rms, floor, ratio)
        layer = taps.layer_of(tap)
        if part == "router" and layer is not None and layer in routes:
            found[taps.name(layer, "experts")] = _routed(routes[layer])
    return found


def confidence(steps: Mapping[str, Step], judged: Mapping[str, Judged], first: str) -> float:
    """The share of resamplings of tokens in which the same tap is the first beyond rounding, 0 to 1.

    Args:
        steps: errors by tap.
        judged: what became of them.
        first: the first tap beyond rounding.
    """
    order = list(judged)
    close = [tap for tap in order[: order.index(first) + 1] if tap in steps and judged[tap].ratio > BEYOND / 3]
    if first not in close:
        return 1.0
    rng, agree = np.random.default_rng(0), 0
    kept = {tap: steps[tap].pair[~steps[tap].routed_apart] for tap in close}
    for _ in range(RESAMPLINGS):
        beyond = [tap for tap in close if _again(kept[tap], judged[tap].floor, rng) > BEYOND]
        agree += bool(beyond) and beyond[0] == first
    return agree / RESAMPLINGS


def _again(squares: np.ndarray, floor: Size, rng: np.random.Generator) -> float:
    """Error over floor of tokens drawn anew."""
    drawn = size(squares[rng.integers(0, len(squares), len(squares))])
    return max(drawn.rms / floor.rms, drawn.tail / floor.tail)


def _sizes(step: Step) -> tuple[Size, Size, Size]:
    """Pair, trainer, rollout."""
    kept = ~step.routed_apart
    return size(step.pair[kept]), size(step.trainer[kept]), size(step.rollout[kept])


def _usual(sizes: Mapping[str, tuple[Size, Size, Size]], unit: float) -> dict[str, Size]:
    """The trainer's median rounding by kind of step."""
    return {
        part: Size(*(max(unit, _median([getattr(s[1], field) for s in group])) for field in ("rms", "tail")))
        for part, group in _by_part(sizes).items()
    }


def _rougher(sizes: Mapping[str, tuple[Size, Size, Size]], unit: float) -> dict[str, float]:
    """How much rougher the rollout's steps of a kind are."""
    return {
        part: float(np.clip(_median([max(s[2].rms, unit) / max(s[1].rms, unit) for s in group]), 1.0, ROUGHER))
        for part, group in _by_part(sizes).items()
    }


def _median(values: list[float]) -> float:
    """The median of what is a number; 0 where nothing is."""
    known = [value for value in values if np.isfinite(value)]
    return float(np.median(known)) if known else 0.0


def _by_part(sizes: Mapping[str, tuple[Size, Size, Size]]) -> dict[str, list[tuple[Size, Size, Size]]]:
    found: dict[str, list[tuple[Size, Size, Size]]] = {}
    for tap, three in sizes.items():
        found.setdefault(taps.part_of(tap), []).append(three)
    return found


def _routed(routes: Routes) -> Judged:
    """Chosen experts: no rounding explains a swap that the router logits do not."""
    share = float(routes.unexplained.mean())
    return Judged(share, 0.0, share, Size(0.0, 0.0), float("inf") if share else 0.0)
