"""The live page's addresses: the page, its data, what is new, and the report of a step."""

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from samepolicy.errors import SamePolicyError
from samepolicy.serve import page
from samepolicy.serve.bell import Bell
from samepolicy.serve.reports import EndedError, Page, Reports
from samepolicy.serve.watch import Watch

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HEARTBEAT = 15.0
"""Seconds of silence after which a stream shows that it is alive, and notices a page that has gone."""

MOST = 64
"""Series that a page may ask for."""


def app(watch: Watch, reports: Reports, bell: Bell, *, title: str) -> "Starlette":
    """The application.

    Args:
        watch: what fills the history that is shown; it should already be started.
        reports: what renders the report of a step.
        bell: what wakes the streams; rung at every change of the history.
        title: what the run is called.
    """
    from starlette.applications import Starlette
    from starlette.routing import Route

    site = Site(watch, reports, bell, title)
    watch.history.told = bell.ring
    return Starlette(
        routes=[
            Route("/", site.home),
            Route("/data", site.data),
            Route("/events", site.events),
            Route("/step/{step}", site.step),
            Route("/step/{step}/{way}", site.beside),
            Route("/static/{name}", site.static),
            Route("/favicon.ico", site.icon),
        ],
        exception_handlers={404: _missing, 405: _missing},
    )


class Site:
    """What answers at each address."""

    def __init__(self, watch: Watch, reports: Reports, bell: Bell, title: str) -> None:
        self.watch, self.reports, self.bell, self.title = watch, reports, bell, title

    async def home(self, request: "Request") -> "Response":
        """The page."""
        from starlette.responses import Response

        content = page.home(self.title)
        return Response(content, media_type="text/html", headers={"content-security-policy": page.POLICY})

    async def data(self, request: "Request") -> "Response":
        """All steps, for the series asked for."""
        series = _series(request)
        found = await asyncio.to_thread(self.watch.history.everything, series)
        return _zipped(request, json.dumps(found, allow_nan=False).encode(), "application/json")

    async def events(self, request: "Request") -> "Response":
        """What is new, as it comes."""
        from starlette.responses import StreamingResponse

        told = request.headers.get("last-event-id") or request.query_params.get("since", "")
        epoch, _, revision = told.partition("-")
        stream = self._stream(epoch, int(revision) if revision.isdecimal() else -1, _series(request))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _stream(self, epoch: str, revision: int, series: list[str]) -> AsyncIterator[str]:
        """Events until the page goes away or the server ends."""
        yield "retry: 1500\n\n"
        with self.bell.listening() as heard:
            while not self.bell.closed:
                heard.clear()
                found = self.watch.history.since(epoch, revision, series)
                if found is not None:
                    epoch, revision = found["epoch"], found["revision"]
                    yield f"id: {epoch}-{revision}\ndata: {json.dumps(found, allow_nan=False)}\n\n"
                try:
                    await asyncio.wait_for(heard.wait(), HEARTBEAT)
                except TimeoutError:
                    yield ": still here\n\n"

    async def step(self, request: "Request") -> "Response":
        """The report of a step."""
        number = _number(request)
        if number is None:
            return _said(404, "There is no such step.")
        try:
            found = await asyncio.shield(asyncio.wrap_future(self.reports.ask(number)))
        except EndedError:
            return _said(503, "The server ends.")
        except SamePolicyError as error:
            return _said(404, str(error))
        except Exception as error:
            return _said(500, f"The report of step {number} could not be made ({type(error).__name__}: {error}).")
        return _report(request, found)

    async def beside(self, request: "Request") -> "Response":
        """The way to the next or the previous step that there is; to the whole run where there is none."""
        from starlette.responses import RedirectResponse

        number, way, steps = _number(request), request.path_params["way"], self.watch.history.steps()
        if number is None or way not in ("next", "previous"):
            return _said(404, "There is no such page.")
        after = [s for s in steps if s > number] if way == "next" else [s for s in reversed(steps) if s < number]
        return RedirectResponse(f"/step/{after[0]}" if after else "/", 303)

    async def static(self, request: "Request") -> "Response":
        """A script or style sheet, from a fixed list."""
        found = page.static().get(request.path_params["name"])
        if found is None:
            return _said(404, "There is no such file.")
        kept = "private, max-age=31536000, immutable" if request.query_params.get("v") == found.tag else "no-cache"
        return _zipped(request, found.content, found.kind, zipped=found.zipped, kept=kept)

    async def icon(self, request: "Request") -> "Response":
        """The browser's picture for the tab."""
        from starlette.responses import Response

        return Response(page.ICON, media_type="image/svg+xml", headers={"cache-control": "private, max-age=86400"})


async def _missing(_: "Request", error: Any) -> "Response":
    """Addresses and methods that there are not."""
    return _said(error.status_code, "There is no such page." if error.status_code == 404 else "Only GET is answered.")


def _number(request: "Request") -> int | None:
    """The step of an address; None where it is no whole number."""
    text = request.path_params["step"]
    return int(text) if text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 19 else None


def _series(request: "Request") -> list[str]:
    """The series that a page asks for; names that there are not have no value at any step."""
    names = request.query_params.get("series", "").split(",")
    return [name for name in dict.fromkeys(names) if name][:MOST]


def _said(status: int, sentence: str) -> "Response":
    """A sentence in plain text."""
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(f"{sentence}\n", status)


def _zipped(
    request: "Request", content: bytes, kind: str, *, zipped: bytes | None = None, kept: str = "no-store"
) -> "Response":
    """An answer, compressed where the caller reads that."""
    from starlette.responses import Response

    headers = {"cache-control": kept, "vary": "Accept-Encoding"}
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(content, media_type=kind, headers=headers)
    body = gzip.compress(content, compresslevel=1) if zipped is None else zipped
    return Response(body, media_type=kind, headers=headers | {"content-encoding": "gzip"})


def _report(request: "Request", found: Page) -> "Response":
    """A report; nothing where the caller has it already."""
    from starlette.responses import Response

    headers = {"content-security-policy": found.policy, "etag": found.tag, "cache-control": "private, no-cache"}
    headers |= {"vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.content, media_type="text/html", headers=headers | {"content-encoding": "gzip"})
    return Response(gzip.decompress(found.content), media_type="text/html", headers=headers)
