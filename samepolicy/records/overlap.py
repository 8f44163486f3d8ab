"""Rows that count once: of a step written again after a resume the last writing, of overlapping shards one copy.

A response is known by step and sample, and by rank, group and attempt where it has them. Two rows of different parts
that share these and hold the same tokens are one response that two writers recorded.
"""

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeAlias, TypeVar

import numpy as np

from samepolicy.errors import CorruptFileError
from samepolicy.records.attempts import ATTEMPT
from samepolicy.records.places import Place
from samepolicy.records.tables import Index, index, read_table

LOG = logging.getLogger("samepolicy.records")
CONTENT = ("response_ids", "rollout_logp", "trainer_logp", "prob_diff", "text")
"""What two copies of a response have to share."""
IDENTITY = ("step", "sample", "rank", "group", ATTEMPT)

Bad: TypeAlias = Callable[[int, CorruptFileError], object]
T = TypeVar("T")


def last_attempts(indices: Sequence[Index]) -> list[np.ndarray | None]:
    """Of each part the rows that no later attempt wrote again, bool [rows]; None where all count."""
    last: dict[int, int] = {}
    for found in indices:
        for step, attempt in _attempts(found):
            last[step] = max(attempt, last.get(step, attempt))
    kept: list[np.ndarray | None] = []
    for found in indices:
        old = [pair for pair in _attempts(found) if pair[1] < last[pair[0]]]
        rows = np.ones(found.rows, dtype=bool)
        for step, attempt in old:
            rows &= (found.small["step"] != step) | (found.small[ATTEMPT] != attempt)
        kept.append(rows if old else None)
    return kept


def _attempts(found: Index) -> list[tuple[int, int]]:
    """The different pairs of step and attempt that a part holds."""
    whole = found.rows and {"step", ATTEMPT} <= found.small.keys() and found.small[ATTEMPT].dtype.kind == "i"
    if not whole:
        return []
    pairs = np.unique(np.stack([found.small["step"], found.small[ATTEMPT]]), axis=1)
    return [(int(step), int(attempt)) for step, attempt in pairs.T]


def second_copies(places: Sequence[Place], indices: Sequence[Index], bad: Bad) -> dict[int, np.ndarray]:
    """Rows that an earlier part already holds, by the number of the part, bool [rows]; only parts that have some.

    Args:
        places: the parts.
        indices: what is known of each.
        bad: called with the number and the error of each part that turns out to be unreadable; all its rows are left
            out, unless it raises.
    """
    lost: dict[int, np.ndarray] = {}

    def tried(i: int, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except CorruptFileError as error:
            bad(i, error)
            lost[i] = np.ones(indices[i].rows, dtype=bool)
            return None

    looked = {i: tried(i, partial(index, places[i], IDENTITY)) for i in _sharing(indices)}
    known = {i: found for i, found in looked.items() if found is not None}
    if len(known) < 2:
        return lost
    part = np.concatenate([np.full(found.rows, i) for i, found in known.items()])
    row = np.concatenate([np.arange(found.rows) for found in known.values()])
    codes = _codes(known)
    _, inverse, counts = np.unique(codes, return_inverse=True, return_counts=True)
    suspects = np.flatnonzero(counts[inverse] > 1)
    first: dict[tuple[int, bytes], int] = {}
    copies: dict[int, np.ndarray] = {}
    for i in dict.fromkeys(part[suspects].tolist()):
        mine = suspects[part[suspects] == i]
        rows = np.zeros(known[i].rows, dtype=bool)
        rows[row[mine]] = True
        digests = tried(i, partial(_digests, places[i], rows))
        for at, digest in zip(mine.tolist(), digests, strict=True) if digests is not None else ():
            holder = first.setdefault((int(codes[at]), digest), i)
            if holder != i:
                copies.setdefault(i, np.zeros(known[i].rows, dtype=bool))[row[at]] = True
    _say(places, copies)
    return {**copies, **lost}


def _sharing(indices: Sequence[Index]) -> list[int]:
    """Numbers of the parts that may hold a response which another part holds, too, as far as footers tell."""
    by_step: dict[tuple[int, int | None], list[int]] = {}
    loose = any("rank" in found.names and _rank(found) is None for found in indices)
    for i, found in enumerate(indices):
        if "sample" in found.names and "step" in found.small:
            for step in np.unique(found.small["step"]).tolist():
                by_step.setdefault((step, None if loose else _rank(found)), []).append(i)
    return sorted({i for held in by_step.values() if len(held) > 1 for i in _touching(held, indices)})


def _rank(found: Index) -> int | None:
    """The one rank that wrote a part; None where it does not say, or several did."""
    least, largest = found.ends.get("rank", (0, 1))
    return least if least == largest else None


def _touching(held: Sequence[int], indices: Sequence[Index]) -> Iterator[int]:
    """Those of some parts whose range of sample numbers meets that of another."""
    unknown = (-(2**63), 2**63 - 1)
    ranges = sorted((*indices[i].ends.get("sample", unknown), i) for i in held)
    reach, before = unknown[0], -1
    for least, largest, i in ranges:
        if before >= 0 and least <= reach:
            yield from (before, i)
        if before < 0 or largest > reach:
            reach, before = largest, i


def _codes(known: Mapping[int, Index]) -> np.ndarray:
    """A number for each row of these parts, equal where everything that identifies a response is equal."""
    codes = np.zeros(sum(found.rows for found in known.values()), dtype=np.int64)
    for name in IDENTITY:
        columns = [found.small.get(name, np.full(found.rows, -1)) for found in known.values()]
        text = any(column.dtype.kind == "O" for column in columns)
        values = np.concatenate([column.astype(str) if text else column for column in columns])
        _, code = np.unique(values, return_inverse=True)
        _, codes = np.unique(codes * (int(code.max(initial=0)) + 1) + code, return_inverse=True)
    return codes


def _digests(place: Place, rows: np.ndarray) -> list[bytes]:
    """A fingerprint of what each of these rows holds: its tokens, or everything where it has none."""
    held = set(index(place, ()).names)
    run = read_table(place, {*CONTENT, "mask", "trainer_response_ids"} if held & {*CONTENT} else None, rows)
    columns = [run[name] for name in sorted(run.columns)]
    return [_digest([column[i] for column in columns]) for i in range(int(rows.sum()))]


def _digest(entries: Sequence[object]) -> bytes:
    """A fingerprint of one row."""
    made = hashlib.blake2b(digest_size=16)
    for entry in entries:
        data = entry.tobytes() if isinstance(entry, np.ndarray) else str(entry).encode()
        made.update(len(data).to_bytes(8, "little") + data)
    return made.digest()


def _say(places: Sequence[Place], copies: Mapping[int, np.ndarray]) -> None:
    """Say that parts overlap."""
    if copies:
        total, example = sum(int(rows.sum()) for rows in copies.values()), places[min(copies)]
        LOG.warning(
            "%d responses stand in more than one part (%s holds some again); each is counted once.", total, example
        )
