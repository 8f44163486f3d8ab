"""Writes in the background: a thread, a queue with an end, and what becomes of them when the process ends.

Nothing here raises into the caller. A job that fails is counted and said once; when the queue is full the caller waits
or the job is dropped, as chosen, and that is counted, too.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 - pyarrow needs it, and it cannot be loaded once the process ends
import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from types import FrameType
from typing import Any, Literal, TypeAlias

from samepolicy.errors import InputError

WhenFull: TypeAlias = Literal["wait", "drop"]
Job: TypeAlias = Callable[[], Any]
LAST_WAIT = 60.0
"""Seconds that the end of a process waits for what is still to be written."""
POLL = 0.002
_LOG = logging.getLogger("samepolicy.monitor")


class Once:
    """Says each sentence once, however often its reason comes back."""

    def __init__(self) -> None:
        self.said: set[str] = set()

    def __call__(self, sentence: str, *, key: str = "", level: int = logging.WARNING) -> None:
        """Log the sentence, unless one of this key was logged before."""
        if (key or sentence) not in self.said:
            self.said.add(key or sentence)
            _LOG.log(level, "samepolicy: %s", sentence)


class Writer:
    """Runs jobs one after another on a thread of its own. Give it jobs from one thread.

    Attributes:
        limit: jobs that may wait.
        when_full: "wait" holds the caller until there is room; "drop" leaves the new job out.
        done: jobs that have ended.
        dropped: jobs that were left out.
        failed: jobs that raised.

    >>> writer, found = Writer(), []
    >>> writer.submit(lambda: found.append(1))
    True
    >>> writer.close()
    >>> found, writer.done, writer.failed
    ([1], 1, 0)
    """

    def __init__(self, *, limit: int = 4, when_full: WhenFull = "wait", say: Once | None = None) -> None:
        if limit < 1 or when_full not in ("wait", "drop"):
            raise InputError(f'A queue needs a limit of 1 or more and "wait" or "drop", not {limit} and {when_full!r}.')
        self.limit, self.when_full, self.say = limit, when_full, say or Once()
        self.submitted = self.done = self.dropped = self.failed = 0
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # its put may be interrupted by a signal that waits for it
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def pending(self) -> int:
        """Jobs that wait or run; none in a process that was forked from the one that writes."""
        return self.submitted - self.done if os.getpid() == self._process else 0

    def submit(self, job: Job) -> bool:
        """Hand over a job; False where it was dropped."""
        if self.pending >= self.limit:
            if self.when_full == "drop":
                self.dropped += 1
                self.say("the queue of the background writer is full, so a step's files are dropped.", key="dropped")
                return False
            while self.pending >= self.limit:
                time.sleep(POLL)
        self._start()
        self.submitted += 1
        self._jobs.put(job)
        return True

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until everything handed over is written; False where the time (seconds) was not enough."""
        end = None if timeout is None else time.monotonic() + timeout
        while self.pending:
            if end is not None and time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True

    def close(self) -> None:
        """Write what is left and end the thread; the next job starts another."""
        thread, self._thread = self._thread, None
        if thread is None or os.getpid() != self._process:
            return
        self.flush(LAST_WAIT)
        self._jobs.put(None)
        thread.join(LAST_WAIT)
        atexit.unregister(self.close)
        _ENDING.discard(self)

    def _start(self) -> None:
        """Begin to write, and have the end of the process wait for it."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="samepolicy-writer", daemon=True)
            self._thread.start()
            atexit.register(self.close)
            _ENDING.add(self)
            _watch_for_the_end()

    def _run(self) -> None:
        """The thread: one job after another."""
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except Exception as error:
                self.failed += 1
                what = " ".join(str(error).split()).rstrip(".") or type(error).__name__
                self.say(f"could not write ({what}); training goes on.", key=f"{type(error)}{what[:40]}")
            finally:
                self.done += 1
                del job  # else it keeps a batch alive until the next one comes


_ENDING: set[Writer] = set()
"""Writers that the end of the process has to wait for."""
_BEFORE: dict[str, Any] = {}


def _watch_for_the_end() -> None:
    """Flush on SIGTERM, too, and then do what would have been done without us; only the main thread may ask for it."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) in (
        _on_sigterm,
        signal.SIG_IGN,
        None,
    ):
        return
    _BEFORE["handler"] = signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    """Write what is left, then hand the signal on."""
    for writer in tuple(_ENDING):
        writer.flush(LAST_WAIT)
    before = _BEFORE.get("handler", signal.SIG_DFL)
    if callable(before):
        before(number, frame)
        return
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), number)
