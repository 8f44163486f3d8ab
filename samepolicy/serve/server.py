"""Binds an address, says where the page is, and answers until it is interrupted."""

import errno
import ipaddress
import re
import secrets
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from samepolicy.errors import InputError, MissingDependencyError
from samepolicy.records.parts import HEADER
from samepolicy.records.places import Place
from samepolicy.report.pieces import Pieces
from samepolicy.serve.access import Access

if TYPE_CHECKING:
    import uvicorn

TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,256}")
"""What a token may be."""


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where to answer, and to whom.

    Attributes:
        host: an address or name of this machine.
        port: the port; 0 takes any free one.
        token: what callers have to know. Empty asks nothing on loopback, and makes a token anywhere else.
        names: further host names that the page is opened under, such as that of a proxy.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    token: str = field(default="", repr=False)
    names: Collection[str] = ()


def serve(
    folder: Path, address: Address, *, pieces: Pieces | None = None, tell: Callable[[str], object] = print
) -> None:
    """Show a run folder as it grows, until interrupted.

    Args:
        folder: the run folder; one that is still empty is waited for.
        address: where to answer.
        pieces: the bytes of token ids, for the text in reports; None takes what the run holds.
        tell: told the page's address once it answers.

    Raises:
        InputError: no such folder, one that holds something else, or an address that cannot be had.
        MissingDependencyError: starlette or uvicorn is not installed.
    """
    with Live(folder, address, pieces=pieces) as live:
        tell(live.url)
        live.run()


class Live:
    """A live page whose address is taken, and that answers while `run` runs.

    Attributes:
        url: where it is opened, with the token if it asks for one.
        watch: what watches the folder.
        reports: what renders the reports of steps.
    """

    def __init__(self, folder: Path, address: Address, *, pieces: Pieces | None = None) -> None:
        place = watched(folder)
        _needed()
        from samepolicy.serve.app import app
        from samepolicy.serve.bell import Bell
        from samepolicy.serve.reports import Reports
        from samepolicy.serve.watch import Watch

        checked_token(address.token)
        self._socket = bound(address)
        local, port = _is_loopback(self._socket), int(self._socket.getsockname()[1])
        token = address.token or ("" if local else secrets.token_urlsafe(32))
        self.url = url(address.host, port, token)
        self.watch, self._bell = Watch(place, title=place.name), Bell()
        self.reports = Reports(self.watch, title=place.name, pieces=pieces)
        site = app(self.watch, self.reports, self._bell, title=place.name)
        names = _names(address, local=local)
        access = Access(app=site, names=names, addresses=not local, token=token, port=port)
        self._server = _server(access, self._leave)

    def run(self) -> None:
        """Watch and answer until interrupted, or told to stop."""
        self.watch.start()
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `run`, from any thread."""
        self._leave()
        self._server.should_exit = True

    def _leave(self) -> None:
        """Let everyone go who waits; streams would never end by themselves."""
        self._bell.close()
        threading.Thread(target=self.reports.close, daemon=True).start()  # its lock may be held where a signal comes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.watch.stop()
        self.reports.close()
        self._socket.close()


def watched(folder: Path) -> Path:
    """The folder, resolved once.

    Raises:
        InputError: it is not there, or holds something else than a run.
    """
    if Place.of(folder).local is None:
        raise InputError(f"{folder} is not on this machine; a live page watches a local folder.")
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder; give the run folder that a monitor writes, made before if need be.")
    place = folder.resolve()
    foreign = sorted(entry.name for entry in place.iterdir() if not entry.name.startswith("."))
    if foreign and not (place / HEADER).exists():
        raise InputError(f"{folder} holds other files ({foreign[0]}) and no run; give a run folder.")
    return place


def checked_token(token: str) -> None:
    """Refuse a token that could be guessed, or that an address cannot hold.

    Raises:
        InputError: it is such.

    >>> checked_token("short")
    Traceback (most recent call last):
    ...
    samepolicy.errors.InputError: A token needs 16 to 256 letters, digits or . _ ~ -; leave --token out for a good one.
    """
    if token and not TOKEN.fullmatch(token):
        raise InputError("A token needs 16 to 256 letters, digits or . _ ~ -; leave --token out for a good one.")


def bound(address: Address) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        InputError: it is in use, not of this machine, or not allowed.
    """
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise InputError(f"{address.host} is no address of this machine ({error}); give another --host.") from error
    held = socket.socket(family, kind, protocol)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(where)
        held.listen(128)
    except OSError as error:
        held.close()
        if error.errno == errno.EADDRINUSE:
            why = f"Port {address.port} of {address.host} is in use; give another --port, or 0 for any free one."
            raise InputError(why) from error
        raise InputError(
            f"{address.host} port {address.port} cannot be opened ({error.strerror}); give another --host or --port."
        ) from error
    return held


def url(host: str, port: int, token: str) -> str:
    """The page's address as a person opens it.

    >>> url("0.0.0.0", 80, ""), url("::1", 8765, "x")
    ('http://127.0.0.1:80/', 'http://[::1]:8765/?token=x')
    """
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def _needed() -> None:
    """Say what is missing, before anything is opened."""
    try:
        import starlette
        import uvicorn  # noqa: F401

        del starlette
    except ImportError as error:
        raise MissingDependencyError(
            "A live page needs starlette and uvicorn: pip install 'samepolicy[serve]'."
        ) from error


def _is_loopback(held: socket.socket) -> bool:
    """Whether only this machine can reach a socket."""
    return ipaddress.ip_address(held.getsockname()[0].partition("%")[0]).is_loopback


def _names(address: Address, *, local: bool) -> set[str]:
    """The host names that the page answers to."""
    own = {"localhost", "127.0.0.1", "::1"} | (set() if local else {socket.gethostname()})
    return {name.lower() for name in (*own, address.host, *address.names)}


def _server(access: Access, leave: Callable[[], object]) -> "uvicorn.Server":
    """The HTTP server; on Ctrl-C it lets its callers go first."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            leave()
            super().handle_exit(sig, frame)

    settings: dict[str, Any] = {"lifespan": "off", "loop": "asyncio", "http": "h11", "ws": "none"}
    quiet: dict[str, Any] = {"log_config": None, "log_level": "error", "access_log": False, "server_header": False}
    return Server(uvicorn.Config(access, **settings, **quiet, timeout_graceful_shutdown=5, limit_concurrency=256))
