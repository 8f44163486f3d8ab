"""Rung by the thread that watches, heard by every page that listens."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Bell:
    """Wakes coroutines from any thread.

    Attributes:
        closed: whether the server ends, so that nobody should go on listening.
    """

    def __init__(self) -> None:
        self.closed = False
        self._heard: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set at each ring; whoever listens clears it."""
        self._loop, heard = asyncio.get_running_loop(), asyncio.Event()
        self._heard.add(heard)
        try:
            yield heard
        finally:
            self._heard.discard(heard)

    def ring(self) -> None:
        """Wake everyone who listens."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._set)

    def close(self) -> None:
        """Tell everyone to stop listening."""
        self.closed = True
        self.ring()

    def _set(self) -> None:
        """Set every event, on the loop's own thread."""
        for heard in tuple(self._heard):
            heard.set()
