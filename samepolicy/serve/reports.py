"""The report of any step, rendered when first asked for and kept until its parts change."""

import gzip
import hashlib
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from html import unescape
from queue import SimpleQueue

from samepolicy.errors import CorruptFileError, InputError
from samepolicy.records.run import Run
from samepolicy.records.side import Side
from samepolicy.report.pieces import Pieces, pieces_in
from samepolicy.serve.inside import Inside, Mark
from samepolicy.serve.steps import NO_STEP, load, open_step
from samepolicy.serve.watch import Watch, short

KEPT, BYTES = 32, 200_000_000
"""Reports that are kept, and how large they may be together, compressed."""

_POLICY = re.compile(r'http-equiv="Content-Security-Policy" content="([^"]*)"')


@dataclass(frozen=True)
class Page:
    """A report.

    Attributes:
        content: its HTML, compressed by gzip.
        policy: its Content-Security-Policy.
        tag: another for every content.
    """

    content: bytes = field(repr=False)
    policy: str
    tag: str


class EndedError(Exception):
    """The server ends."""


class Reports:
    """Renders one report at a time, on a thread of its own, so that many clicks cost no more than one core.

    Args:
        watch: where the parts of each step are known from.
        pieces: the bytes of token ids; None takes what the run itself holds. No tokenizer is looked up elsewhere, since
            a run could name any path.
    """

    def __init__(self, watch: Watch, *, title: str, pieces: Pieces | None = None) -> None:
        self.rendered = 0
        self._watch, self._title, self._pieces = watch, title, pieces
        self._pages: OrderedDict[int, tuple[Mapping[str, Mark], Page]] = OrderedDict()
        self._asked: dict[int, Future[Page]] = {}
        self._jobs: SimpleQueue[tuple[int, Future[Page]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="samepolicy-reports", daemon=True)
        self._thread.start()

    def ask(self, step: int) -> "Future[Page]":
        """The report of a step, now or later; whoever asks meanwhile waits for the same one.

        Raises (from the future):
            InputError: there is no such step, or it cannot be read.
            EndedError: the server ends.
        """
        marks, done = self._watch.parts_of(step), Future[Page]()
        if not marks:
            done.set_exception(InputError(f"There is no step {step} in this run."))
            return done
        with self._lock:
            held = self._pages.get(step)
            if held is not None and held[0] == marks:
                self._pages.move_to_end(step)
                done.set_result(held[1])
                return done
            if step not in self._asked:
                self._asked[step] = done
                self._jobs.put((step, done))
            return self._asked[step]

    def close(self) -> None:
        """Let everyone who waits go; what is being rendered is left."""
        with self._lock:
            waiting, self._asked = self._asked, {}
        for one in waiting.values():
            one.set_exception(EndedError())
        self._jobs.put(None)

    def _run(self) -> None:
        """The thread."""
        while (job := self._jobs.get()) is not None:
            step, asked = job
            marks = self._watch.parts_of(step)
            try:
                page, error = self._page(step, marks), None
            except Exception as failed:  # it is told to whoever asked
                page, error = None, failed
            with self._lock:
                if self._asked.pop(step, None) is not asked:
                    continue  # the server ends
                if page is not None:
                    self._keep(step, marks, page)
            if page is not None:
                asked.set_result(page)
            else:
                asked.set_exception(error)

    def _keep(self, step: int, marks: Mapping[str, Mark], page: Page) -> None:
        """Keep a page, and leave out those that were not asked for longest."""
        self._pages[step] = (marks, page)
        self._pages.move_to_end(step)
        while len(self._pages) > KEPT or sum(len(p.content) for _, p in self._pages.values()) > BYTES:
            self._pages.popitem(last=False)

    def _page(self, step: int, marks: Mapping[str, Mark]) -> Page:
        """Render a report."""
        from samepolicy.diagnose import diagnose
        from samepolicy.report import data, html

        run = self._read(step, marks)
        known = pieces_in(replace(run, rollout=Side(), trainer=Side())) if self._pieces is None else self._pieces
        title = self._title if step == NO_STEP else f"{self._title} · step {step}"
        made = data.of_report(diagnose(run), pieces=known, title=title)
        ways = {"run": "/", "previous": f"/step/{step}/previous", "next": f"/step/{step}/next"}
        text = html.render(made | {"report": made["report"] | {"live": ways}})
        self.rendered += 1
        found = _POLICY.search(text)
        if found is None:
            raise InputError("The report has no policy of its own, so it is not shown.")
        policy = f"{unescape(found[1])}; connect-src 'none'; frame-ancestors 'none'"
        content = gzip.compress(text.encode("utf-8", "replace"), compresslevel=4, mtime=0)
        return Page(content, policy, f'"{hashlib.sha256(content).hexdigest()[:32]}"')

    def _read(self, step: int, marks: Mapping[str, Mark]) -> Run:
        """The rows of a step that count.

        Raises:
            InputError: there are none that can be read.
        """
        folder, bad = Inside(str(self._watch.folder)), dict[str, str]()
        source = open_step(folder, self._watch.about(), step, marks, columns=None, on_bad=bad.__setitem__)
        if source is None:
            raise CorruptFileError(short(next(iter(bad.values())), self._watch.folder))
        return load(source)
