"""What each block costs in nats: the rollout's stream is put into the trainer after one block, then the next.

f(k) are the trainer's log-probs with the rollout's stream after block k. Between the trainer's own log-probs and the
rollout's lie f(0), f(1) …, one block apart, so the differences add up to the whole gap, token by token. Each is what
that block's fault does, seen through the trainer's layers above it.
"""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from samepolicy.layers import taps
from samepolicy.layers.capture import Capture
from samepolicy.layers.hf_taps import Model
from samepolicy.layers.passes import logp_of, logp_with
from samepolicy.ratio import log_ratio

PASSES = 26
"""Forwards that are spent on looking closer."""

WORTH = 0.05
"""The share of the gap below which a stretch of blocks is not looked into."""


@dataclass(frozen=True)
class Row:
    """One block, or a stretch of blocks, of the ledger.

    Attributes:
        first: the tap it begins after; empty for the input.
        last: the tap it ends at.
        nats: mean absolute change of a token's log-prob through it.
        signed: the mean change; all rows' add up to the mean of trainer - rollout.
        closes: how much smaller the mean absolute gap is with the rollout's stream after it than before it.
    """

    first: str
    last: str
    nats: float
    signed: float
    closes: float


@dataclass(frozen=True)
class Ledger:
    """The gap by blocks.

    Attributes:
        gap: mean absolute trainer - rollout, nats per token, over the tokens that both predict.
        rows: the blocks in the order of computation.
        passes: forwards it took.
    """

    gap: float
    rows: tuple[Row, ...]
    passes: int


def ledger(model: Model, rollout: Capture, suspects: Iterable[str] = (), *, passes: int = PASSES) -> Ledger:
    """Attribute the gap to blocks.

    Args:
        model: the trainer.
        rollout: what the rollout computed.
        suspects: taps whose blocks get rows of their own, however small.
        passes: forwards to spend at most on other blocks.
    """
    stream = taps.stream(rollout.layers)
    search = _Search(model, rollout, stream)
    wanted = {edge for tap in suspects for edge in edges(tap, stream)}
    marks = sorted({-1, len(stream) - 1, len(stream), *wanted})
    for mark in marks:
        search.at(mark)
    left = passes
    while left > 0 and (middle := search.next_cut(marks)) is not None:
        marks = sorted([*marks, middle])
        left -= 1
    return Ledger(search.gap(-1), tuple(search.row(a, b) for a, b in itertools.pairwise(marks)), len(marks))


def edges(tap: str, stream: Sequence[str]) -> tuple[int, int]:
    """Where in the stream the block that holds a tap begins and ends; -1 is the input, len(stream) the output.

    >>> edges("layers.0.q", ["embedding", "layers.0.middle", "layers.0.residual"])
    (0, 1)
    """
    layer, part = taps.layer_of(tap), taps.part_of(tap)
    if layer is None:
        return (-1, 0) if tap == taps.EMBEDDING else (len(stream) - 1, len(stream))
    end = 2 * layer + (1 if taps.PARTS.index(part) <= taps.PARTS.index("middle") else 2)
    return end - 1, end


def graft(model: Model, rollout: Capture, tap: str) -> float:
    """The mean absolute gap that is left when the rollout's values are put in at one tap, nats per token."""
    theirs = logp_of(rollout)
    return _mean(log_ratio(trainer=logp_with(model, rollout, [tap]), rollout=theirs))


class _Search:
    """Log-probs at marks along the stream, each computed once."""

    def __init__(self, model: Model, rollout: Capture, stream: Sequence[str]) -> None:
        self.model, self.rollout, self.stream = model, rollout, stream
        self._known: dict[int, np.ndarray] = {}

    def at(self, mark: int) -> np.ndarray:
        """Log-probs with the rollout's stream at a mark; before the first it is the trainer's own."""
        if mark not in self._known:
            if mark == len(self.stream):
                self._known[mark] = logp_of(self.rollout)
            else:
                where = [] if mark < 0 else [self.stream[mark]]
                self._known[mark] = logp_with(self.model, self.rollout, where)
        return self._known[mark]

    def gap(self, mark: int) -> float:
        """The mean absolute gap that is left at a mark."""
        return _mean(log_ratio(trainer=self.at(mark), rollout=self.at(len(self.stream))))

    def next_cut(self, marks: Sequence[int]) -> int | None:
        """The middle of the stretch through which most of the gap comes, if one is worth it."""
        whole = self.gap(-1)
        wide = [(self.row(a, b).nats, a, b) for a, b in itertools.pairwise(marks) if b - a > 1]
        worth = [found for found in wide if found[0] > WORTH * whole > 0]
        if not worth:
            return None
        _, a, b = max(worth)
        return (a + b) // 2

    def row(self, start: int, stop: int) -> Row:
        """The row between two marks."""
        change = log_ratio(trainer=self.at(start), rollout=self.at(stop))
        names = ["", *self.stream, taps.LOGITS]
        return Row(
            first=names[start + 1],
            last=names[stop + 1],
            nats=_mean(change),
            signed=float(np.nanmean(change)),
            closes=self.gap(start) - self.gap(stop),
        )


def _mean(change: np.ndarray) -> float:
    """The mean absolute value of what is there."""
    return float(np.nanmean(np.abs(change)))
