"""From a place in the layer map to a token of the run."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from samepolicy.report.plots.layers import bounds
from samepolicy.report.view import View


def worst_tokens(view: View, layers: Mapping[str, Any] | None) -> list[list[int] | None]:
    """For each column of the layer map the token with the largest difference at those positions, [response, position].

    Args:
        view: the run's tokens; where it has `prompt_ids`, their length comes before a token's position.
        layers: what was seen of the layers; None where that was not looked at.

    Returns:
        One entry a column; None where no token of the run lies there.
    """
    if layers is None:
        return []
    before = view.run["prompt_ids"].lengths if "prompt_ids" in view.run else np.zeros(len(view.run), dtype=np.int64)
    place, edges = view.position + before[view.row], bounds(layers)
    found: list[list[int] | None] = []
    for low, high in pairwise(edges):
        inside = np.flatnonzero((place >= low) & (place < high) & view.measured)
        worst = inside[np.argmax(view.size[inside])] if len(inside) else None
        found.append(None if worst is None else [int(view.row[worst]), int(view.position[worst])])
    return found
