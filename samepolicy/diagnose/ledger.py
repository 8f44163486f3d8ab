"""The ledger: nats per token that each named cause moves, and what is left when all are undone."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from samepolicy.causes import Finding
from samepolicy.causes.base import SideWord
from samepolicy.floor.gap import Gap
from samepolicy.summary import json_number


@dataclass(frozen=True, kw_only=True)
class Row:
    """One cause.

    Attributes:
        cause: its name.
        side: whose it is.
        nats: how far it alone moves a token on average, nats.
        reopens: share of its side's gap that opens again without it; None where that does not apply.
        token: the token that it moves most, response and position; None where it moves none.
    """

    cause: str
    side: SideWord
    nats: float | None
    reopens: float | None
    token: tuple[int, int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        sizes = {"nats": self.nats, "reopens": self.reopens}
        numbers = {name: None if size is None else json_number(size) for name, size in sizes.items()}
        return asdict(self) | numbers | {"token": self.token and list(self.token)}


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """What the gap is made of, read on the prompts that nothing was fitted on.

    Attributes:
        total: token mean of abs d, nats.
        rows: the named causes, in ladder order.
        residual: the gap once all of them are undone; None where nothing was undone.
    """

    total: float
    rows: tuple[Row, ...]
    residual: Gap | None

    def as_dict(self) -> dict[str, Any]:
        """A JSON-ready mapping."""
        return {"total": json_number(self.total), "rows": [row.as_dict() for row in self.rows]}

    def __str__(self) -> str:
        """The rows in one line."""
        parts = [f"{row.cause} {row.nats:.3g}" for row in self.rows if row.nats is not None]
        left = f", {self.residual.mean_abs:.3g} left" if self.residual else ""
        return f"{self.total:.3g} nats per token: {', '.join(parts) or 'nothing named'}{left}"


def ledger(total: float, findings: Sequence[Finding], reopened: dict[str, float], residual: Gap | None) -> Ledger:
    """Put a ledger together."""
    rows = [
        Row(cause=f.cause, side=f.side, nats=f.nats, reopens=reopened.get(f.cause), token=f.token) for f in findings
    ]
    return Ledger(total=total, rows=tuple(rows), residual=residual)
