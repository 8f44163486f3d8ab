"""Requests to a server: bounded concurrency, retries with back-off, and a journal so that nothing is asked twice.

The API key comes from the environment variable SAMEPOLICY_API_KEY alone and goes into the request's header: it is in no
message, run, or journal.
"""

import json
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from samepolicy.errors import EngineError, InputError, MissingDependencyError

KEY = "SAMEPOLICY_API_KEY"
"""The environment variable that holds the API key."""

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed."""

LONGEST = 30.0
"""No wait between two tries is longer, seconds."""

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One POST: where, and what."""

    path: str
    body: Json


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
            if getattr(self, name) < least:
                raise InputError(f"{name} must be {least:g} or more, but it is {getattr(self, name)}.")


class Client:
    """A server's address and how to talk to it."""

    def __init__(self, url: str, patience: Patience, journal: str | None = None) -> None:
        """Open a pool of connections; nothing is sent yet."""
        try:
            import httpx
        except ImportError as error:
            raise MissingDependencyError(
                "The server engine needs httpx, which is not installed; run pip install 'samepolicy[server]'."
            ) from error
        self.url = address(url)
        self.patience = patience
        self._journal = Journal(journal)
        key = os.environ.get(KEY)
        limits = httpx.Limits(max_connections=patience.concurrency, max_keepalive_connections=patience.concurrency)
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(patience.timeout, connect=min(10.0, patience.timeout)),
            limits=limits,
            verify=self.url.startswith("https"),  # reading the certificates takes a while
        )
        weakref.finalize(self, self._http.close)

    def get(self, path: str) -> Any:
        """The JSON at a path; None where the server has no such path.

        Raises:
            EngineError: the server does not answer.
        """
        reply = self._try(lambda: self._http.get(path))
        return _json(reply) if reply.status_code == 200 else None

    def post(self, call: Call) -> Json:
        """The JSON answer to one call.

        Raises:
            InputError: the server refuses what it was asked.
            EngineError: the server does not answer, or not in JSON.
        """
        reply = self._try(lambda: self._http.post(call.path, json=call.body))
        if reply.status_code in (400, 404, 413, 422):
            raise InputError(f"{self.url} refused a request ({_told(reply)}); mend the ids, the length or the name.")
        if reply.status_code in (401, 403):
            raise EngineError(f"{self.url} wants an API key that it accepts; set {KEY} in the environment.")
        if reply.status_code != 200:
            raise EngineError(f"{self.url} failed with status {reply.status_code} ({_told(reply)}); see its log.")
        found = _json(reply)
        if not isinstance(found, dict):
            raise EngineError(f"{self.url}{call.path} did not answer with a JSON object; is this the right server?")
        return found

    def post_all(self, calls: Sequence[Call], readers: Sequence[Callable[[Json], Any]]) -> list[Any]:
        """What is read from the answers to many calls, in their order; as many at a time as `concurrency` says.

        Args:
            calls: what to ask.
            readers: what reads each answer; an answer that it refuses is not kept.

        Raises:
            EngineError: the server failed for good; what has come is kept in the journal, where there is one.
        """
        stop = threading.Event()

        def one(call: Call, read: Callable[[Json], Any]) -> Any:
            if stop.is_set():
                return None
            try:
                known = self._journal.get(self.url, call)
                if known is not None:
                    return read(known)
                reply = self.post(call)
                found = read(reply)
            except BaseException:
                stop.set()
                raise
            self._journal.put(self.url, call, reply)
            return found

        with ThreadPoolExecutor(self.patience.concurrency) as pool, self._kept(len(calls)):
            return list(pool.map(one, calls, readers))

    @contextmanager
    def _kept(self, total: int) -> Iterator[None]:
        """Say after a failure what of the work is kept."""
        try:
            yield
        except EngineError as error:
            if not self._journal.kept:
                raise
            where = f"{self._journal.kept} answers are kept in {self._journal.path}; run the same again to go on"
            raise EngineError(f"{str(error).rstrip('.')} ({where}).") from error

    def _try(self, send: Callable[[], Any]) -> Any:
        """Send until the server takes it, with longer and longer pauses between."""
        import httpx

        pause, trouble = self.patience.pause, ""
        for left in range(self.patience.retries, -1, -1):
            asked = None
            try:
                reply = send()
                if reply.status_code not in BUSY:
                    return reply
                trouble, asked = f"status {reply.status_code}, {_told(reply)}", reply.headers.get("Retry-After")
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}".rstrip(": ")
            if left:
                time.sleep(min(max(pause, _seconds(asked)), LONGEST))
                pause *= 2
        raise EngineError(
            f"{self.url} gave no answer in {self.patience.retries + 1} tries ({trouble}); see that it is running."
        )


class Journal:
    """Answers that have come, one JSON object a line, so that an interrupted run goes on where it stopped."""

    def __init__(self, path: str | None) -> None:
        """Read what is there; a last line that was cut off is left out."""
        self.path = path
        self._lock = threading.Lock()
        self._known: dict[str, Json] = {}
        if path is not None and Path(path).exists():
            for line in Path(path).read_text(encoding="utf-8").splitlines():
                try:
                    entry = json.loads(line)
                    self._known[entry["asked"]] = entry["answer"]
                except (ValueError, TypeError, KeyError):
                    continue

    @property
    def kept(self) -> int:
        """How many answers are kept."""
        return len(self._known)

    def get(self, url: str, call: Call) -> Json | None:
        """The answer to this very call, or None."""
        return self._known.get(_name(url, call)) if self.path else None

    def put(self, url: str, call: Call, answer: Json) -> None:
        """Keep an answer."""
        if self.path is None:
            return
        name = _name(url, call)
        with self._lock:
            self._known[name] = answer
            with Path(self.path).open("a", encoding="utf-8") as file:
                file.write(
                    "\n" * (file.tell() > 0 and not _ends(self.path))
                    + json.dumps({"asked": name, "answer": answer})
                    + "\n"
                )


def address(url: str) -> str:
    """The address of a server, without a slash at its end.

    Raises:
        InputError: no http address, or one with a name and password in it.

    >>> address("localhost:8000/"), address("https://host/v1")
    ('http://localhost:8000', 'https://host')
    """
    whole = url if "://" in url else f"http://{url}"
    parts = urlsplit(whole)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InputError(f"{url!r} is not the address of a server; write it as http://localhost:8000.")
    if "@" in parts.netloc or parts.query:
        raise InputError(f"The address of a server must hold no password or query; put the key into {KEY}.")
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def _name(url: str, call: Call) -> str:
    """What a call is known by: a hash of all that it asks."""
    return sha256(json.dumps([url, call.path, call.body], sort_keys=True).encode()).hexdigest()


def _ends(path: str) -> bool:
    """Whether the last byte of a file ends a line."""
    with Path(path).open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _json(reply: Any) -> Any:
    """The JSON of a reply."""
    try:
        return json.loads(reply.content)
    except ValueError as error:
        raise EngineError(f"{reply.url} did not answer with JSON ({error}); is this the right server?") from error


def _told(reply: Any) -> str:
    """What a server says about an error, in one short line."""
    try:
        found = json.loads(reply.content)
        error = found.get("error", found.get("detail", found))
        text = str(error.get("message", error) if isinstance(error, dict) else error)
    except (ValueError, AttributeError):
        text = reply.text
    return " ".join(text.split())[:200].rstrip(".") or "nothing said"


def _seconds(header: str | None) -> float:
    """The wait that a server asks for; 0 where it asks for none in seconds."""
    try:
        return float(header or 0)
    except ValueError:
        return 0.0
