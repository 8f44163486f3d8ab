"""Requests to a server: bounded concurrency, retries with back-off, and a journal so that nothing is asked twice.

The API key comes from the environment variable SAMEPOLICY_API_KEY alone and goes into the request's header: it is in no
message, run, or journal.
"""

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import urlsplit

from samepolicy.engines.server_journal import Call, Journal, Json
from samepolicy.engines.server_reply import Reply, error_text, read_answer, read_json, seconds
from samepolicy.errors import EngineError, InputError, MissingDependencyError

KEY = "SAMEPOLICY_API_KEY"
"""The environment variable that holds the API key."""

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""

LOCAL = ("http://localhost", "http://127.", "http://[::1]")
"""How the addresses of this machine begin."""

LONGEST = 30.0
"""No wait between two tries is longer, seconds."""

LARGEST = 2**30
"""No answer is longer, bytes."""

T = TypeVar("T")


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
        limit = patience.concurrency
        self._http = self._httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=self._httpx.Timeout(patience.timeout, connect=min(10.0, patience.timeout)),
            limits=self._httpx.Limits(max_connections=limit, max_keepalive_connections=limit),
            trust_env=not self.url.startswith(LOCAL),  # no proxy between two processes of one machine
            follow_redirects=False,  # the key goes to this address and to no other
            verify=self.url.startswith("https"),  # reading the certificates takes a while
        )
        weakref.finalize(self, self._http.close)

    def get(self, path: str) -> Any:
        """The JSON at a path; None where the server has no such path.

        Raises:
            EngineError: the server does not answer, wants a key, or sends elsewhere.
        """
        reply = self._try("GET", path)
        self._refuse(reply)
        return read_json(reply, self.url + path) if reply.status == 200 else None

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
        found = read_json(reply, self.url + call.path)
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
            self.journal.put(self.url, call, reply, secret=self._key)
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
            raise EngineError(
                f"{self.url} sends requests on to {reply.location or 'another address'}, and neither they nor the key "
                "follow there; give the address that answers by itself."
            )

    def _told(self, reply: Reply) -> str:
        """What a server says about an error, in one short line, without the key."""
        text = error_text(reply)
        return text.replace(self._key, "***") if self._key else text

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
            if left and self._stop.wait(min(max(pause, asked), LONGEST)):
                break
            pause *= 2
        raise EngineError(
            f"{self.url} gave no answer in {self.patience.retries + 1 - left} tries ({trouble}); see that it is "
            "running, and that this is its address."
        )

    def _send(self, method: str, path: str, body: Json | None) -> Reply:
        """Send once, and read all of the answer within the time and the size that an answer may have."""
        end = time.monotonic() + self.patience.timeout
        with self._http.stream(method, path, json=body) as reply:
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


def api_key() -> str | None:
    """The API key of the environment, without white space around it; None where there is none.

    Raises:
        InputError: it holds a sign that no header can carry; the message does not show it.
    """
    key = os.environ.get(KEY, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise InputError(f"The key in {KEY} holds a sign that no request can carry; set it again.")
    return key or None


def address(url: str) -> str:
    """The address of a server, without a slash at its end.

    Raises:
        InputError: no http address, or one with a name and password in it.

    >>> address("localhost:8000/"), address("https://host/v1")
    ('http://localhost:8000', 'https://host')
    """
    whole = url if "://" in url else f"http://{url}"
    if "@" in whole or "?" in whole:
        raise InputError(f"The address of a server must hold no password or query; put the key into {KEY}.")
    try:
        parts = urlsplit(whole)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, or a bracket too few
        good = False
    if not good or not whole.isprintable() or " " in whole:
        raise InputError(f"{url!r} is not the address of a server; write it as http://localhost:8000.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
