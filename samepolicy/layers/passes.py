"""Forwards of the trainer: as it is, with the other side's values put in at every tap, or at a few.

Where every tap is put in, each step runs on the other side's own inputs, so that what it gives differs from the other
side's by that step alone: no error of an earlier step reaches it.
"""

from collections.abc import Callable, Collection, Iterator
from typing import TypeAlias

import numpy as np

from samepolicy.arrays import Array, Ragged
from samepolicy.layers import taps
from samepolicy.layers.capture import Capture
from samepolicy.layers.hf_taps import Model

OnValue: TypeAlias = Callable[[str, int, Array], None]
"""Called with a tap, the place of its first token among all tokens, and values [tokens, width] not to keep."""

LOOKED_AT = ("router", "experts")
"""Parts that are compared but never put in: what is done with them happens inside one module."""


def plain(model: Model, ids: Ragged, on_value: OnValue, *, padded: bool = False) -> None:
    """Run the model as it is.

    Args:
        model: the trainer.
        ids: token ids, one row per sequence.
        on_value: sees every tap of every token.
        padded: run all sequences in one batch, padded, instead of one at a time.
    """
    rows = [row.tolist() for row in ids]
    batches = [list(range(len(rows)))] if padded else [[row] for row in range(len(rows))]
    for batch in batches:

        def visit(row: int, tap: str, place: int, values: Array, batch: list[int] = batch) -> None:
            on_value(tap, int(ids.offsets[batch[row]]) + place, values)

        model.run_padded([rows[row] for row in batch], visit)


def put_in(
    model: Model,
    source: Capture,
    where: Collection[str] | None,
    on_value: OnValue | None = None,
    *,
    rows: Collection[int] | None = None,
) -> None:
    """Run the model with another side's values at some taps.

    Args:
        model: the trainer.
        source: the other side's values.
        where: the taps; None is all of them.
        on_value: sees what the model gives at every tap, before it is replaced.
        rows: the sequences to run; None is all of them.
    """
    for row in range(len(source.ids)) if rows is None else rows:

        def visit(tap: str, place: int, values: Array, start: int = int(source.ids.offsets[row])) -> Array | None:
            if on_value is not None:
                on_value(tap, start + place, values)
            chosen = tap in source.slots if where is None else tap in where
            if not chosen or taps.part_of(tap) in LOOKED_AT or tap == taps.LOGITS:
                return None
            return source.read(tap, start + place, start + place + len(values)).to(values.device)

        model.run(source.ids[row].tolist(), visit)


def capture(model: Model, ids: Ragged, *, padded: bool = False, label: str = "trainer") -> Capture:
    """Everything that a model computes, in a scratch file."""
    kept = Capture.new(ids, label=label, layers=len(model.parts.layers))
    plain(model, ids, kept.write, padded=padded)
    return kept


class LogProbs:
    """Collects the log-prob of each next id from logits as they pass by.

    Attributes:
        values: nats, float64 [tokens]; NaN at the last token of each sequence, which predicts nothing here.
    """

    def __init__(self, ids: Ragged) -> None:
        """Nothing seen yet."""
        self._next = np.append(ids.values[1:], 0)
        self._last = set((ids.offsets[1:] - 1).tolist())
        self.values = np.full(len(ids.values), np.nan)

    def see(self, tap: str, place: int, values: Array) -> None:
        """Take logits in; other taps are left alone."""
        import torch

        if tap != taps.LOGITS:
            return
        wanted = torch.as_tensor(self._next[place : place + len(values)], device=values.device)
        logp = torch.log_softmax(values.double(), -1).gather(1, wanted[:, None])[:, 0].cpu().numpy()
        for offset, value in enumerate(logp):
            if place + offset not in self._last:
                self.values[place + offset] = value


def logp_with(model: Model, source: Capture, where: Collection[str]) -> np.ndarray:
    """Log-probs of the trainer with the other side's values at some taps, float64 [tokens]; see `LogProbs`."""
    found = LogProbs(source.ids)
    if where:
        put_in(model, source, where, found.see)
    else:
        plain(model, source.ids, found.see)
    return found.values


def logp_of(source: Capture) -> np.ndarray:
    """Log-probs of a capture by its own logits, float64 [tokens]; see `LogProbs`."""
    found = LogProbs(source.ids)
    for place, values in pieces(source, taps.LOGITS):
        found.see(taps.LOGITS, place, values)
    return found.values


def pieces(source: Capture, tap: str, count: int = 64) -> Iterator[tuple[int, Array]]:
    """A tap's values, a few tokens at a time, with the place of the first."""
    for start in range(0, source.tokens, count):
        yield start, source.read(tap, start, min(start + count, source.tokens))
