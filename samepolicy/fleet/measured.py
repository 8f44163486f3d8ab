"""What a shard comes to, ready to merge with others', and the task that finds it."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from samepolicy.errors import CorruptFileError
from samepolicy.grouping import measure_by
from samepolicy.records.declared import dtype_of
from samepolicy.records.places import Place
from samepolicy.records.run import Run
from samepolicy.records.shards import Shard, batches
from samepolicy.records.source import Source
from samepolicy.records.store import read
from samepolicy.records.where import Where
from samepolicy.summary import Summary, measure


class Also(Protocol):
    """Something to do with each run of a shard beside measuring it; small enough to be sent along."""

    @property
    def columns(self) -> Collection[str]:
        """Names of the columns that it looks at."""

    def __call__(self, run: Run, first: int) -> Any:
        """What a run comes to, as something that adds up with `+`; `first` is its first response's number among all."""


@dataclass(frozen=True)
class Measured:
    """What some shards of a run come to; `+` is that of both together.

    Attributes:
        summary: of all their tokens.
        groups: for each label a summary of its own, where groups were asked for.
        dtypes: what was declared, (rollout, trainer) each; one pair where all declare the same.
        skipped: a sentence about each file that was left out because it cannot be read.
        also: what else was asked for, see `Task`; empty where there is nothing yet.

    >>> (Measured() + Measured()).summary.counts.tokens
    0
    """

    summary: Summary = field(default_factory=Summary.empty)
    groups: Mapping[str, Summary] = field(default_factory=dict)
    dtypes: frozenset[tuple[str | None, str | None]] = frozenset()
    skipped: tuple[str, ...] = ()
    also: tuple[Any, ...] = ()

    def __add__(self, other: Self) -> Self:
        """Both together."""
        labels = {**self.groups, **other.groups}
        nothing = Summary.empty()
        groups = {label: self.groups.get(label, nothing) + other.groups.get(label, nothing) for label in labels}
        pairs = zip(self.also, other.also, strict=True) if self.also and other.also else ()
        return type(self)(
            self.summary + other.summary,
            groups,
            self.dtypes | other.dtypes,
            self.skipped + other.skipped,
            tuple(a + b for a, b in pairs) or self.also or other.also,
        )


@dataclass(frozen=True)
class Task:
    """Measures any shard of one run; small enough to be sent along with each.

    Attributes:
        place: the run.
        source: the opened run folder without its pieces; None for a dump of another program, read as a whole.
        where: which responses of a dump are asked for; a shard of a folder knows its own.
        by: what groups to measure apart, too.
        names: a framework whose own definitions are measured too.
        skip_bad: leave a file out that cannot be read.
        also: what else to do with each run that is measured.
        measured: measure it at all; otherwise only `also` is done.
    """

    place: Place
    source: Source | None
    where: Where
    by: str | None = None
    names: str = "samepolicy"
    skip_bad: bool = False
    also: tuple[Also, ...] = ()
    measured: bool = True

    def __call__(self, shard: Shard) -> Measured:
        """Measure one shard; a file that cannot be read adds nothing but its sentence, if that is allowed.

        Raises:
            CorruptFileError: a file that cannot be read and may not be left out.
            MissingColumnError: the run lacks a column.
        """
        skipped: list[CorruptFileError] = []
        found, first = Measured(), shard.first
        try:
            for run in self._runs(shard, skipped):
                found, first = found + self._measure(run, first), first + len(run)
        except CorruptFileError as error:
            if not self.skip_bad:
                raise
            return Measured(skipped=(str(error),))
        return found + Measured(skipped=tuple(str(error) for error in skipped))

    def _runs(self, shard: Shard, skipped: list[CorruptFileError]) -> Iterator[Run]:
        """The runs of a shard, or the whole of a dump."""
        if self.source is not None:
            yield from batches(self.source, shard)
            return
        chosen = {name: getattr(self.where, name) for name in ("steps", "samples", "finish_reasons")}
        yield read(self.place.text, on_bad=skipped.append if self.skip_bad else None, **chosen)

    def _measure(self, run: Run, first: int) -> Measured:
        """What one run comes to, whose first response has this number."""
        also = tuple(do(run, first) for do in self.also)
        dtypes = frozenset({(dtype_of(run.rollout), dtype_of(run.trainer))})
        if not self.measured:
            return Measured(dtypes=dtypes, also=also)
        groups = measure_by(run, self.by, names=self.names) if self.by else {}
        return Measured(measure(run, names=self.names), groups, dtypes, also=also)
