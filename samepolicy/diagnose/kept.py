"""What was named with a model, kept in the run's `info`, so that a report of that run need not look again.

It counts for the very run that it was found in: other rows, columns, declarations or comparisons, or another version
of this package, may lead to other names.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from samepolicy.arrays import Ragged
from samepolicy.causes import Finding
from samepolicy.diagnose.ledger import Ledger, Row
from samepolicy.diagnose.naming import Named, Unchecked
from samepolicy.floor.gap import Gap
from samepolicy.records.columns import Packed
from samepolicy.records.merge import NAMED
from samepolicy.records.run import Run
from samepolicy.records.schema import COLUMNS
from samepolicy.summary import json_number

BESIDE = (NAMED, "top", "pieces")
"""What of a run's `info` no name rests on; neither do its wide columns, nor those that no schema knows."""


def keep(run: Run, named: Named) -> Run:
    """The run with what was named in it; without, where JSON cannot hold its `info`, which no file could, either."""
    info = {key: value for key, value in run.info.items() if key != NAMED}
    told = _plain(asdict(named))
    of = _fingerprint(run, told)
    return replace(run, info={**info, NAMED: {**told, "of": of}} if of else info)


def kept(run: Run) -> Named | None:
    """What was named in this very run; None where nothing was looked for, or the run is another one by now."""
    found = run.info.get(NAMED)
    if not isinstance(found, Mapping):
        return None
    told = {key: value for key, value in found.items() if key != "of"}
    of = _fingerprint(run, told)
    return _named(told) if of and of == found.get("of") else None


def _plain(value: Any) -> Any:
    """A value as JSON has it, as far as it is made of mappings, sequences, numbers and text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return json_number(value) if isinstance(value, float) else value


def _named(told: Mapping[str, Any]) -> Named:
    """The inverse of `_plain(asdict(named))`."""
    return Named(
        findings=tuple(Finding(**_tuples(finding)) for finding in told["findings"]),
        ledger=told["ledger"] and _ledger(**told["ledger"]),
        unchecked=tuple(Unchecked(**cause) for cause in told["unchecked"]),
        tried=tuple(told["tried"]),
        closest=told["closest"],
    )


def _ledger(total: Any, rows: list[dict[str, Any]], residual: dict[str, Any] | None) -> Ledger:
    """The same of a ledger; numbers that JSON has not are null or text."""
    sizes = residual and {k: v if k in ("tokens", "prompts") else _number(v) for k, v in residual.items()}
    left = Gap(**sizes) if sizes else None
    return Ledger(total=_number(total), rows=tuple(Row(**_tuples(row)) for row in rows), residual=left)


def _number(told: Any) -> float:
    """The inverse of `json_number`."""
    return float("nan") if told is None else float(told)


def _tuples(told: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a dataclass whose lists are tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in told.items()}


def _fingerprint(run: Run, told: Mapping[str, Any]) -> str:
    """A fingerprint of everything that names rest on, and of the names themselves; empty where JSON cannot hold it."""
    from samepolicy import __version__

    info = {key: value for key, value in run.info.items() if key not in BESIDE}
    try:  # twice, since keys become text on the way into a file, and are put in order then
        rest = json.loads(json.dumps([__version__, run.rollout.as_dict(), run.trainer.as_dict(), info, told]))
    except (TypeError, ValueError, RecursionError):
        return ""
    made = hashlib.blake2b(json.dumps(rest, sort_keys=True).encode(), digest_size=16)
    for name in sorted(name for name in run.columns if name in COLUMNS and not COLUMNS[name].wide):
        made.update(name.encode() + _bytes(run[name]))
    return made.hexdigest()


def _bytes(column: Packed) -> bytes:
    """What a column holds, to the seventh digit, in whatever dtype."""
    values = column.values if isinstance(column, Ragged) else column
    kind = {"f": np.float32, "i": np.int64, "u": np.int64}.get(values.dtype.kind, values.dtype)
    if values.dtype.kind == "O":
        held = json.dumps(values.tolist(), default=str).encode()
    else:
        with np.errstate(over="ignore"):
            held = values.astype(kind).tobytes()
    return held + (column.offsets.tobytes() if isinstance(column, Ragged) else b"")
