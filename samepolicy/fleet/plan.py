"""A run as shards and one task, and its measurement by whatever way the shards are spread."""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import TypeAlias

from samepolicy.errors import CorruptFileError
from samepolicy.fleet.journal import Journal, identity
from samepolicy.fleet.measured import Also, Measured, Task
from samepolicy.fleet.tree import Tree
from samepolicy.fleet.ways import Way, cores, in_turn, processes
from samepolicy.records.places import Place
from samepolicy.records.shards import Shard, cut
from samepolicy.records.source import OnBad, Piece, Source, is_run, open_source
from samepolicy.records.where import EVERYTHING, Where
from samepolicy.summary import MEASURED

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how many shards are done, and how many there are."""

WORTH = 128 << 20
"""Bytes of a run that are worth a process of their own: a few seconds of measuring."""
KEEP_EVERY = 2.0
"""Seconds between two writings of a journal."""
_BEHIND = {"version": ("policy_version",), "lag": ("policy_version", "trainer_version")}
"""Columns behind a grouping that has another name than its column."""


@dataclass(frozen=True)
class Plan:
    """What is to be measured, as shards that any process can measure.

    Attributes:
        task: measures a shard.
        shards: all of them, in order.
        on_bad: called with the error of each file that is left out.
        source: the run folder with its pieces, by which responses are numbered, and all of its columns; None for a dump
            of another program.
    """

    task: Task
    shards: tuple[Shard, ...]
    on_bad: OnBad | None = None
    source: Source | None = None

    def run(self, way: Way, *, tell: Tell | None = None, resume: Path | None = None) -> Measured:
        """Measure every shard, and merge: the same numbers to the last bit by whatever way, in whatever order.

        Args:
            way: how the shards are spread.
            tell: called after each shard.
            resume: a file that keeps what is done, to go on from after an interruption; removed at the end.

        Raises:
            InputError: a file cannot be read, or `resume` belongs to another measurement.
            SamePolicyError: a worker died.
        """
        journal = Journal(resume, identity(self.task, self.shards)) if resume else None
        tree = Tree(len(self.shards), journal.load() if journal else None)
        self._say(sentence for node in tree.nodes.values() for sentence in node.skipped)
        kept = monotonic()
        try:
            for number, found in way(self.task, [(n, self.shards[n]) for n in tree.missing()]):
                if tree.add(number, found):
                    self._say(found.skipped)
                    if tell:
                        tell(f"measuring {self.task.place}", tree.done, tree.leaves)
                if journal and monotonic() - kept > KEEP_EVERY:
                    journal.keep(tree.nodes)
                    kept = monotonic()
        except BaseException:
            if journal and tree.nodes:
                journal.keep(tree.nodes)
            raise
        if journal:
            journal.close()
        return _checked(tree.total(), self)

    def asking(self, *also: Also, by: str | None = None, measured: bool = True) -> "Plan":
        """A plan over the same shards that asks for other things, and reads the columns that these take.

        Args:
            *also: what else to do with each run on the way.
            by: what groups to measure apart, too.
            measured: measure the runs at all.
        """
        columns = {name for one in also for name in one.columns}
        if measured:
            columns |= {*MEASURED, *_BEHIND.get(by or "", (by,) if by else ())}
        source = self.task.source and self.task.source.narrowed(columns)
        return replace(self, task=replace(self.task, source=source, also=also, by=by, measured=measured))

    def _say(self, sentences: Iterable[str]) -> None:
        """Tell of files that were left out."""
        for sentence in sentences:
            if self.on_bad:
                self.on_bad(CorruptFileError(sentence))

    def way(self, workers: int | None) -> Way:
        """So many processes; None is the usual way."""
        return self.usual_way() if workers is None else processes(workers)

    def usual_way(self) -> Way:
        """In this process where the run is small, else in as many as it has cores or is worth."""
        workers = min(cores(), self._bytes() // WORTH, len(self.shards))
        return processes(workers) if workers > 1 else in_turn

    def _bytes(self) -> int:
        """The size of all files; one of another machine counts as large."""
        places = dict.fromkeys(shard.piece.place for shard in self.shards)
        return sum(WORTH if p.local is None else p.local.stat().st_size if p.local.exists() else 0 for p in places)


def plan_of(
    path: "str | os.PathLike[str] | Place",
    *,
    by: str | None = None,
    names: str = "samepolicy",
    where: Where = EVERYTHING,
    on_bad: OnBad | None = None,
    also: tuple[Also, ...] = (),
) -> Plan:
    """Look at a run folder, and cut it into shards; a dump of another program is one.

    Args:
        path: the folder or file, or a folder's URL.
        by: groups to measure apart, as `measure_by` takes it.
        names: a framework whose own definitions are measured too.
        where: which responses.
        on_bad: called with the error of each file that cannot be read and is left out as a whole; None raises the
            first.
        also: what else to do with each run on the way.

    Raises:
        InputError: there is nothing, or nothing that was asked for.
        CorruptFileError: a file is truncated, damaged or of a newer layout.
    """
    place, skip = Place.of(path), on_bad is not None
    if not is_run(place):
        return Plan(Task(place, None, where, by, names, skip, also), (Shard(Piece(place, None, 0)),), on_bad)
    source = open_source(place, where=where, on_bad=on_bad)
    task = Task(place, replace(source, pieces=()), where, names=names, skip_bad=skip)
    return Plan(task, cut(source, whole=skip), on_bad, source).asking(*also, by=by)


def measure_files(
    path: "str | os.PathLike[str]",
    *,
    by: str | None = None,
    names: str = "samepolicy",
    where: Where = EVERYTHING,
    workers: int | None = None,
    on_bad: OnBad | None = None,
) -> Measured:
    """Measure a run folder of any size in bounded memory, on several cores.

    Gives what `measure(read(path))` gives, to float64 rounding, and the same to the last bit for any number of workers.

    Args:
        path: the folder or file, or a folder's URL.
        by: groups to measure apart, as `measure_by` takes it.
        names: a framework whose own definitions are measured too.
        where: which responses.
        workers: processes that keep one core busy each; None takes what the run's size is worth.
        on_bad: called with the error of each file that cannot be read and is left out; None raises the first.

    Returns:
        The summary, and those of the groups.

    Raises:
        InputError: there is nothing, nothing that was asked for, or a file that cannot be read.
        SamePolicyError: a worker died.

    >>> from samepolicy.demo import RECORDED
    >>> measure_files(RECORDED, by="finish_reason").groups["stop"].counts.tokens
    256
    """
    plan = plan_of(path, by=by, names=names, where=where, on_bad=on_bad)
    return plan.run(plan.way(workers))


def _checked(found: Measured, plan: Plan) -> Measured:
    """The result with its groups in rising order; refused where no file could be read.

    Raises:
        CorruptFileError: every file was left out.
    """
    if found.skipped and not found.dtypes:
        raise CorruptFileError(
            f"None of the files of {plan.task.place} can be read; the first says: {found.skipped[0]}"
        )
    return replace(found, groups=dict(sorted(found.groups.items(), key=lambda item: _order(item[0]))))


def _order(label: str) -> tuple[float, str]:
    """Groups of numbers and ranges in rising order, then those of text."""
    number = re.match(r"-?\d+(\.\d+)?(e[+-]?\d+)?", label)
    return (float(number[0]) if number else float("inf"), label)
