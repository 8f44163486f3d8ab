"""What was named with a model, kept in the run's `info`, so that a report of that run need not look again.

It counts for the very run that it was found in: other rows, columns, declarations or comparisons, or another version
of this package, may lead to other names.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from samepolicy.arrays import Ragged
from samepolicy.causes import Finding
from samepolicy.diagnose.ledger import Ledger, Row
from samepolicy.diagnose.naming import NOTHING, Named, Unchecked
from samepolicy.floor.gap import Gap
from samepolicy.records.columns import Packed
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS
from samepolicy.summary import json_number

KEY = "named"
"""Where it stands in a run's `info`."""

BESIDE = (KEY, "top")
"""What of a run's `info` no name rests on; neither do its wide columns, nor those that no schema knows."""


def keep(run: Run, named: Named) -> Run:
    """The run with what was named in it; without, where there was nothing to name."""
    info = {key: value for key, value in run.info.items() if key != KEY}
    if named == NOTHING:
        return replace(run, info=info)
    told = asdict(named)
    if named.ledger and named.ledger.residual:
        told["ledger"]["residual"] = {k: json_number(v) for k, v in asdict(named.ledger.residual).items()}
    told = json.loads(json.dumps(told))
    return replace(run, info={**info, KEY: {**told, "of": _fingerprint(run, told)}})


def kept(run: Run) -> Named | None:
    """What was named in this very run; None where nothing was, or the run is another one by now."""
    found = run.info.get(KEY)
    if not isinstance(found, Mapping):
        return None
    told = {key: value for key, value in found.items() if key != "of"}
    return _named(told) if found.get("of") == _fingerprint(run, told) else None


def outdated(run: Run) -> bool:
    """Whether the run keeps names that were found in another one."""
    return KEY in run.info and kept(run) is None


def _named(told: Mapping[str, Any]) -> Named:
    """The inverse of `asdict`."""
    return Named(
        findings=tuple(Finding(**_tuples(finding)) for finding in told["findings"]),
        ledger=told["ledger"] and _ledger(**told["ledger"]),
        unchecked=tuple(Unchecked(**cause) for cause in told["unchecked"]),
        tried=tuple(told["tried"]),
        closest=told["closest"],
    )


def _ledger(total: float, rows: list[dict[str, Any]], residual: dict[str, Any] | None) -> Ledger:
    """The same of a ledger; a number of its residual that JSON has not is null or text."""
    sizes = residual and {k: float("nan") if v is None else float(v) for k, v in residual.items()}
    counts = {k: int(sizes[k]) for k in ("tokens", "prompts")} if sizes else {}
    left = Gap(**{**sizes, **counts}) if sizes else None
    return Ledger(total=total, rows=tuple(Row(**_tuples(row)) for row in rows), residual=left)


def _tuples(told: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass whose lists are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}


def _fingerprint(run: Run, told: Mapping[str, Any]) -> str:
    """A fingerprint of everything that names rest on, and of the names themselves."""
    from samepolicy import __version__

    made = hashlib.blake2b(digest_size=16)
    for name in sorted(name for name in run.columns if name in COLUMNS and not COLUMNS[name].wide):
        made.update(name.encode() + _bytes(run[name]))
    info = {key: value for key, value in run.info.items() if key not in BESIDE}
    rest = [__version__, run.rollout.as_dict(), run.trainer.as_dict(), info, told]
    made.update(json.dumps(rest, sort_keys=True, default=str).encode())
    return made.hexdigest()


def _bytes(column: Packed) -> bytes:
    """What a column holds."""
    values = column.values if isinstance(column, Ragged) else column
    held = json.dumps(values.tolist()).encode() if values.dtype.kind == "O" else values.tobytes()
    return str(values.dtype).encode() + held + (column.offsets.tobytes() if isinstance(column, Ragged) else b"")
