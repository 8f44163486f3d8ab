"""A run part by part, for what is larger than memory."""

import os
from collections.abc import Iterable, Iterator

from samepolicy.errors import CorruptFileError
from samepolicy.records import arrow
from samepolicy.records.places import Place
from samepolicy.records.run import Run
from samepolicy.records.source import OnBad, is_run, open_source, tell
from samepolicy.records.store import read
from samepolicy.records.where import Where


def stream(
    path: str | os.PathLike[str],
    *,
    columns: Iterable[str] | None = None,
    steps: Iterable[int] | None = None,
    samples: Iterable[int] | None = None,
    finish_reasons: Iterable[str | None] | None = None,
    on_bad: OnBad | None = None,
) -> Iterator[Run]:
    """Read a run folder one part after another, in the order of `read`; only one part is in memory at a time.

    What takes runs one by one (`whatif`, `trend`) gives the same from this as from the whole run. The same rows count
    as in `read`. A part of more than a million tokens or so comes in several runs. A dump of another program is read
    as a whole.

    Args:
        path: the folder or file, or a folder's URL.
        columns: names to load as far as the run has them, None for all; masks and ids that they need come along.
        steps: training steps to load, None for all.
        samples: numbers within step or group to load, None for all.
        finish_reasons: load only responses whose sampling ended so; None for all.
        on_bad: called with the error of each file that is left out because it cannot be read; None raises the first.

    Yields:
        One run per part, or several; a float column that only other parts have is NaN there.

    Raises:
        InputError: nothing is there, or nothing that can be read, or the parts' sides declare different things.
        CorruptFileError: a file is truncated, damaged or of a newer layout; the message names it.

    >>> from samepolicy.demo import RECORDED
    >>> [len(part) for part in stream(RECORDED)], [len(part) for part in stream(RECORDED, finish_reasons=["stop"])]
    ([16], [6])
    """
    if not is_run(Place.of(path)):
        chosen = {"steps": steps, "samples": samples, "finish_reasons": finish_reasons}
        yield read(path, on_bad=on_bad, **chosen)  # type: ignore[arg-type]
        return
    where = Where.of(steps=steps, samples=samples, finish_reasons=finish_reasons)
    source = open_source(path, columns=columns, where=where, on_bad=on_bad)
    for piece in source.pieces:
        try:
            for run in source.batches(piece, tokens=arrow.GROUP_TOKENS):
                yield source.filled(run)
        except CorruptFileError as error:
            tell(error, on_bad)
