"""Mistakes on the logits. Each maps logits [tokens, vocab] and the response's ids to other logits."""

from collections.abc import Callable
from typing import Any, TypeAlias

Mistake: TypeAlias = Callable[[Any, list[int]], Any]


def penalised(*, presence: float = 0.0, frequency: float = 0.0) -> Mistake:
    """Presence and frequency penalties of the ids that the response holds already."""

    def change(logits: Any, ids: list[int]) -> Any:
        import torch

        seen = torch.nn.functional.one_hot(torch.tensor(ids), logits.shape[-1]).float().cumsum(0).roll(1, 0)
        seen[0] = 0
        return logits - presence * (seen > 0) - frequency * seen

    return change


def biased(identity: int, value: float) -> Mistake:
    """A bias on one id."""

    def change(logits: Any, _: list[int]) -> Any:
        logits[:, identity] += value
        return logits

    return change


def capped(most: float) -> Mistake:
    """Logits bent by a tanh, as models with soft caps do."""
    return lambda logits, _: most * (logits / most).tanh()


def smoothed(share: float) -> Mistake:
    """Probabilities of which a share is spread evenly over all ids."""
    return lambda logits, _: ((1 - share) * logits.softmax(-1) + share / logits.shape[-1]).log()
