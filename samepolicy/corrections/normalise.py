"""Weights divided by their mean over the batch."""

from dataclasses import dataclass
from typing import Any, Literal

from samepolicy.arrays import array_namespace
from samepolicy.corrections.base import ScaleStep, Work, check_choice


@dataclass(frozen=True)
class Normalise(ScaleStep):
    """Divide the weights by their mean over the batch, so that the loss keeps its scale.

    w / mean(w). The mean is taken where the step stands: over the tokens that the steps before have left, with the
    weights of later drops still in it. A mean of 1e-8 or less leaves the weights as they are. It is the mean of the
    batch of this call: with micro-batches or ranks of their own, each is scaled by its own mean.

    Args:
        over: the mean over tokens, or over sequences of each sequence's mean.

    Raises:
        InputError: an unknown choice.

    Reference: verl, `rollout_is_batch_normalize`; self-normalised importance sampling.

    >>> from samepolicy.corrections import Correction, Truncate
    >>> logp = np.log([[0.5, 0.5]])
    >>> correct = Correction(Truncate(9.0), Normalise())
    >>> correct(trainer=logp, rollout=logp - np.log([[3.0, 1.0]]), mask=np.ones((1, 2))).weights
    array([[1.5, 0.5]])
    """

    over: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        check_choice("Normalise", "over", self.over, ("token", "sequence"))

    def total(self, work: Work) -> tuple[Any, Any]:
        """Sum and count of the weights, or of the sequences' mean weights."""
        xp = array_namespace(work.keep)
        weights = xp.where(work.keep, work.weight, 0.0)
        tokens = work.sequences.pool(work.keep)
        sums = work.sequences.pool(weights)
        if self.over == "token":
            return xp.sum(sums), xp.sum(tokens)
        return xp.sum(sums / xp.clip(tokens, 1, None)), xp.count_nonzero(tokens > 0)
