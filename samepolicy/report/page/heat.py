"""The batch as a picture: one byte for each token, or for each bin of tokens where there are too many."""

from math import asinh
from typing import Any

import numpy as np

from samepolicy.report.packed import packed
from samepolicy.report.view import View

MOST = 1_310_720
"""Cells of the whole batch that are kept one by one; beyond it, neighbours share a cell."""

WIDEST = 4096
"""Positions that are kept one by one."""

SCALE, STEPS = 0.01, 126
"""Values are kept even in asinh(value / 0.01), in 126 steps either way."""

NOTHING, MASKED, BAD = -128, -127, 127
"""Marks in place of a value: no token here, a token under mask 0, a value that is not finite."""

SAMPLES, POSITIONS = 32, 64
"""The first cells, which are kept as they are."""


def heat(view: View) -> dict[str, Any]:
    """Sample × position.

    Args:
        view: what is shown.

    Returns:
        The first 32 × 64 values as float32; the whole batch as int8 [rows, columns], q = 126 · asinh(x / 0.01) /
        asinh(largest / 0.01), where a cell holds the value of the largest size among its tokens.
    """
    count, longest = len(view.run), int(view.run.lengths.max(initial=0))
    wide = max(1, -(-longest // WIDEST))
    columns = max(1, -(-longest // wide))
    tall = max(1, -(-count * columns // MOST))
    largest = float(view.size.max(initial=0.0))
    grid = _grid(view, (max(1, -(-count // tall)), columns), (tall, wide), largest)
    return {
        "rows": count,
        "positions": longest,
        "tall": tall,
        "wide": wide,
        "largest": largest,
        "scale": SCALE,
        "steps": STEPS,
        "marks": {"nothing": NOTHING, "masked": MASKED, "bad": BAD},
        "whole": packed(grid, "i1"),
        "first": packed(first_cells(view, SAMPLES, POSITIONS)),
    }


def first_cells(view: View, samples: int, positions: int) -> np.ndarray:
    """The values of the first samples and positions, float64 [samples, positions]; NaN where there is none."""
    shape = (min(samples, len(view.run)), min(positions, int(view.run.lengths.max(initial=0))))
    found = np.full(shape, np.nan)
    inside = (view.row < shape[0]) & (view.position < shape[1])
    found[view.row[inside], view.position[inside]] = view.value[inside]
    return found


def _grid(view: View, shape: tuple[int, int], per: tuple[int, int], largest: float) -> np.ndarray:
    """The whole batch, int8 [rows, columns]; a bad token shows wherever it is, and a masked one only among its kind."""
    cell = view.row // per[0] * shape[1] + view.position // per[1]
    grid = np.full(shape[0] * shape[1], NOTHING, dtype=np.int8)
    masked = ~view.run.mask.values
    grid[cell[masked]] = MASKED
    order = np.flatnonzero(view.measured)
    if per != (1, 1):
        order = order[np.argsort(view.size[order], kind="stable")]  # the largest is written last
    top = asinh(largest / SCALE) or 1.0
    grid[cell[order]] = np.rint(STEPS * np.arcsinh(view.value[order] / SCALE) / top).astype(np.int8)
    if view.name:
        grid[cell[~masked & ~view.measured]] = BAD
    return grid.reshape(shape)
