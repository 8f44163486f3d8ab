"""What every rule does to each prompt, in a table that does not grow without end: the units of the bootstrap."""

from dataclasses import dataclass
from typing import Self
from zlib import crc32

import numpy as np
from jaxtyping import Float

MOST = 16_384
"""Prompts that are kept apart; more are gathered in as many groups, by chance."""


@dataclass(frozen=True, eq=False)
class Prompts:
    """Sums of each prompt, or of groups of prompts where there are more than `MOST`.

    A prompt's group is a hash of its label. So each group is a random set of whole prompts, sums over all groups are
    those over all prompts, and their spread says the same about the whole; `+` gives the same table in any order.

    Attributes:
        labels: what each prompt is called, in order, str [units]; None where units are groups.
        sums: Σ w·A, kept tokens and Σ w of each unit under every rule, [units, 3, rules].

    >>> one = Prompts(np.array(["a", "b"]), np.ones((2, 3, 1)))
    >>> both = one + Prompts(np.array(["b", "c"]), np.ones((2, 3, 1)))
    >>> both.labels.tolist(), both.sums[:, 0, 0].tolist()
    (['a', 'b', 'c'], [1.0, 2.0, 1.0])
    """

    labels: np.ndarray | None
    sums: Float[np.ndarray, "units 3 rules"]

    def __add__(self, other: Self) -> Self:
        """Those of both."""
        if self.labels is None or other.labels is None:
            return type(self)(None, self._grouped() + other._grouped())
        labels, unit = np.unique(np.concatenate([self.labels, other.labels]), return_inverse=True)
        sums = _added(unit, np.concatenate([self.sums, other.sums]), len(labels))
        found = type(self)(labels, sums)
        return found if len(labels) <= MOST else type(self)(None, found._grouped())

    def only(self, rules: np.ndarray) -> Self:
        """The columns of some rules."""
        return type(self)(self.labels, self.sums[:, :, rules])

    def _grouped(self) -> np.ndarray:
        """Sums of the groups, [MOST, 3, rules]."""
        if self.labels is None:
            return self.sums
        unit = np.fromiter((crc32(label.encode()) % MOST for label in self.labels.tolist()), np.int64, len(self.labels))
        return _added(unit, self.sums, MOST)


def _added(unit: np.ndarray, sums: np.ndarray, units: int) -> np.ndarray:
    """Rows of the same unit added up."""
    found = np.zeros((units, *sums.shape[1:]))
    np.add.at(found, unit, sums)
    return found
