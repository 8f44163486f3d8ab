"""Findings and the ledger of a diagnosis' JSON value in the one form that views draw."""

from collections.abc import Mapping
from typing import Any


def causes(value: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The named causes.

    Args:
        value: the JSON value of a diagnosis; `explained` may be a share with an `interval` beside it, or a mapping of
            value, low and high.

    Returns:
        One mapping per cause: cause, rung, side, proof, parameters, share, low, high, nats, evidence, fix,
        alternatives, separate.

    >>> causes({"findings": [{"cause": "shift", "explained": 0.99, "interval": [0.9, 1.0]}]})[0]["low"]
    0.9
    """
    return [_cause(finding) for finding in value.get("findings") or ()]


def _cause(finding: Mapping[str, Any]) -> dict[str, Any]:
    """One named cause."""
    explained = finding.get("explained")
    low, high = finding.get("interval") or (None, None)
    if isinstance(explained, Mapping):
        explained, low, high = (explained.get(k) for k in ("value", "low", "high"))
    names = ("cause", "rung", "side", "proof", "nats", "evidence", "fix", "separate")
    rest = {"parameters": finding.get("parameters") or {}, "alternatives": finding.get("alternatives") or []}
    return {n: finding.get(n) for n in names} | rest | {"share": explained, "low": low, "high": high}


def ledger(value: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the gap is made of, nats per token; None where nothing was undone.

    Args:
        value: the JSON value of a diagnosis; `ledger` may be its rows, or a mapping with its total, and `residual` a
            number, or a gap.

    Returns:
        {"rows", "total", "overlap", "residual"}. Sizes of several causes do not add up (errors add in squares), so
        `overlap` is what makes rows and residual meet the total.

    >>> ledger({"ledger": [{"cause": "shift", "nats": 0.5}], "residual": 0.25})["total"]
    0.75
    """
    held = value.get("ledger")
    rows = (held.get("rows") if isinstance(held, Mapping) else held) or []
    rows = [row for row in rows if isinstance(row.get("nats"), int | float)]
    if not rows:
        return None
    left = value.get("residual")
    residual = left.get("mean_abs") if isinstance(left, Mapping) else left
    moved = sum(row["nats"] for row in rows)
    known = held.get("total") if isinstance(held, Mapping) else None
    total = known if isinstance(known, int | float) else moved + (residual or 0.0)
    overlap = None if residual is None else residual - (total - moved)
    return {"rows": rows, "total": total, "overlap": overlap, "residual": residual}
