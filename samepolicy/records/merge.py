"""What several runs become when they are put one after another: columns, sides and info."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from samepolicy.arrays import Ragged, offsets_of
from samepolicy.errors import InputError
from samepolicy.records import lineup
from samepolicy.records.columns import Packed
from samepolicy.records.side import Side

NAMED = "named"
"""The info entry with causes that were named in one very run; of several runs it is empty."""

_SAME_AS = {"trainer_response_ids": "response_ids", "trainer_prompt_ids": "prompt_ids"}
"""Trainer ids that a run leaves out are the rollout's."""


def columns(parts: Sequence[Mapping[str, Packed]]) -> dict[str, Packed]:
    """Concatenate the columns of several runs.

    Raises:
        InputError: a column that some runs lack and for which no value means "missing".
    """
    models = {name: column for part in parts for name, column in part.items()}
    return {
        name: _joined(name, [part[name] if name in part else _missing(name, model, part) for part in parts])
        for name, model in models.items()
    }


class Declared(Protocol):
    """Anything with two sides, as a run has them."""

    @property
    def rollout(self) -> Side:
        """What the rollout side declares."""
        ...

    @property
    def trainer(self) -> Side:
        """What the trainer side declares."""
        ...


def check_sides(runs: Sequence[Declared]) -> None:
    """Refuse runs whose sides declare different things; the sampler's seed changes no log-prob, and may differ.

    Raises:
        InputError: names the side, the field and both values.
    """
    for run in runs[1:]:
        for name in ("rollout", "trainer"):
            mine, other = _told(getattr(runs[0], name)), _told(getattr(run, name))
            differ = [key for key in sorted({*mine, *other}) if mine.get(key) != other.get(key)]
            if differ:
                key = differ[0]
                raise InputError(
                    f"The {name} side declares {key}={other.get(key)!r} here but {key}={mine.get(key)!r} before; "
                    "runs of different sides do not mix, so keep them in folders of their own."
                )


def _told(side: Side) -> dict[str, Any]:
    """What a side declares, without the sampler's seed."""
    told = side.as_dict()
    told.get("sampling", {}).pop("seed", None)
    return told


def infos(parts: Sequence[tuple[Mapping[str, Any], int]]) -> dict[str, Any]:
    """The info entries that all runs agree on; coverage counts add up, and that there were other names is not lost.

    Args:
        parts: info and number of valid tokens of each run; one without coverage has all of its tokens on both sides.
    """
    first = parts[0][0]
    agreed = {k: v for k, v in first.items() if k != "coverage" and all(k in p and p[k] == v for p, _ in parts)}
    if NAMED not in agreed and any(NAMED in info for info, _ in parts):
        agreed[NAMED] = {}
    if not any("coverage" in info for info, _ in parts):
        return agreed
    keys = ("aligned", "rollout_tokens", "trainer_tokens")
    counts = [info.get("coverage", dict.fromkeys(keys, tokens)) for info, tokens in parts]
    return {**agreed, "coverage": {key: sum(count[key] for count in counts) for key in keys}}


def same_columns(mine: Mapping[str, Packed], other: Mapping[str, Packed]) -> bool:
    """Whether both hold the same columns with the same values and dtypes; NaN equals NaN."""
    return mine.keys() == other.keys() and all(_same(column, other[name]) for name, column in mine.items())


def _same(a: Packed, b: Packed) -> bool:
    """Whether two columns are equal."""
    if isinstance(a, Ragged) or isinstance(b, Ragged):
        both = isinstance(a, Ragged) and isinstance(b, Ragged) and np.array_equal(a.offsets, b.offsets)
        return both and _same(a.values, b.values)  # type: ignore[union-attr]
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")


def _missing(name: str, model: Packed, part: Mapping[str, Packed]) -> Packed:
    """A column as it stands in a run that does not have it."""
    if _SAME_AS.get(name, "") in part:
        return part[_SAME_AS[name]]
    kind, values = lineup.kind_of(name, model), model.values if isinstance(model, Ragged) else model
    fills = {"f": np.nan, "O": None, **({"b": True} if name == "mask" else {})}
    if values.dtype.kind not in fills or kind == "own length":
        raise InputError(
            f"Some runs have column {name} and some do not, and no value of it means missing; "
            "give it to all of them or drop it with without()."
        )
    offsets = lineup.offsets(part, kind)
    size = int(offsets[-1]) if isinstance(model, Ragged) else len(offsets) - 1
    filled = np.full((size, *values.shape[1:]), fills[values.dtype.kind], dtype=values.dtype)
    return Ragged(filled, offsets) if isinstance(model, Ragged) else filled


def _joined(name: str, parts: Sequence[Packed]) -> Packed:
    """Columns of one name, one after another."""
    ragged = [p for p in parts if isinstance(p, Ragged)]
    arrays = [p.values if isinstance(p, Ragged) else p for p in parts]
    filled = [a for a in arrays if len(a)] or arrays[:1]
    text = {a.dtype.kind == "O" for a in filled}
    if len(ragged) not in (0, len(parts)) or len({a.shape[1:] for a in filled}) > 1 or len(text) > 1:
        raise InputError(f"Column {name} has one form in one run and another in the next; make them alike first.")
    values = np.concatenate(filled)
    return Ragged(values, offsets_of(np.concatenate([p.lengths for p in ragged]))) if ragged else values
