"""Requests to a server: bounded concurrency, retries with back-off, and a journal so that nothing is asked twice.

The API key comes from the environment variable SAMEPOLICY_API_KEY alone and goes into the request's header: it is in no
message, run, or journal.
"""

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.request import getproxies

from samepolicy.engines.server_address import ENCODINGS, KEY, address, api_key, connections, plain_local
from samepolicy.engines.server_journal import Call, Journal, Json
from samepolicy.engines.server_reply import Reply, brief, error_text, read_answer, read_json, seconds
from samepolicy.errors import EngineError, InputError, MissingDependencyError

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""

LONGEST = 30.0
"""No wait between two tries is longer, seconds."""

LONGEST_ANSWER = 1_000_000
"""No answer can be waited for longer, seconds; the system takes no more."""

LARGEST = 2**30
"""No answer is longer, bytes."""

T = TypeVar("T")


class _StoppedError(EngineError):
    """A request that is not tried again, since another one failed for good: that one's failure is told."""


@dataclass(frozen=True, kw_only=True)
class Patience:
    """How long and how hard to try.

    Attributes:
        concurrency: requests in flight.
        retries: further tries of a request that met a busy server or a lost connection.
        timeout: longest wait for one answer, seconds.
        pause: wait before the second try, seconds; each further one doubles.
    """

    concurrency: int = 16
    retries: int = 5
    timeout: float = 600.0
    pause: float = 0.5

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, least in (("concurrency", 1), ("retries", 0), ("timeout", 1e-3), ("pause", 0)):
            if not getattr(self, name) >= least:
                raise InputError(f"{name} must be {least:g} or more, but it is {getattr(self, name)}.")
        if self.timeout > LONGEST_ANSWER:
            raise InputError(f"timeout must be {LONGEST_ANSWER:,} seconds or less, but it is {self.timeout}.")


class Client:
    """A server's address and how to talk to it."""

    def __init__(self, url: str, patience: Patience, journal: str | None = None) -> None:
        """Open a pool of connections and the journal; nothing is sent yet."""
        self._httpx = imported()
        self.url = address(url)
        self.patience = patience
        self.journal = Journal(journal)
        self._key = api_key()
        self._stop = threading.Event()
        concurrency, timeout = patience.concurrency, patience.timeout
        self._http = connections(self._httpx, self.url, self._key, concurrency=concurrency, timeout=timeout)
        weakref.finalize(self, self._http.close)

    def get(self, path: str) -> Any:
        """The JSON at a path; None where the server has no such path.

        Raises:
            EngineError: the server does not answer, wants a key, or sends elsewhere.
        """
        reply = self._try("GET", path)
        self._refuse(reply)
        return read_json(reply, self.url + path, self._key) if reply.status == 200 else None

    def post(self, call: Call) -> Json:
        """The JSON answer to one call.

        Raises:
            InputError: the server refuses what it was asked.
            EngineError: the server does not answer, or not in JSON.
        """
        reply = self._try("POST", call.path, call.body)
        self._refuse(reply)
        if reply.status in (400, 404, 413, 422):
            raise InputError(
                f"{self.url} refused a request ({self._told(reply)}); mend the ids, the length or the name."
            )
        if reply.status != 200:
            raise EngineError(f"{self.url} failed with status {reply.status} ({self._told(reply)}); see its log.")
        found = read_json(reply, self.url + call.path, self._key)
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}{call.path} did not answer with a JSON object; is this the right server?")
        return found

    def ask(self, call: Call, read: Callable[[Json], T]) -> T:
        """What is read from the answer to one call, which the journal neither gives nor keeps."""
        return read_answer(read, self.post(call))

    def post_all(self, calls: Sequence[Call], readers: Sequence[Callable[[Json], Any]]) -> list[Any]:
        """What is read from the answers to many calls, in their order; as many at a time as `concurrency` says.

        Args:
            calls: what to ask.
            readers: what reads each answer; an answer that it refuses is not kept.

        Raises:
            EngineError: the server failed for good; what has come is kept in the journal, where there is one.
        """
        try:
            with self._kept(), ThreadPoolExecutor(self.patience.concurrency) as pool, self._stopping(pool):
                return list(pool.map(self._one, calls, readers))
        finally:
            self._stop.clear()

    def _one(self, call: Call, read: Callable[[Json], Any]) -> Any:
        """One of many: from the journal, or from the server and then kept."""
        if self._stop.is_set():
            return None
        try:
            known = self.journal.get(self.url, call)
            if known is not None:
                return read_answer(read, known)
            reply = self.post(call)
            found = read_answer(read, reply)
            self.journal.put(self.url, call, reply)
        except _StoppedError:
            return None
        except BaseException:
            self._stop.set()
            raise
        return found

    @contextmanager
    def _stopping(self, pool: ThreadPoolExecutor) -> Iterator[None]:
        """After a failure or an interruption, send nothing more of what waits."""
        try:
            yield
        except BaseException:
            self._stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """Say after a failure what of the work is kept."""
        try:
            yield
        except EngineError as error:
            if self.journal.path is None:
                where = "nothing is kept, since no journal= is named"
            else:
                where = f"{self.journal.kept} answers are kept in {self.journal.path}; run the same again to go on"
            raise EngineError(f"{str(error).rstrip('.')} ({where}).") from error

    def _refuse(self, reply: Reply) -> None:
        """Refuse an answer that tells to go elsewhere, or to bring another key."""
        if reply.status in (401, 403):
            raise EngineError(f"{self.url} wants an API key that it accepts; set {KEY} in the environment.")
        if 300 <= reply.status < 400:
            where = self._blank(reply.location) or "another address"
            raise EngineError(
                f"{self.url} sends requests on to {where}, and neither they nor the key follow there; give the address "
                "that answers by itself."
            )

    def _told(self, reply: Reply) -> str:
        """What a server says about an error, in one short line, without the key."""
        return error_text(reply, self._key)

    def _blank(self, text: str) -> str:
        """A text of the server as a message shows it: short, and without the key."""
        return brief(text.replace(self._key, "***") if self._key else text)

    def _try(self, method: str, path: str, body: Json | None = None) -> Reply:
        """Send until the server takes it, with longer and longer pauses between."""
        pause, trouble = self.patience.pause, ""
        for left in range(self.patience.retries, -1, -1):
            asked = 0.0
            try:
                reply = self._send(method, path, body)
                if reply.status not in BUSY:
                    return reply
                trouble, asked = f"status {reply.status}, {self._told(reply)}", reply.wait
            except self._httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}".rstrip(": ")
                if "CERTIFICATE_VERIFY_FAILED" in trouble:
                    raise EngineError(
                        f"The certificate of {self.url} cannot be trusted ({trouble}), and nothing was sent; name its "
                        "authority's file in SSL_CERT_FILE, or mend the address."
                    ) from error
            except self._httpx.DecodingError as error:
                raise EngineError(
                    f"{self.url}{path} gave an answer that cannot be unpacked ({error}); let it send plain JSON."
                ) from error
            except (self._httpx.InvalidURL, UnicodeError) as error:
                raise InputError(f"{self.url} is not the address of a server ({error}); mend it.") from error
            if left and self._stop.wait(min(max(pause, asked), LONGEST)):
                raise _StoppedError
            pause *= 2
        where = "this is its address"
        if getproxies() and not plain_local(self.url):
            where += ", and that the proxy of the environment reaches it"
        raise EngineError(
            f"{self.url} gave no answer in {self.patience.retries + 1} tries ({trouble}); see that it is "
            f"running, and that {where}."
        )

    def _send(self, method: str, path: str, body: Json | None) -> Reply:
        """Send once, and read all of the answer within the time and the size that an answer may have."""
        end = time.monotonic() + self.patience.timeout
        with self._http.stream(method, path, json=body) as reply:
            self._unpackable(reply.headers.get("Content-Encoding", "identity"), path)
            parts, size = [], 0
            for part in reply.iter_bytes():
                size += len(part)
                parts.append(part)
                if size > LARGEST:
                    raise EngineError(
                        f"{self.url}{path} answers with more than {LARGEST:,} bytes; ask for less at once."
                    )
                if time.monotonic() > end:
                    raise self._httpx.ReadTimeout(f"no whole answer within {self.patience.timeout:g} s")
            told = reply.headers
        return Reply(reply.status_code, b"".join(parts), seconds(told.get("Retry-After")), told.get("Location", ""))

    def _unpackable(self, encoding: str, path: str) -> None:
        """Refuse an answer that is packed otherwise than asked, before it unpacks to more than there is memory."""
        if encoding.strip().lower() not in ("", *ENCODINGS):
            raise EngineError(
                f"{self.url}{path} packs its answer as {self._blank(encoding)!r}, which was not asked for; let it "
                "send plain JSON, or gzip."
            )


def imported() -> Any:
    """The module `httpx`.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import httpx
    except ImportError as error:
        raise MissingDependencyError(
            "The server engine needs httpx, which is not installed; run pip install 'samepolicy[server]'."
        ) from error
    return httpx
