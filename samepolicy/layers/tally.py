"""What two sides' values at a tap have to say of each other, token by token, without keeping the values."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.layers.capture import Capture
from samepolicy.layers.passes import pieces

TAIL = 0.05
"""The share of tokens that count as the worst ones."""

OUTLIER = 5.0
"""A channel whose error is so many times the median channel's is an outlier."""

QUIET = 1e-4
"""A token with less than this share of the mean square counts as if it had so much, so that none divides by nothing."""


class Tally:
    """Sums over a tap: a few numbers per token and per channel."""

    def __init__(self, tokens: int) -> None:
        """Nothing seen yet."""
        self._sums = np.zeros((4, tokens))  # of the difference's squares, each side's squares, and their products
        self._channels: Any = 0.0
        self.max_abs = 0.0

    def add(self, place: int, ours: Array, theirs: Array) -> None:
        """Take values in.

        Args:
            place: the first token's place.
            ours: one side, [tokens, width].
            theirs: the other.
        """
        import torch

        exact = torch.float64 in (ours.dtype, theirs.dtype)
        a, b = (side.to("cpu", torch.float64 if exact else torch.float32) for side in (ours, theirs))
        d = a - b
        found = [d.square().sum(-1), a.square().sum(-1), b.square().sum(-1), (a * b).sum(-1)]
        self._sums[:, place : place + len(a)] = torch.stack(found).double().numpy()
        self._channels = self._channels + d.square().sum(0).double().numpy()
        largest = float(d.abs().max()) if d.numel() else 0.0
        self.max_abs = max(self.max_abs, largest) if largest == largest else float("nan")

    @property
    def squares(self) -> np.ndarray:
        """The squared relative error of each token, float64 [tokens]."""
        difference, _, theirs, _ = self._sums
        floor = QUIET * theirs.mean() if len(theirs) else 0.0
        result: np.ndarray = difference / np.maximum(np.maximum(theirs, floor), 1e-300)
        return result

    @property
    def relative(self) -> float:
        """‖ours - theirs‖ / ‖theirs‖ over all tokens."""
        return float(np.sqrt(_ratio(self._sums[0].sum(), self._sums[2].sum())))

    @property
    def cosine(self) -> float:
        """The cosine between the two sides, all tokens as one vector."""
        _, ours, theirs, products = self._sums.sum(1)
        return _ratio(products, (ours * theirs) ** 0.5)

    @property
    def outliers(self) -> float:
        """The share of channels whose error is `OUTLIER` times the median channel's or more."""
        channels = np.sqrt(np.atleast_1d(self._channels))
        middle = np.median(channels)
        return float((channels > OUTLIER * middle).mean()) if middle > 0 else float((channels > 0).mean())

    def by_position(self, positions: np.ndarray, bins: int) -> tuple[float, ...]:
        """The relative error at each stretch of positions, rms over its tokens; NaN where there is none.

        Args:
            positions: of each token in its sequence.
            bins: stretches of equal length.
        """
        edges = np.linspace(0, positions.max() + 1, bins + 1)
        which = np.digitize(positions, edges[1:-1])
        squares = self.squares
        return tuple(
            float(np.sqrt(squares[which == b].mean())) if (which == b).any() else float("nan") for b in range(bins)
        )


@dataclass(frozen=True)
class Size:
    """How large relative errors are over tokens: all of them, and the worst few."""

    rms: float
    tail: float


def size(squares: np.ndarray) -> Size:
    """The size of relative errors.

    Args:
        squares: squared relative errors, float64 [tokens].

    >>> size(np.array([1.0, 1.0, 1.0, 9.0]))
    Size(rms=1.7320508075688772, tail=3.0)
    """
    if not len(squares):
        return Size(0.0, 0.0)
    worst = np.sort(squares)[-max(1, round(TAIL * len(squares))) :]
    return Size(float(np.sqrt(squares.mean())), float(np.sqrt(worst.mean())))


def between(ours: Capture, theirs: Capture) -> dict[str, Tally]:
    """Compare two captures of the same ids at every tap that both have."""
    found: dict[str, Tally] = {}
    for tap in ours.taps:
        if tap in theirs.slots:
            found[tap] = Tally(ours.tokens)
            for place, values in pieces(ours, tap):
                found[tap].add(place, values, theirs.read(tap, place, place + len(values)))
    return found


def _ratio(above: float, below: float) -> float:
    """A quotient; 0 where both are 0."""
    return float(above / below) if below > 0 else (0.0 if above == 0 else float("inf"))
