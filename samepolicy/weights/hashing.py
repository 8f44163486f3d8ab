"""Hashes of a matrix that know about rows and columns, so that a transposed or permuted copy is recognised.

With b the bits of each value, r odd multipliers by index, and all arithmetic modulo 2^64:

    row hash      h_i = Σ_j b_ij r_j           column hash   c_j = Σ_i b_ij r_i
    hash          Σ_i mix(h_i) r_i             of the transposed matrix: Σ_j mix(c_j) r_j
    row set       Σ_i mix(h_i)                 column set: Σ_j mix(c_j)

A set keeps its value when rows (columns) change places. Where only equality matters, a `Digest` is several times as
fast: the hash of the values' bits laid out in lines of 1024 pairs. The sums run on the tensor's own device; only one
number per row, column or line comes to the host. They guard against accidents, not against someone who wants a
collision.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from samepolicy.arrays import Array

LINE = 1024
"""Numbers of eight bytes in a line of a digest."""


class Hashes(NamedTuple):
    """The hashes of one matrix, unsigned 64-bit numbers.

    Attributes:
        whole: of the matrix as it is.
        turned: of its transpose.
        rows: of its rows in any order.
        columns: of its columns in any order.
    """

    whole: int
    turned: int
    rows: int
    columns: int


def mix(x: np.ndarray) -> np.ndarray:
    """Scramble 64-bit numbers one by one (the finaliser of splitmix64).

    Args:
        x: uint64, any shape.

    Returns:
        uint64 of the same shape; different inputs give different outputs.

    >>> mix(np.array([0, 1], dtype=np.uint64))
    array([                   0,  6238072747940578789], dtype=uint64)
    """
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = x ^ (x >> np.uint64(31))
    return mixed


@lru_cache(maxsize=64)
def multipliers(count: int) -> np.ndarray:
    """Odd multipliers by index, uint64 [count]; those of a longer list begin with those of a shorter one."""
    steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return mix(steps) | np.uint64(1)


class Digest:
    """Takes the values of one tensor in order, a block at a time; equal shapes must be cut into equal blocks."""

    def __init__(self) -> None:
        """Start with an empty tensor."""
        self._lines: list[np.ndarray] = []

    def add(self, values: Array) -> None:
        """Take the next values.

        Args:
            values: numbers of four bytes (float32) or eight (int64, float64), contiguous, without -0.
        """
        import torch

        flat = values.reshape(-1)
        lines = -(-flat.numel() * flat.element_size() // (8 * LINE))
        missing = lines * 8 * LINE // flat.element_size() - flat.numel()
        whole = (torch.nn.functional.pad(flat, (0, missing)) if missing else flat).view(torch.int64).view(lines, LINE)
        self._lines.append(_product(whole, _on(LINE, str(flat.device))).cpu().numpy().view(np.uint64))

    def value(self) -> int:
        """The hash, an unsigned 64-bit number, after the last block."""
        lines = np.concatenate([*self._lines, np.zeros(0, np.uint64)])
        return int((mix(lines) * multipliers(len(lines))).sum())


class Hasher:
    """Takes the rows of one matrix, a block at a time.

    Args:
        rows: rows of the matrix.
        columns: columns of the matrix.
        device: the device that its blocks are on.
    """

    def __init__(self, rows: int, columns: int, device: Any) -> None:
        import torch

        self.columns = columns
        self._multipliers = _on(max(rows, columns), str(device))
        self._sums = torch.zeros(columns, dtype=torch.int64, device=device)
        self._of_rows: list[np.ndarray] = []
        self._done = 0

    def add(self, bits: Array) -> None:
        """Take the next rows.

        Args:
            bits: int64 [rows, columns].
        """
        own = self._multipliers[self._done : self._done + len(bits)]
        self._of_rows.append(_product(bits, self._multipliers[: self.columns]).cpu().numpy().view(np.uint64))
        self._sums += _product(bits.T, own)
        self._done += len(bits)

    def hashes(self) -> Hashes:
        """The hashes, after the last block."""
        of_rows = mix(np.concatenate([*self._of_rows, np.zeros(0, np.uint64)]))
        of_columns = mix(self._sums.cpu().numpy().view(np.uint64))
        return Hashes(
            int((of_rows * multipliers(len(of_rows))).sum()),
            int((of_columns * multipliers(len(of_columns))).sum()),
            int(of_rows.sum()),
            int(of_columns.sum()),
        )


@lru_cache(maxsize=64)
def _on(count: int, device: str) -> Any:
    """Multipliers on a device, int64 [count]."""
    import torch

    return torch.from_numpy(multipliers(count).view(np.int64)).to(device)


def _product(matrix: Array, vector: Array) -> Array:
    """Matrix times vector modulo 2^64; an accelerator has no integer product of its own."""
    return matrix @ vector if matrix.device.type == "cpu" else (matrix * vector).sum(-1)
