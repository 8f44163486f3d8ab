"""Writes in the background: a thread, a queue with an end, and what becomes of them when the process ends.

Nothing here raises into the caller. A job that fails is counted and said once; when the queue is full the caller waits
or the job is dropped, as chosen, and that is counted, too. Whoever waits does so for a while only: a disk or a logger
that no longer answers costs records, not the training.
"""

import atexit
import concurrent.futures.thread  # noqa: F401 - pyarrow needs it, and it cannot be loaded once the process ends
import logging
import os
import re
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
PATIENCE = 120.0
"""Seconds that a full queue holds the caller while nothing is written; then jobs are dropped until something is."""
POLL = 0.002
NUMBER = re.compile(r"[0-9a-f]*[0-9][0-9a-f]*")
"""What differs from step to step in the words of one reason: counts, steps, and the hexadecimal names of files."""
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

    def because(self, error: BaseException, sentence: str) -> None:
        """Log a sentence with an error's words at its `{}`; the same error with other numbers is the same reason."""
        said = words(error)
        self(sentence.format(said), key=f"{type(error)} {sentence} {NUMBER.sub('#', said)[:100]}")


def words(error: BaseException) -> str:
    """What an error says, in one line and without its full stop; its kind where it says nothing.

    >>> words(ValueError("too  long.")), words(KeyboardInterrupt())
    ('too long', 'KeyboardInterrupt')
    """
    try:
        said = " ".join(str(error).split()).rstrip(".") if isinstance(error, Exception) else ""
    except Exception:  # an error of somebody else's whose own words fail
        said = ""
    return said or type(error).__name__


class Writer:
    """Runs jobs one after another on a thread of its own. Give it jobs from one thread.

    Attributes:
        limit: jobs that may wait.
        when_full: "wait" holds the caller until there is room, for two minutes at most; "drop" leaves the new job out.
        done: jobs that have ended.
        dropped: jobs that were left out.
        failed: errors that jobs raised, each of a group counted.
        waited: seconds that callers were held.

    >>> writer, found = Writer(), []
    >>> writer.submit(lambda: found.append(1))
    True
    >>> writer.close()
    >>> found, writer.done, writer.failed
    ([1], 1, 0)
    """

    def __init__(self, *, limit: int = 4, when_full: WhenFull = "wait", say: Once | None = None) -> None:
        if not isinstance(limit, int) or limit < 1 or when_full not in ("wait", "drop"):
            raise InputError(
                f'A queue needs a limit of 1 or more and "wait" or "drop", not {limit!r} and {when_full!r}.'
            )
        self.limit, self.when_full, self.say = limit, when_full, say or Once()
        self.submitted = self.done = self.dropped = self.failed = 0
        self.waited = 0.0
        self._stuck_at: int | None = None
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()  # its put may be interrupted by a signal that waits for it
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    @property
    def pending(self) -> int:
        """Jobs that wait or run; none in a process that was forked from the one that writes."""
        return self.submitted - self.done if os.getpid() == self._process else 0

    @property
    def lost(self) -> dict[str, int]:
        """What was not written: jobs that were dropped, and errors."""
        return {"dropped": self.dropped, "failed": self.failed}

    def submit(self, job: Job) -> bool:
        """Hand over a job; False where it was dropped."""
        if os.getpid() != self._process:
            self._begin_anew()
        if not self._room():
            self.dropped += 1
            self.say("the queue of the background writer is full, so a step's files are dropped.", key="dropped")
            return False
        self._start()
        self.submitted += 1
        self._jobs.put(job)
        return True

    def fail(self, error: BaseException) -> None:
        """Count and say why something was not written; what a group holds is counted and said one by one."""
        if isinstance(error, BaseExceptionGroup):
            for one in error.exceptions:
                self.fail(one)
            return
        self.failed += 1
        self.say.because(error, "could not write ({}); training goes on.")

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

    def _room(self) -> bool:
        """Whether one more job may wait, if need be after waiting for that."""
        if self.pending < self.limit:
            return True
        began = time.monotonic()
        while self.pending >= self.limit:
            waited = time.monotonic() - began
            if self.when_full == "drop" or self._stuck_at == self.done or waited > PATIENCE:
                self._stuck_at = self.done
                self.waited += waited
                return False
            time.sleep(POLL)
        self.waited += time.monotonic() - began
        return True

    def _begin_anew(self) -> None:
        """In a process that was forked: the thread and what it still had to do are the parent's."""
        self._process, self._thread, self._jobs = os.getpid(), None, SimpleQueue()
        self.submitted = self.done

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
            except BaseException as error:  # SystemExit, too: without this thread, whoever waits would wait for ever
                self.fail(error)
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
