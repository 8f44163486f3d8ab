"""Rollout log-probs that are missing on one rank: all ranks skip the step together, count it, and say so."""

import logging
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("samepolicy")


class RolloutPresence:
    """Asks all ranks whether each has the rollout's log-probs, before a step is measured or corrected.

    A rank that skipped alone would leave the others waiting in a collective, and a rank that put something in their
    place would report a perfect match. The first skip is logged as an error, the later ones are only counted.

    Args:
        all_reduce_min: takes this rank's 0 or 1 and returns the least of all ranks; the default is for one rank.

    Attributes:
        skipped: steps that were skipped so far.

    >>> present = RolloutPresence(lambda mine: min(mine, 1, 0))  # another rank has none
    >>> present(np.zeros(3)), present.skipped
    (False, 1)
    """

    def __init__(self, all_reduce_min: Callable[[int], int] = int) -> None:
        self._all_reduce_min = all_reduce_min
        self.skipped = 0

    def __call__(self, rollout_logp: Any) -> bool:
        """Whether every rank has rollout log-probs; every rank must make this call at every step."""
        if self._all_reduce_min(int(rollout_logp is not None)):
            return True
        self.skipped += 1
        if self.skipped == 1:
            where = "on this rank" if rollout_logp is None else "on another rank"
            _log.error(
                "Rollout log-probs are missing %s: this step is neither measured nor corrected on any rank; let the "
                "engine return the log-probs of every sample.",
                where,
            )
        return False
