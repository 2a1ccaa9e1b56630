"""What every request passes before any route: the host, the method, the origin and the token."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, quote, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from headrace.model.network import is_bearer, is_loopback

METRICS = "/metrics"
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::(\d{1,5}))?")
_CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": _CSP,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""The headers of every response, also of refusals."""
NO_TOKEN = "This dashboard opens with the link that `headrace ui` has printed. Open that link again.\n"


@dataclass(frozen=True)
class Guard:
    """The outermost application. It answers a request that it refuses itself."""

    app: ASGIApp
    token: str = field(repr=False)
    hosts: Iterable[str] = ()  # hosts beside those of this machine
    cookie: str = "headrace"  # one for each port: browsers share cookies among the ports of a host
    metrics_token: str | None = field(default=None, repr=False)  # opens the metrics alone

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            answer = self._refusal(scope)
            await (answer or self.app)(scope, receive, _guarded(send))

    def _refusal(self, scope: Scope) -> Response | None:
        """The answer to a request that no route may see; ``None`` if it may go on."""
        headers = Headers(scope=scope)
        if not self._is_own_host(headers.getlist("host")):
            return PlainTextResponse("The Host header names another host.\n", 421)
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("This dashboard only reads.\n", 405, {"allow": "GET, HEAD"})
        if not self._is_own_origin(headers):
            return PlainTextResponse("The request comes from another site.\n", 403)
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if given := [value for name, value in query if name == "token"]:
            if not all(map(self._is_token, given)):
                return PlainTextResponse(NO_TOKEN, 401)
            return self._opened(scope, [one for one in query if one[0] != "token"])
        if not (self._is_token(_cookie(headers, self.cookie)) or self._is_scraper(scope, headers)):
            return PlainTextResponse(NO_TOKEN, 401)
        return None

    def _opened(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Keep the token as a cookie, and lead to the same page without it."""
        path = "/" + quote(scope["path"].lstrip("/\\"), safe="/")
        answer = RedirectResponse(path + (f"?{urlencode(query)}" if query else ""), 303)
        # A browser does not send a strict cookie after this redirect if the link was clicked on a page of
        # another site. The dashboard only reads, and `_is_own_origin` refuses what such a page itself loads.
        answer.set_cookie(self.cookie, self.token, httponly=True, samesite="lax", path="/")
        return answer

    def _is_token(self, given: str | None) -> bool:
        return given is not None and secrets.compare_digest(given.encode(), self.token.encode())

    def _is_scraper(self, scope: Scope, headers: Headers) -> bool:
        """Whether a scraper asks for the metrics with a token that opens them."""
        tokens = [one for one in (self.token, self.metrics_token) if one is not None]
        return scope["path"] == METRICS and any(
            is_bearer(headers.get("authorization"), one) for one in tokens
        )

    def _is_own_host(self, given: list[str]) -> bool:
        found = _HOST.fullmatch(given[0]) if len(given) == 1 else None
        return found is not None and self._knows(found[1].strip("[]"))

    def _is_own_origin(self, headers: Headers) -> bool:
        """Whether a browser has sent the request for a page of ours, or for a link that a person opens."""
        origins = headers.getlist("origin")
        if origins:
            # Another port of this machine is another site, too.
            own = headers["host"].lower()
            return [one.lower() for one in origins] in ([f"http://{own}"], [f"https://{own}"])
        is_opened = (headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")) == ("navigate", "document")
        return is_opened or headers.get("sec-fetch-site", "none") in ("same-origin", "none")

    def _knows(self, host: str) -> bool:
        return is_loopback(host) or host.lower() in {one.lower() for one in self.hosts}


def _cookie(headers: Headers, name: str) -> str | None:
    """The value of a cookie. Others of this host can have any form, and hide none."""
    for line in headers.getlist("cookie"):
        if (found := cookie_parser(line).get(name)) is not None:
            return found
    return None


def _guarded(send: Send) -> Send:
    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(HEADERS)
        await send(message)

    return send_guarded
