"""What the two sides declare, one row a setting, with what differs marked."""

from collections.abc import Iterator, Mapping
from typing import Any

from samepolicy.records.run import Run

ORDER = ("framework", "engine", "version", "model", "weights", "tokenizer", "template", "dtype", "head_dtype")
FREE = frozenset({"engine", "version", "framework", "sampling.max_tokens", "sampling.seed"})
"""Settings that two honest sides may declare differently."""

LONGEST = 400
"""Characters of a value that are shown."""


def sides(run: Run) -> list[dict[str, Any]]:
    """Both declarations side by side.

    Args:
        run: the run.

    Returns:
        One {"name", "rollout", "trainer", "state"} per setting, those of the table's order first; `state` is "same",
        "differs" where both declare it, "free" where it differs and may, "alone" where only one side declares it.
    """
    both = [dict(_flat(getattr(run, side).as_dict())) for side in ("rollout", "trainer")]
    names = list(dict.fromkeys([n for n in ORDER if any(n in b for b in both)] + [n for b in both for n in b]))
    return [_row(name, *(b.get(name) for b in both)) for name in names]


def _row(name: str, rollout: str | None, trainer: str | None) -> dict[str, Any]:
    """One setting."""
    state = "same" if rollout == trainer else "alone" if None in (rollout, trainer) else "differs"
    if state == "differs" and (name in FREE or name.startswith("extra.")):
        state = "free"
    return {"name": name, "rollout": rollout, "trainer": trainer, "state": state}


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings by dotted names, as text."""
    for key, entry in value.items():
        name = f"{prefix}{key}"
        if isinstance(entry, Mapping):
            yield from _flat(entry, f"{name}.")
        else:
            text = str(entry)
            yield name, text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({len(text)} characters)"
