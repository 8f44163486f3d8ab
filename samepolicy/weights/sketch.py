"""A small linear picture of a tensor: 256 sums with random signs, so that distances can be told from pictures alone.

Since it is linear, the picture of a difference is the difference of pictures, and its length is that of the
difference to about 5 % (one in three cases is further off; at worst, for a difference that repeats in one column,
about 25 %).
"""

from functools import lru_cache
from typing import Any

import numpy as np

from samepolicy.arrays import Array
from samepolicy.weights.hashing import mix

SIGNS, WIDTH = 8, 32
"""Sign patterns, and sums per pattern."""


class Sketch:
    """Takes the values of one tensor, a block at a time; equal shapes must be cut into equal blocks."""

    def __init__(self) -> None:
        """Start with an empty tensor."""
        self._sums = np.zeros((SIGNS, WIDTH))
        self._blocks = 0

    def add(self, values: Array) -> None:
        """Take the next values.

        Args:
            values: float32 or float64, any shape, finite.
        """
        import torch

        flat = values.reshape(-1)
        lines = -(-len(flat) // WIDTH)
        if len(flat) % WIDTH:
            flat = torch.nn.functional.pad(flat, (0, lines * WIDTH - len(flat)))
        signs, table = _signs(lines, str(flat.device)), flat.view(lines, WIDTH)
        if flat.device.type == "cpu":  # NumPy's product keeps float32 whatever torch is told about matrix products
            sums = signs.numpy() @ table.float().numpy()
        else:
            sums = (signs.double() @ table.double()).cpu().numpy()
        turn = _bits(self._blocks + 1, np.arange(SIGNS, dtype=np.uint64))
        self._sums += turn[:, None] * sums
        self._blocks += 1

    def values(self) -> np.ndarray:
        """The picture, float32 [256]."""
        found: np.ndarray = (self._sums / np.sqrt(SIGNS)).astype(np.float32).reshape(-1)
        return found


def _bits(salt: int, index: np.ndarray) -> np.ndarray:
    """Signs by index, float64 of the same shape."""
    salted = np.uint64((salt * 0xD1342543DE82EF95) % 2**64)
    signs: np.ndarray = np.where(mix(mix(index + np.uint64(1)) + salted) >> np.uint64(63), 1.0, -1.0)
    return signs


@lru_cache(maxsize=8)
def _signs(lines: int, device: str) -> Any:
    """The sign patterns of a block, float32 [8, lines]."""
    import torch

    index = np.arange(SIGNS * lines, dtype=np.uint64).reshape(lines, SIGNS).T
    return torch.from_numpy(_bits(0, index).astype(np.float32, order="C")).to(device)
