"""One Summary over all ranks of a training job: exact, in two small collectives.

Every rank calls `all_reduce` with its own Summary, whatever it holds: other metrics than its neighbours, no tokens, or
no rollout log-probs. What a rank lacks adds nothing, and every rank gets the same result. Counts, extremes, histogram
bins and the tail's largest weights merge exactly, sums to float64 rounding: the states travel as bytes, so a device
without float64 loses no digit.
"""

import zlib
from collections.abc import Iterator
from dataclasses import astuple, fields
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from samepolicy.arrays import Ragged, offsets_of, to_numpy
from samepolicy.blocks import Counts
from samepolicy.errors import InputError, ShapeError
from samepolicy.metrics import all_metrics
from samepolicy.stats import Statistic
from samepolicy.summary import MEASURED, Summary

_COUNTS = tuple(f.name for f in fields(Counts))


class _Slot(NamedTuple):
    """Where the state of a metric's statistic lies in a packed summary."""

    metric: str
    statistic: type[Statistic]
    begin: int
    end: int
    nothing: np.ndarray


def all_reduce(summary: Summary, *, group: Any = None, counted: bool = True) -> Summary:
    """Merge the summaries of all ranks of a process group; a collective that every rank of it has to call.

    Micro-batches merge before it with `+`. A rank whose tokens are copies of another's (tensor parallel ranks, all but
    one context parallel rank after `join`) says `counted=False`: it takes part, adds nothing, and gets the result.

    Args:
        summary: this rank's own; `Summary.empty()` where it has no data.
        group: a torch.distributed process group; None is the default one.
        counted: whether this rank's tokens are to be counted.

    Returns:
        The Summary of all counted ranks, the same on every rank. A metric that only some ranks measured covers their
        tokens, as its count says.

    Raises:
        InputError: torch.distributed is not initialised, or the ranks run versions with different metrics.
    """
    _initialised()
    rows = _gather(_pack(summary if counted else Summary.empty()), group)
    merged = _broadcast(_merge(rows) if rows is not None else np.empty(_size()), group)
    if np.isnan(merged[0]):
        raise InputError("The ranks run versions of samepolicy with different metrics; install one on all of them.")
    return _unpack(merged)


def everywhere(present: bool, *, group: Any = None) -> bool:
    """Whether something is there on every rank; a collective.

    A trainer that corrects its loss must do so on all ranks or on none, so a step whose rollout log-probs are missing
    on one of them is left as it is on all.

    Args:
        present: whether it is there on this rank.
        group: a torch.distributed process group; None is the default one.

    Returns:
        True where every rank said True; the same on every rank.
    """
    _initialised()
    return bool(_gather_all(np.array([float(present)]), group).all())


def join(values: Any, lengths: Any, *, group: Any = None, zigzag: bool = False) -> Any:
    """Put sequences that context parallelism cut into pieces together again; a collective over the context group.

    A sequence metric needs whole sequences. Each of the group's n ranks holds one piece of every sequence, or two where
    the cut is a zigzag (Megatron's: rank r holds pieces r and 2n - 1 - r of 2n, so that causal attention is shared
    evenly). Afterwards every rank of the group holds the same, so all but one of them say `counted=False`.

    Args:
        values: this rank's tokens of all sequences one after another, float [tokens].
        lengths: this rank's tokens of each sequence, int [sequences]; even numbers under a zigzag.
        group: the context parallel process group.
        zigzag: whether the pieces were dealt out as Megatron deals them.

    Returns:
        A Ragged with whole sequences, float64, in host memory.

    Raises:
        ShapeError: lengths that do not add up to the tokens, other sequences on another rank, or odd pieces in a
            zigzag.
    """
    _initialised()
    tokens, cuts = to_numpy(values).astype(np.float64), np.asarray(to_numpy(lengths), dtype=np.int64)
    if tokens.ndim != 1 or cuts.sum() != len(tokens):
        raise ShapeError(f"The lengths add up to {cuts.sum()}, but there are {tokens.size} tokens in one row.")
    if zigzag and (cuts % 2).any():
        raise ShapeError("A zigzag gives each rank two equal pieces of a sequence, but a length is odd; pad it first.")
    sizes = _gather_all(np.array([len(cuts), len(tokens)], dtype=np.float64), group).astype(int)
    if len({*sizes[:, 0].tolist()}) > 1:
        raise ShapeError(f"The ranks hold {sizes[:, 0].tolist()} sequences; each must hold a piece of every sequence.")
    widest = int(sizes[:, 1].max())
    padded = np.concatenate([cuts, tokens, np.zeros(widest - len(tokens))])
    ranks = [
        Ragged(row[len(cuts) : len(cuts) + size], offsets_of(row[: len(cuts)].astype(np.int64)))
        for row, (_, size) in zip(_gather_all(padded, group), sizes, strict=True)
    ]
    return Ragged.from_lists([_whole([r[i] for r in ranks], zigzag) for i in range(len(cuts))], dtype=np.float64)


def _whole(pieces: list[np.ndarray], zigzag: bool) -> np.ndarray:
    """One sequence from its pieces in rank order."""
    if not zigzag:
        return np.concatenate(pieces)
    halves = [(p[: len(p) // 2], p[len(p) // 2 :]) for p in pieces]
    return np.concatenate([*(first for first, _ in halves), *(second for _, second in reversed(halves))])


@cache
def _layout() -> tuple[_Slot, ...]:
    """The slots of every statistic of every metric, in the same order on all ranks, behind the counts and flags."""
    slots: list[_Slot] = []
    end = 1 + len(_COUNTS) + len(all_metrics())
    for name, metric in all_metrics().items():
        for statistic in metric.statistics:
            begin, end = end, end + statistic.SIZE
            slots.append(_Slot(name, statistic, begin, end, statistic.identity().state))
    return tuple(slots)


@cache
def _fingerprint() -> float:
    """A number that tells one layout from another."""
    return float(zlib.crc32(repr([(s.metric, s.statistic.__name__, s.end) for s in _layout()]).encode()))


def _size() -> int:
    """Length of a packed summary."""
    return _layout()[-1].end


def _pack(summary: Summary) -> np.ndarray:
    """A summary as one row: the layout's fingerprint, counts, what there is of each metric, and all states."""
    states: dict[str, Iterator[Statistic]] = {name: iter(held) for name, held in summary.statistics.items()}
    flags = [_flag(summary, name) for name in all_metrics()]
    parts = [next(states[slot.metric]).state if slot.metric in states else slot.nothing for slot in _layout()]
    return np.concatenate([[_fingerprint(), *astuple(summary.counts), *flags], *parts])


def _flag(summary: Summary, name: str) -> int:
    """0 for a metric that was measured, else -1 less the columns it lacks, a bit each."""
    if name in summary:
        return 0
    return -1 - sum(1 << MEASURED.index(column) for column in summary.missing.get(name, ()))


def _merge(rows: np.ndarray) -> np.ndarray:
    """The packed summary of all ranks from theirs, [ranks, size]; all NaN where their layouts differ."""
    if len({*rows[:, 0].tolist()}) > 1:
        return np.full(rows.shape[1], np.nan)
    head, flags = 1 + len(_COUNTS), _layout()[0].begin
    merged = np.empty(rows.shape[1])
    merged[0], merged[1:head] = rows[0, 0], rows[:, 1:head].sum(axis=0)
    held = rows[:, head:flags].astype(np.int64)
    merged[head:flags] = np.where((held == 0).any(axis=0), 0, -1 - np.bitwise_or.reduce(-1 - held, axis=0))
    for slot in _layout():
        merged[slot.begin : slot.end] = slot.statistic.merge(rows[:, slot.begin : slot.end])
    return merged


def _unpack(row: np.ndarray) -> Summary:
    """The summary that a row holds."""
    head, flags = 1 + len(_COUNTS), _layout()[0].begin
    counts = Counts(**{name: int(count) for name, count in zip(_COUNTS, row[1:head], strict=True)})
    held = dict(zip(all_metrics(), row[head:flags].astype(int).tolist(), strict=True))
    statistics: dict[str, tuple[Statistic, ...]] = {}
    for slot in _layout():
        if held[slot.metric] == 0:
            found = slot.statistic(row[slot.begin : slot.end])
            statistics[slot.metric] = (*statistics.get(slot.metric, ()), found)
    missing = {
        name: tuple(c for bit, c in enumerate(MEASURED) if -1 - flag >> bit & 1) for name, flag in held.items() if flag
    }
    return Summary(counts, statistics, {name: lacking for name, lacking in missing.items() if lacking})


def _initialised() -> None:
    """Refuse to reduce where there is no process group."""
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        raise InputError(
            "torch.distributed has no process group yet, so there is nothing to reduce over; call init_process_group "
            "first, or use the summary as it is in a single process."
        )


def _device(group: Any) -> Any:
    """Where the group's collectives take tensors: the host if they can, else this rank's accelerator."""
    import torch
    import torch.distributed as dist

    backends = dist.get_backend_config(group) if group is not None else dist.get_backend_config()
    return torch.device("cpu") if "cpu:" in backends else torch.accelerator.current_accelerator()


def _gather(row: np.ndarray, group: Any) -> np.ndarray | None:
    """The rows of all ranks on the group's first one, float64 [ranks, size]; None on the others. Sent as bytes."""
    import torch
    import torch.distributed as dist

    mine = torch.from_numpy(row.view(np.uint8)).to(_device(group))
    first = dist.get_rank(group) == 0
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))] if first else None
    dist.gather(mine, rows, group=group, group_dst=0)
    return None if rows is None else np.stack([other.cpu().numpy().view(np.float64) for other in rows])


def _broadcast(row: np.ndarray, group: Any) -> np.ndarray:
    """The row of the group's first rank, on all of them."""
    import torch
    import torch.distributed as dist

    sent = torch.from_numpy(row.view(np.uint8)).to(_device(group))
    dist.broadcast(sent, group=group, group_src=0)
    received: np.ndarray = sent.cpu().numpy().view(np.float64)
    return received


def _gather_all(row: np.ndarray, group: Any) -> np.ndarray:
    """The rows of all ranks on all of them, float64 [ranks, size]."""
    import torch
    import torch.distributed as dist

    mine = torch.from_numpy(row.view(np.uint8)).to(_device(group))
    rows = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, mine, group=group)
    return np.stack([other.cpu().numpy().view(np.float64) for other in rows])
