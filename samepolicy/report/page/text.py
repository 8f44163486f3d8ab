"""The words of a run: prompts, responses, and what the shown ids stand for."""

from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.report.page.tokens import ids_shown
from samepolicy.report.pieces import Pieces, spell
from samepolicy.report.view import View

LONGEST, ALL = 2_000, 400_000
"""Characters of one text, and of all texts together, that are kept."""


def words(view: View, keep: np.ndarray, pieces: Pieces) -> dict[str, Any]:
    """What the kept tokens say.

    Args:
        view: what is shown.
        keep: which tokens are kept, bool [tokens].
        pieces: bytes by id; empty where no tokenizer is at hand.

    Returns:
        {"pieces": text by id, "prompts" and "texts": by number of the response, of those with kept tokens}.
    """
    rows = np.unique(view.row[keep]).tolist()
    return {
        "pieces": spell(ids_shown(view, keep).tolist(), pieces),
        "prompts": dict(_texts(view, rows, "prompt_text", "prompt_ids", pieces)),
        "texts": dict(_texts(view, rows, "text", "", {})),
    }


def _texts(view: View, rows: list[int], name: str, ids: str, pieces: Pieces) -> Any:
    """Texts by number of the response, each cut, until there is no room for more."""
    left = ALL
    for row in rows:
        text = _text(view, row, name, ids, pieces)
        if text and left > 0:
            cut = text[:LONGEST]
            left -= len(cut)
            yield str(row), cut if cut == text else {"text": cut, "length": len(text)}


def _text(view: View, row: int, name: str, ids: str, pieces: Pieces) -> str:
    """One text: as it is recorded, or spelled from its ids."""
    if name in view.run and not isinstance(view.run[name], Ragged):
        return str(view.run[name][row] or "")
    if ids and ids in view.run and pieces:
        return b"".join(pieces.get(i, b"") for i in view.run[ids][row].tolist()).decode("utf-8", "replace")
    return ""
