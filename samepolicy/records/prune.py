"""Make a run folder smaller: every k-th step whole, and of the others the worst responses."""

import io
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from samepolicy.errors import InputError
from samepolicy.records.arrow import CODEC, write_table
from samepolicy.records.outliers import badness, distances, metric_of, needed
from samepolicy.records.parts import Part, parts
from samepolicy.records.places import Place
from samepolicy.records.publish import flush_folder, replace_with
from samepolicy.records.run import Run
from samepolicy.records.source import Piece, open_source
from samepolicy.records.tables import index, read_table


@dataclass(frozen=True, kw_only=True)
class Pruned:
    """What pruning a folder did, or would do.

    Attributes:
        every: steps divisible by it are whole.
        worst: responses kept of each other step.
        by: the metric they were chosen by.
        steps: training steps in the folder.
        whole_steps: those that keep every response.
        responses: responses that count.
        kept: those that stay.
        bytes_before: size of all parts.
        bytes_after: their size afterwards.
        rewritten: parts that hold fewer responses afterwards.
        removed: parts of which nothing is left.
        compression: how the columns are compressed.
        ratio: size of the columns that stay, divided by what they take without compression.
        done: whether the folder was changed.
    """

    every: int
    worst: int
    by: str
    steps: int
    whole_steps: int
    responses: int
    kept: int
    bytes_before: int
    bytes_after: int
    rewritten: int
    removed: int
    compression: str
    ratio: float
    done: bool

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"schema": 1, **asdict(self)}


def prune(
    path: str | os.PathLike[str], *, every: int, worst: int = 8, by: str = "logp_diff", write: bool = False
) -> Pruned:
    """Keep every k-th step of a run folder, and of the other steps the worst responses.

    Kept whole are the steps that `every` divides, the newest step, and responses without a step. Of any other step stay
    the responses with the largest mean distance, and all with a log-prob that is missing, infinite or above 0. Rows
    that do not count (see `read`) go. Pruning again with the same numbers changes nothing but what was the newest step.

    Parts that a training writes meanwhile are left as they are.

    Each part is written anew under a hidden name, flushed, read back, and put in the old one's place in one move. A
    process that is killed leaves every part either as it was or as it will be; pruning again finishes the work.

    Args:
        path: the folder, on this machine.
        every: k, 1 or more.
        worst: how many responses of each other step stay.
        by: the metric that says which are worst.
        write: change the folder; without it nothing is touched and the sizes are what they would be.

    Returns:
        What was, or would be, kept.

    Raises:
        InputError: numbers that make no sense, a metric without a value for each response, or a URL.
        MissingColumnError: the run lacks a column that the metric needs.
        CorruptFileError: a part cannot be read; it and those after it are as they were.
    """
    if every < 1 or worst < 0:
        raise InputError(f"every must be 1 or more and worst 0 or more, not {every} and {worst}.")
    place, metric = Place.of(path), metric_of(by)
    if place.local is None:
        raise InputError(f"{place} is not on this machine; copy the folder here to prune it.")
    listed = parts(place)  # before the folder is looked at, so that no part which comes meanwhile is touched
    source = open_source(place)
    rows = [_Rows.of(piece, by) for piece in source.pieces]
    steps = np.unique(np.concatenate([r.step for r in rows])).tolist()
    whole = _whole(steps, every)
    kept = _kept(rows, whole, worst)
    masks = _masks(place, listed, source.pieces, kept)
    before = sum(path.stat().st_size for path in masks)
    sizes = {path: _rewrite(path, mask, write=write) for path, mask in masks.items()}
    if write:
        flush_folder(place.local)
    stay = [s for s in sizes.values() if s is not None]
    return Pruned(
        every=every, worst=worst, by=metric.name, steps=len([s for s in steps if s >= 0]),
        whole_steps=len([s for s in whole if s >= 0]), responses=sum(len(r.step) for r in rows),
        kept=sum(int(k.sum()) for k in kept), bytes_before=before, bytes_after=sum(s.file for s in stay),
        rewritten=sum(m is not None and bool(m.any()) for m in masks.values()),
        removed=sum(s is None for s in sizes.values()),
        compression=CODEC, ratio=sum(s.compressed for s in stay) / max(1, sum(s.plain for s in stay)), done=write,
    )  # fmt: skip


@dataclass(frozen=True)
class _Rows:
    """Step and distance of the rows of a piece that count; step -1 where there is none."""

    step: np.ndarray
    far: np.ndarray

    @classmethod
    def of(cls, piece: Piece, by: str) -> "_Rows":
        """Read only what the metric needs."""
        metric = metric_of(by)
        place = piece.place
        held = index(place, ("step",))
        names = {*needed(metric), "step", "mask", "response_ids", "trainer_response_ids"} & {*held.names}
        run = read_table(place, names, piece.rows)
        found = distances(run, metric)
        far = np.where(found.bad_rows, np.inf, badness(found.responses, metric.ideal))
        return cls(run["step"] if "step" in run else np.full(len(run), -1), far)


@dataclass(frozen=True)
class _Size:
    """Bytes of a part's file, and of its columns with and without compression."""

    file: int
    compressed: int
    plain: int

    @classmethod
    def of(cls, file: Any, size: int) -> "_Size":
        """From the footer of a file of this size."""
        import pyarrow.parquet as pq

        meta = pq.read_metadata(file)
        groups = [meta.row_group(i) for i in range(meta.num_row_groups)]
        columns = [group.column(i) for group in groups for i in range(group.num_columns)]
        packed, plain = ("total_compressed_size", "total_uncompressed_size")
        return cls(size, *(sum(getattr(c, name) for c in columns) for name in (packed, plain)))


def _whole(steps: Sequence[int], every: int) -> set[int]:
    """The steps that are kept whole."""
    return {step for step in steps if step < 0 or step % every == 0 or step == steps[-1]}


def _kept(rows: Sequence[_Rows], whole: set[int], worst: int) -> list[np.ndarray]:
    """Of each piece the rows to keep, bool [rows]."""
    step, far = (np.concatenate([getattr(r, name) for r in rows]) for name in ("step", "far"))
    keep = np.isin(step, list(whole)) | np.isinf(far) & (far > 0)
    order = np.lexsort((np.arange(len(step)), -far, step))
    begins = np.searchsorted(step[order], step[order])
    keep[order[np.arange(len(order)) - begins < worst]] = True
    return np.split(keep, np.cumsum([len(r.step) for r in rows])[:-1])


def _masks(
    place: Place, listed: Sequence[Part], pieces: Sequence[Piece], kept: Sequence[np.ndarray]
) -> dict[Path, np.ndarray | None]:
    """For each part that was listed the rows of its file that stay; None where all do."""
    folder = place.local or Path()
    masks: dict[Path, np.ndarray | None] = {}
    held = {piece.place.text: (piece, keep) for piece, keep in zip(pieces, kept, strict=True)}
    for part in listed:
        at = place / part.name
        rows = index(at, ()).rows
        if at.text not in held:
            masks[folder / part.name] = np.zeros(rows, dtype=bool)
            continue
        piece, keep = held[at.text]
        mask = np.zeros(rows, dtype=bool)
        mask[np.flatnonzero(piece.rows) if piece.rows is not None else slice(None)] = keep
        masks[folder / part.name] = None if mask.all() else mask
    return masks


def _rewrite(path: Path, mask: np.ndarray | None, *, write: bool) -> _Size | None:
    """Put the rows that stay in the place of a part; None where none do."""
    if mask is None:
        return _Size.of(path, path.stat().st_size)
    if not mask.any():
        if write:
            path.unlink(missing_ok=True)
        return None
    run = read_table(Place.of(path), None, mask)
    if write:
        replace_with(path, lambda file: write_table(run, file), check=lambda hidden: _check(hidden, run))
        return _Size.of(path, path.stat().st_size)
    buffer = io.BytesIO()
    write_table(run, buffer)
    buffer.seek(0)
    return _Size.of(buffer, len(buffer.getvalue()))


def _check(hidden: Path, run: Run) -> None:
    """Refuse a new file that does not read back as what it should hold."""
    if read_table(Place.of(hidden)) != run:
        raise InputError(f"{hidden} does not read back as it was written, so the old file stays; check the disk.")
