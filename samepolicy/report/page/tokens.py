"""The tokens that a report keeps one by one: those of the worst responses, of ordinary ones, and around outliers."""

from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.report.packed import packed
from samepolicy.report.view import View

BUDGET = 65_536
"""Tokens that are kept one by one, unless told otherwise."""

OUTLIERS, AROUND = 500, 24
"""The tokens with the largest values that are listed, and how many neighbours on either side are kept with each."""

TOP, TOP_TOKENS = 5, 12_288
"""Most likely tokens that are kept of each side, and of how many tokens, those with the largest values first."""

NUMBERS = {"rollout_logp": "f4", "trainer_logp": "f4", "trainer_entropy": "f4", "advantage": "f4", "ref_logp": "f4"}
WHOLE = {"turn": "i4", "policy_version": "i4"}


def kept_tokens(view: View, budget: int = BUDGET) -> np.ndarray:
    """Which tokens to keep, bool [tokens].

    Half of the budget goes to the responses with the largest mean size, the worst first; a quarter to ordinary ones,
    evenly spread over all; the rest to the neighbours of the largest values. Everything, where it fits.

    Args:
        view: what is shown.
        budget: how many tokens to keep, about.
    """
    lengths = view.run.lengths
    if lengths.sum() <= budget:
        return np.ones(len(view.value), dtype=bool)
    keep = np.zeros(len(view.value), dtype=bool)
    order = np.argsort(-np.nan_to_num(view.mean(np.where(view.measured, view.size, np.nan)), nan=-1.0), kind="stable")
    spread = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), 4096)).astype(np.int64))
    step = max(1, int(lengths.sum() // max(budget // 4, 1)))
    for rows, share in ((order, budget // 2), (spread[step // 2 :: step], budget // 4)):
        fits = np.cumsum(lengths[rows]) <= share
        for row in rows[fits]:
            keep[view.offsets[row] : view.offsets[row + 1]] = True
    for token in view.worst(OUTLIERS):
        first, last = view.offsets[view.row[token]], view.offsets[view.row[token] + 1]
        keep[max(first, token - AROUND) : min(last, token + AROUND + 1)] = True
        if np.count_nonzero(keep) >= budget:
            break
    return keep


def tokens(view: View, keep: np.ndarray, floor_square: np.ndarray | None) -> dict[str, Any]:
    """The kept tokens, one after another, with where each stretch of them begins.

    Args:
        view: what is shown.
        keep: which tokens to keep, bool [tokens].
        floor_square: square of the pair's floor of each token, nats² [tokens]; None where it is not known.

    Returns:
        {"of", "kept", "stretches": rows, starts and lengths, "columns", "top"}.
    """
    at = np.flatnonzero(keep)
    jumps = np.flatnonzero((np.diff(at) != 1) | (np.diff(view.row[at]) != 0)) + 1
    first = np.concatenate([[0], jumps]) if len(at) else np.zeros(0, dtype=np.int64)
    columns = {"mask": packed(view.run.mask.values[at], "u1"), "value": packed(view.value[at])}
    if "response_ids" in view.run:
        columns["id"] = packed(view.run["response_ids"].values[at], "i4")
    for name, dtype in (NUMBERS | WHOLE).items():
        values = view.column(name)[at]
        if len(values) and not np.isnan(values).any() if dtype == "i4" else not np.isnan(values).all():
            columns[name] = packed(values, dtype)
    if floor_square is not None:
        columns["floor"] = packed(np.sqrt(floor_square[at]))
    return {
        "of": len(view.value),
        "kept": len(at),
        "stretches": {
            "row": packed(view.row[at[first]], "u4"),
            "start": packed(view.position[at[first]], "u4"),
            "first": packed(first, "u4"),
        },
        "columns": columns,
        "top": top(view, at),
    }


def top(view: View, at: np.ndarray) -> dict[str, Any] | None:
    """The most likely tokens of both sides at the kept tokens with the largest values; None where none are recorded.

    Args:
        view: what is shown.
        at: places of the kept tokens among all.
    """
    chosen = np.sort(np.argsort(-view.size[at], kind="stable")[:TOP_TOKENS])
    found: dict[str, Any] = {}
    for side in ("rollout", "trainer"):
        ids, logp = (view.run.columns.get(f"{side}_top_{what}") for what in ("ids", "logp"))
        if isinstance(ids, Ragged) and isinstance(logp, Ragged) and ids.values.ndim == 2:
            found[side] = {
                "ids": packed(ids.values[at[chosen], :TOP], "i4"),
                "logp": packed(logp.values[at[chosen], :TOP]),
            }
    return {"at": packed(chosen, "u4"), **found} if found else None


def outliers(view: View) -> dict[str, Any]:
    """The tokens with the largest values, largest first."""
    at = view.worst(OUTLIERS)
    return {
        "row": packed(view.row[at], "u4"),
        "position": packed(view.position[at], "u4"),
        "value": packed(view.value[at]),
    }


def ids_shown(view: View, keep: np.ndarray) -> np.ndarray:
    """Every token id that the kept tokens and their most likely ones name, int64."""
    parts = [view.run["response_ids"].values[keep]] if "response_ids" in view.run else []
    at = np.flatnonzero(keep)
    chosen = at[np.argsort(-view.size[at], kind="stable")[:TOP_TOKENS]]
    for side in ("rollout", "trainer"):
        column = view.run.columns.get(f"{side}_top_ids")
        if isinstance(column, Ragged) and column.values.ndim == 2:
            parts.append(column.values[chosen, :TOP].ravel())
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, dtype=np.int64)
