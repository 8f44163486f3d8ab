"""Some responses of a run folder by their numbers, read whole; nothing else stays in memory."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from jaxtyping import Int

from samepolicy.errors import CorruptFileError
from samepolicy.records import arrow
from samepolicy.records.run import Run
from samepolicy.records.source import OnBad, Piece, Source, tell


def pick(source: Source, numbers: Int[np.ndarray, " responses"], *, on_bad: OnBad | None = None) -> Run:
    """Read some responses, in the order of the run.

    Row groups without any are not read; of the others one batch at a time is in memory, beside what was picked.

    Args:
        source: the run folder, opened with the columns to read.
        numbers: which responses, counted from 0 over all of the source's pieces, each once.
        on_bad: called with the error of a file that is left out because it cannot be read; None raises it.

    Raises:
        CorruptFileError: a file is damaged.

    >>> from samepolicy.demo import RECORDED
    >>> from samepolicy.records.source import open_source
    >>> len(pick(open_source(RECORDED), np.array([3, 1])))
    2
    """
    runs: list[Run] = []
    for piece in _narrowed(source, numbers):
        try:
            runs += [source.filled(run) for run in source.batches(piece, tokens=arrow.GROUP_TOKENS)]
        except CorruptFileError as error:
            tell(error, on_bad)
    return Run.concat(runs)


def _narrowed(source: Source, numbers: np.ndarray) -> Iterator[Piece]:
    """The pieces with only these responses; those without any are left out."""
    wanted, first = np.sort(numbers), 0
    for piece in source.pieces:
        low, high = np.searchsorted(wanted, [first, first + piece.responses])
        here, first = wanted[low:high] - first, first + piece.responses
        if len(here):
            held = np.arange(piece.responses) if piece.rows is None else np.flatnonzero(piece.rows)
            rows = np.zeros(piece.responses if piece.rows is None else len(piece.rows), dtype=bool)
            rows[held[here]] = True
            yield replace(piece, rows=rows, responses=len(here))
