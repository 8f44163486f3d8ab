"""Pictures as arrays of pixels, for loggers: a heat map of single tokens, and bars. Needs Pillow, and no browser."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Num, UInt8

from samepolicy.errors import MissingDependencyError, ShapeError

LIGHT, DARK = np.array([237, 243, 250]), np.array([8, 48, 107])
"""Colours of the smallest and the largest value."""
NONE, INK, PAPER = np.array([205, 205, 205]), (40, 40, 40), (255, 255, 255)
CELL, MARGIN, ROWS, COLUMNS = 14, 34, 32, 64
"""Pixels of a cell and of the margins; rows and columns that are drawn, at most."""


def heat_map(
    values: Float[np.ndarray, "rows columns"], mask: Bool[np.ndarray, "*rows_and_columns"], *, title: str
) -> UInt8[np.ndarray, "height width 3"]:
    """One cell per token, the darker the larger; grey where there is no token, black where the value is no number.

    Args:
        values: what is shown, [rows, columns]; the first 32 rows and 64 columns are drawn.
        mask: where there is a token, same shape.
        title: one line above.

    Returns:
        RGB pixels.

    Raises:
        ShapeError: the shapes differ.
        MissingDependencyError: Pillow is not installed.
    """
    if values.shape != mask.shape or values.ndim != 2:
        raise ShapeError(f"A heat map needs a value and a mask per cell, not {values.shape} and {mask.shape}.")
    values, mask = values[:ROWS, :COLUMNS], mask[:ROWS, :COLUMNS]
    grown = cells(values, mask).repeat(CELL, 0).repeat(CELL, 1)
    grown[::CELL], grown[:, ::CELL] = 255, 255  # a thin line between cells
    top = np.max(values, where=mask & np.isfinite(values), initial=0.0)
    return _framed(grown, title, f"darkest {top:.3g}; columns: positions; rows: samples")


def cells(
    values: Float[np.ndarray, "rows columns"], mask: Bool[np.ndarray, "rows columns"]
) -> UInt8[np.ndarray, "rows columns 3"]:
    """The colour of each cell of a heat map.

    Args:
        values: what is shown, 0 or more, [rows, columns].
        mask: where there is a token, same shape.

    Returns:
        RGB, from light at 0 to dark at the largest value; grey where the mask is 0, black where a value is no number.

    >>> cells(np.array([[0.0, 0.2, np.nan]]), np.array([[True, True, True]]))[0].tolist()
    [[237, 243, 250], [8, 48, 107], [0, 0, 0]]
    """
    finite = mask & np.isfinite(values)
    top = np.max(values, where=finite, initial=0.0)
    share = np.where(finite, values, 0.0) / top if top > 0 else np.zeros(values.shape)
    colours = LIGHT + share[..., None] * (DARK - LIGHT)
    colours = np.where(mask[..., None], np.where(finite[..., None], colours, 0.0), NONE)
    return colours.round().astype(np.uint8)


def bars(
    counts: Num[np.ndarray, " bins"], edges: Float[np.ndarray, " edges"], *, title: str
) -> UInt8[np.ndarray, "height width 3"]:
    """A histogram whose bars grow with the root of their counts, so that rare values are seen.

    Args:
        counts: how many values fell into each bin.
        edges: where each bin begins and the last ends.
        title: one line above.

    Returns:
        RGB pixels.

    Raises:
        ShapeError: there is not one edge more than bins.
        MissingDependencyError: Pillow is not installed.
    """
    if len(edges) != len(counts) + 1:
        raise ShapeError(f"{len(counts)} bins have {len(counts) + 1} edges, not {len(edges)}.")
    height, width = 140, 6
    roots = np.sqrt(np.asarray(counts, dtype=np.float64))
    tall = (roots / max(roots.max(initial=0.0), 1e-9) * height).round().astype(int)
    filled = np.arange(height, 0, -1)[:, None] <= tall[None, :].repeat(width, 1)
    filled[:, ::width] = False
    pixels = np.where(filled[..., None], DARK, PAPER).astype(np.uint8)
    return _framed(pixels, title, f"{edges[0]:.3g} to {edges[-1]:.3g}; largest bin {int(np.max(counts, initial=0))}")


def _framed(pixels: UInt8[np.ndarray, "h w 3"], above: str, below: str) -> UInt8[np.ndarray, "height width 3"]:
    """Pixels on paper, with a line of text above and below."""
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise MissingDependencyError("Pictures need Pillow, which is not installed; run pip install pillow.") from error
    font: Any = ImageFont.load_default(11)
    height, width = pixels.shape[:2]
    sheet = Image.new("RGB", (max(width + 2 * MARGIN, 300), height + 2 * MARGIN), PAPER)
    sheet.paste(Image.fromarray(pixels), (MARGIN, MARGIN))
    draw = ImageDraw.Draw(sheet)
    for text, y in ((above, 10), (below, MARGIN + height + 10)):
        draw.text((8, y), text, fill=INK, font=font)
    return np.asarray(sheet)
