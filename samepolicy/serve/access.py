"""Who may ask the live page: this machine's browsers under this machine's names, and holders of the token elsewhere."""

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Collection, MutableMapping
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from typing import Any, TypeAlias
from urllib.parse import parse_qs

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCKED = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
"""The Content-Security-Policy of everything that has no other."""

HEADERS = {
    "content-security-policy": LOCKED,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer that does not set them itself; there are none that let another origin read it."""

_PATH = re.compile(r"/(step/-?\d{1,18})?")
_PORT = re.compile(r":\d{1,5}$")


@dataclass(frozen=True, kw_only=True)
class Access:
    """An ASGI application that lets another one answer only those who may ask.

    Attributes:
        app: the one that answers.
        names: host names that this server answers to, lower case.
        addresses: whether it answers to any IP address, which no name can be rebound to.
        token: what a caller has to know; empty where nothing is asked.
        port: the port, which the cookie is named by, since browsers share cookies among ports.
    """

    app: App
    names: Collection[str]
    addresses: bool = False
    token: str = field(default="", repr=False)
    port: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, refuse, or hand over."""
        if scope["type"] != "http":
            return
        headers = [(k.decode("latin-1").lower(), v.decode("latin-1")) for k, v in scope["headers"]]
        sent = _with_headers(send)
        refusal = self._refusal(scope, headers)
        if refusal is not None:
            await _answer(sent, *refusal)
        else:
            await self.app(scope, receive, sent)

    def _refusal(self, scope: Scope, headers: list[tuple[str, str]]) -> tuple[int, str, dict[str, str]] | None:
        """Status, sentence and headers for a caller who may not ask; None for one who may."""
        hosts = [value for name, value in headers if name == "host"]
        if len(hosts) != 1 or not self.knows(hosts[0]):
            return 421, "This server does not answer to that host name; use the address that it printed.", {}
        if _from_elsewhere(dict(headers)):
            return 403, "Another site may not ask for this.", {}
        if not self.token or self._knows_token(headers):
            return None
        given = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])
        if len(given) == 1 and _equal(given[0], self.token):
            path = str(scope["path"]) if _PATH.fullmatch(str(scope["path"])) else "/"
            cookie = f"{self._cookie}={self._secret}; Path=/; HttpOnly; SameSite=Lax"
            return 303, "", {"location": path, "set-cookie": cookie}
        return 401, "This page asks for its token; open the address that `samepolicy serve` printed.", {}

    def knows(self, host: str) -> bool:
        """Whether a Host header names this server.

        >>> access = Access(app=print, names={"localhost"})
        >>> access.knows("localhost:8765"), access.knows("evil.example"), access.knows("localhost.evil.example")
        (True, False, False)
        """
        name = _PORT.sub("", host.lower())
        bare = name[1:-1] if name.startswith("[") and name.endswith("]") else name
        if bare in self.names:
            return True
        try:
            address = ipaddress.ip_address(bare)
        except ValueError:
            return False
        return self.addresses or (address.is_loopback and "localhost" in self.names)

    def _knows_token(self, headers: list[tuple[str, str]]) -> bool:
        """Whether a caller sends the token, or the cookie that it got for it."""
        found = dict(headers)
        kind, _, given = found.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given.strip(), self.token):
            return True
        cookies: SimpleCookie = SimpleCookie()
        try:
            cookies.load("; ".join(value for name, value in headers if name == "cookie"))
        except CookieError:
            return False
        held = cookies.get(self._cookie)
        return held is not None and _equal(held.value, self._secret)

    @property
    def _cookie(self) -> str:
        """The cookie's name."""
        return f"samepolicy-{self.port}"

    @property
    def _secret(self) -> str:
        """What the cookie holds: made from the token, which cannot be had from it."""
        return hmac.new(self.token.encode(), b"samepolicy serve", hashlib.sha256).hexdigest()


def _equal(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode("utf-8", "replace"))


def _from_elsewhere(headers: dict[str, str]) -> bool:
    """Whether a page of another origin asks, other than by a link that a person followed."""
    if headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
        return False
    return (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) != ("navigate", "document")


def _with_headers(send: Send) -> Send:
    """Add the headers that every answer has."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            given = list(message.get("headers", ()))
            set_already = {bytes(name).lower() for name, _ in given}
            given += [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in set_already]
            message["headers"] = given
        await send(message)

    return sent


async def _answer(send: Send, status: int, sentence: str, headers: dict[str, str]) -> None:
    """A short answer in plain text."""
    body = f"{sentence}\n".encode() if sentence else b""
    given = {"content-type": "text/plain; charset=utf-8", "content-length": str(len(body)), **headers}
    start = [(name.encode(), value.encode("latin-1")) for name, value in given.items()]
    await send({"type": "http.response.start", "status": status, "headers": start})
    await send({"type": "http.response.body", "body": body})
