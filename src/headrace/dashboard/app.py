"""The application: its routes, its templates, and the stream that tells pages of changes."""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.dashboard import datasets, events, graph, pipelines, proofs, topics, updates
from headrace.dashboard.guard import METRICS, Guard
from headrace.dashboard.metrics import IndexMetrics
from headrace.dashboard.site import PipelineView, Site
from headrace.dashboard.texts import FILTERS, address, command, remedy
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from starlette.requests import Request

_HERE = Path(__file__).parent
_STATIC = _HERE / "static"
_FIRST_S = 0.15  # the longest wait of a page for the first status of a storage
_TICK_S = 0.4  # Pages are told of changes so often at most
_PING_S = 20
_TABS = (
    ("", "Graph"),
    ("updates", "Updates"),
    ("events", "Events"),
    ("topics", "Topics"),
    ("proof", "Proof"),
)

Build = Callable[[Any, "Request"], Mapping[str, Any]]
PAGES: tuple[tuple[str, str, Build], ...] = (
    ("", "graph.html", graph.page),
    ("/dataset", "dataset.html", datasets.page),
    ("/rows", "rows.html", datasets.rows),
    ("/rejected", "rows.html", datasets.rejected),
    ("/commit", "commit.html", datasets.commit),
    ("/updates", "updates.html", updates.listing),
    ("/update", "update.html", updates.page),
    ("/events", "events.html", events.listing),
    ("/event", "event.html", events.page),
    ("/facts", "facts.html", events.facts),
    ("/topics", "topics.html", topics.listing),
    ("/topic", "topic.html", topics.page),
    ("/records", "rows.html", topics.records),
    ("/proof", "proof.html", proofs.page),
)
"""The pages and fragments of a pipeline: path, template, and what fills it."""
DATA: tuple[tuple[str, Build], ...] = (
    ("/graph.json", graph.data),
    ("/series.json", datasets.series),
    ("/gantt.json", updates.gantt),
    ("/names.json", graph.names),
)


def build_app(site: Site, token: str, hosts: Iterable[str] = (), cookie: str = "headrace") -> Guard:
    """The application behind its guard, which sees each request before any route does."""
    pages = _Pages(site)
    routes = [
        Route("/", pages.home, methods=["GET"]),
        Route("/live", partial(_live, site), methods=["GET"]),
        Route(METRICS, pages.metrics, methods=["GET"]),
        Route("/static/{file}", _static, methods=["GET"]),
    ]
    routes += [
        Route(f"/p/{{pipeline}}{path or '/'}", partial(pages.page, template, build), methods=["GET"])
        for path, template, build in PAGES
    ]
    routes += [
        Route(f"/p/{{pipeline}}{path}", partial(pages.data, build), methods=["GET"]) for path, build in DATA
    ]
    handlers: Any = {HTTPException: pages.refused, HeadraceError: pages.failed, Exception: pages.broken}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.router.redirect_slashes = False
    return Guard(app, token, tuple(hosts), cookie, site.settings.metrics_token)


class _Pages:
    def __init__(self, site: Site) -> None:
        self._site = site
        self._metrics = IndexMetrics(site.watcher)
        self._templates = Environment(
            loader=FileSystemLoader(_HERE / "templates"),
            autoescape=True,
            finalize=self._without_secrets,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        # Their results are HTML, in which a secret can be escaped: it is replaced before.
        in_commands = {one.__name__: self._redacting(one) for one in (command, remedy)}
        self._templates.filters |= {**FILTERS, **in_commands}
        self._templates.globals |= {"address": address, "tabs": _TABS, "site": site}

    async def metrics(self, request: Request) -> Response:
        return await run_in_threadpool(self._metrics.answer)

    async def home(self, request: Request) -> Response:
        return await self._answer(request, "pipelines.html", pipelines.page, self._site)

    async def page(self, template: str, build: Build, request: Request) -> Response:
        view = await run_in_threadpool(self._site.pipeline, request)
        return await self._answer(request, template, build, view)

    async def data(self, build: Build, request: Request) -> Response:
        view = await run_in_threadpool(self._site.pipeline, request)
        self._site.watcher.touch()
        return JSONResponse(self._redacted(await run_in_threadpool(build, view, request)))

    async def _answer(
        self, request: Request, template: str, build: Build, subject: Site | PipelineView
    ) -> Response:
        watcher = self._site.watcher
        watcher.touch()

        def render() -> str:
            watcher.is_ready.wait(_FIRST_S)
            view = subject if isinstance(subject, PipelineView) else None
            # A change during the rendering is told to the page again.
            revision = watcher.revision
            found = {
                "view": view,
                "revision": revision,
                "query": request.query_params,
                **build(subject, request),
            }
            return self._templates.get_template(template).render(found)

        return Response(await run_in_threadpool(render), media_type="text/html")

    def _without_secrets(self, value: Any) -> Any:
        """A value of a template as it is printed."""
        is_text = isinstance(value, str) and not isinstance(value, Markup)
        return self._site.settings.redactor(value) if is_text else value

    def _redacting(self, filter: Callable[[str], Markup]) -> Callable[[str], Markup]:
        return lambda text: filter(self._site.settings.redactor(text))

    def _redacted(self, data: Mapping[str, Any]) -> Any:
        return self._site.settings.redactor.data(dict(data))

    def _error(
        self, request: Request, status: int, title: str, error: Mapping[str, Any] | None = None
    ) -> Response:
        # A button gets a part of a page.
        is_part = request.headers.get("hx-request") == "true"
        page = self._templates.get_template("error_part.html" if is_part else "error.html")
        text = page.render(title=title, error=error, view=None, revision=self._site.watcher.revision)
        return Response(text, status, media_type="text/html")

    async def refused(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return self._error(request, error.status_code, error.detail)

    async def failed(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HeadraceError)
        shown = self._site.settings.redactor.error(error)
        return self._error(request, 503 if error.transient else 500, shown.summary, shown.to_dict())

    async def broken(self, request: Request, error: Exception) -> Response:
        return self._error(
            request, 500, f"The page failed: {type(error).__name__}. The terminal has the details."
        )


async def _live(site: Site, request: Request) -> Response:
    """Tells a page, a few times a second at most, that something has changed."""

    async def changes() -> AsyncIterator[ServerSentEvent]:
        known = -1
        while not site.watcher.index.stopped.is_set():
            site.watcher.touch()
            if (revision := site.watcher.revision) != known:
                known = revision
                yield ServerSentEvent(str(revision), event="changed")
            await asyncio.sleep(_TICK_S)

    return EventSourceResponse(changes(), ping=_PING_S)


_FILES = {file.name: file for file in _STATIC.iterdir() if file.is_file()} if _STATIC.is_dir() else {}
"""The files that a browser may get: no path of a request reaches the disk."""


async def _static(request: Request) -> Response:
    file = _FILES.get(request.path_params["file"])
    if file is None:
        raise HTTPException(404, "The dashboard has no file of this name.")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return Response(await run_in_threadpool(file.read_bytes), media_type=kind)
