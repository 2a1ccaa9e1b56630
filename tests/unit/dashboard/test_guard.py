"""What no route may see: other hosts, other sites, other methods, and requests without the token."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from headrace.dashboard.app import DATA, PAGES
from headrace.dashboard.guard import HEADERS
from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project
from headrace.errors import ArgumentInvalidError

TOKEN = "a-token-of-this-test"


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dashboard]:
    """The dashboard of a storage that holds nothing yet."""
    root = tmp_path_factory.mktemp("empty")
    (root / "headrace.yml").write_text("name: empty\nlibraries: [{file: none.py}]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HEADRACE_CACHE", str(root / "cache"))
        settings = load_project(root)
        found = Dashboard(settings, Address(port=0, allowed=("proxy.example",)), token=TOKEN)
        with serving(found):
            yield found


def ask(dashboard: Dashboard, path: str = "/", method: str = "GET", **headers: str) -> requests.Response:
    sent = {"Cookie": f"headrace_{dashboard.port}={TOKEN}"}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    return requests.request(
        method, f"http://127.0.0.1:{dashboard.port}{path}", headers=sent, allow_redirects=False, timeout=10
    )


def every_path(dashboard: Dashboard) -> list[str]:
    """An address of each route that the application has."""
    app: Any = dashboard._server.config.app
    paths = [one.path for one in app.app.routes]
    assert len(paths) == len(PAGES) + len(DATA) + 4
    return [one.replace("{pipeline}", "empty").replace("{file}", "ui.css") for one in paths]


def test_every_route_refuses_a_request_without_the_token(dashboard: Dashboard) -> None:
    for path in every_path(dashboard):
        for cookie in ("", f"headrace_{dashboard.port}=wrong", f"headrace={TOKEN}"):
            answer = ask(dashboard, path, Cookie=cookie)
            assert answer.status_code == 401, path
            assert TOKEN not in answer.text
        assert ask(dashboard, f"{path}?token=wrong").status_code == 401, path


def test_every_route_refuses_another_host_and_another_site(dashboard: Dashboard) -> None:
    own = f"http://127.0.0.1:{dashboard.port}"
    for path in every_path(dashboard):
        for host in ("evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "", "127.0.0.1:x"):
            assert ask(dashboard, path, Host=host).status_code == 421, (path, host)
        for origin in (
            "http://evil.example",
            "null",
            "http://127.0.0.1:1",
            f"{own}.evil.example",
            "http://[bad",
            "",
        ):
            assert ask(dashboard, path, Origin=origin).status_code == 403, (path, origin)
        assert ask(dashboard, path, Sec_Fetch_Site="cross-site", Sec_Fetch_Mode="no-cors").status_code == 403
        assert ask(dashboard, path, Sec_Fetch_Site="same-site", Sec_Fetch_Mode="cors").status_code == 403


def test_a_bearer_token_opens_the_metrics_alone(dashboard: Dashboard) -> None:
    for path in every_path(dashboard):
        answer = ask(dashboard, path, Cookie="", Authorization=f"Bearer {TOKEN}")
        assert answer.status_code == (200 if path == "/metrics" else 401), path


def test_every_route_only_reads(dashboard: Dashboard) -> None:
    for path in every_path(dashboard):
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"):
            assert ask(dashboard, path, method).status_code == 405, (path, method)
        if path != "/live":
            assert ask(dashboard, path, "HEAD").content == b""


def test_every_answer_has_the_headers_that_keep_a_page_safe(dashboard: Dashboard) -> None:
    for path in [*every_path(dashboard), "/no/such/page", "/static/none.js"]:
        if path == "/live":
            continue
        for answer in (ask(dashboard, path), ask(dashboard, path, Cookie=""), ask(dashboard, path, "POST")):
            assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS, path
            assert "access-control-allow-origin" not in answer.headers
    assert "unsafe" not in HEADERS["content-security-policy"]
    assert HEADERS["content-security-policy"].startswith("default-src 'none'")


def test_the_link_is_kept_as_a_cookie_and_leaves_the_address(dashboard: Dashboard) -> None:
    answer = ask(dashboard, f"/p/empty/events?level=warn&token={TOKEN}", Cookie="")
    assert answer.status_code == 303
    assert answer.headers["location"] == "/p/empty/events?level=warn"
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"headrace_{dashboard.port}={TOKEN};")
    assert "HttpOnly" in cookie and "SameSite=lax" in cookie
    # A link cannot lead to another host.
    for path in ("//evil.example/", "/%2F%2Fevil.example/", "/%5C%5Cevil.example/"):
        assert ask(dashboard, f"{path}?token={TOKEN}").headers["location"].startswith("/evil.example/")


@pytest.mark.parametrize("odd", ['prefs={"a":1}', "a=b c", "alone", 'open="quote', "=", "[x]=1"])
def test_other_cookies_of_this_machine_do_not_hide_the_token(dashboard: Dashboard, odd: str) -> None:
    own = f"headrace_{dashboard.port}={TOKEN}"
    for cookies in (f"{odd}; {own}", f"{own}; {odd}", f"{odd}; {own}; {odd}"):
        assert ask(dashboard, Cookie=cookies).status_code == 200, cookies


def test_the_link_opens_from_a_page_of_another_site_which_can_load_nothing(dashboard: Dashboard) -> None:
    opened = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    first = ask(dashboard, f"/?token={TOKEN}", Cookie="", **opened)
    assert first.status_code == 303 and "SameSite=lax" in first.headers["set-cookie"]
    assert ask(dashboard, first.headers["location"], **opened).status_code == 200
    for kind in ("iframe", "script", "image"):
        assert ask(dashboard, **(opened | {"Sec_Fetch_Dest": kind})).status_code == 403, kind


def test_the_stream_needs_the_token_and_tells_of_changes(dashboard: Dashboard) -> None:
    url = f"http://127.0.0.1:{dashboard.port}/live"
    assert requests.get(url, timeout=10).status_code == 401
    cookies = {f"headrace_{dashboard.port}": TOKEN}
    with requests.get(url, cookies=cookies, stream=True, timeout=10) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert next(answer.iter_lines()) == b"event: changed"


def test_a_proxy_is_a_known_host_only_if_it_is_named(dashboard: Dashboard) -> None:
    assert ask(dashboard, Host="proxy.example").status_code == 200
    assert ask(dashboard, Host="proxy.example", Origin="https://proxy.example").status_code == 200
    assert ask(dashboard, Host="other.example").status_code == 421


def test_no_path_of_a_request_reaches_the_disk(dashboard: Dashboard) -> None:
    for path in (
        "/static/..%2f..%2fguard.py",
        "/static/%2e%2e/guard.py",
        "/static//etc/passwd",
        "/static/..%5cguard.py",
        "/static/ui.css%00.js",
        "/static/%2fetc%2fpasswd",
        "/static/",
    ):
        assert ask(dashboard, path).status_code == 404, path
    for name in ("../../etc/passwd", "..", "a/b", '"><script>alert(1)</script>', "default.none"):
        answer = ask(dashboard, f"/p/empty/dataset?name={requests.utils.quote(name, safe='')}")
        assert answer.status_code == 404, name
        assert "<script>alert" not in answer.text
        if name != "..":  # which clients resolve
            assert ask(dashboard, f"/p/{requests.utils.quote(name, safe='')}/").status_code == 404, name
    assert ask(dashboard, "/p/empty/event?id=x").status_code == 404
    assert ask(dashboard, "/p/empty/dataset").status_code == 404


def test_an_empty_storage_has_pages_that_say_what_to_do(dashboard: Dashboard) -> None:
    assert "headrace run" in ask(dashboard, "/p/empty/").text
    assert "headrace verify" in ask(dashboard, "/p/empty/proof").text
    for path in ("/", "/p/empty/updates", "/p/empty/events", "/p/empty/topics"):
        assert ask(dashboard, path).status_code == 200, path


def test_a_taken_port_is_an_error_with_a_remedy(dashboard: Dashboard, tmp_path: Path) -> None:
    with pytest.raises(ArgumentInvalidError) as raised:
        Dashboard(dashboard.settings, Address(port=dashboard.port))
    assert raised.value.params["value"] == str(dashboard.port)


@pytest.mark.parametrize("host", ["", " ", "192.0.2.1"])
def test_a_host_that_is_not_of_this_machine_is_an_error_of_the_host(dashboard: Dashboard, host: str) -> None:
    with pytest.raises(ArgumentInvalidError) as raised:
        Dashboard(dashboard.settings, Address(host=host, port=0))
    assert raised.value.params == {"argument": "host", "value": host}
    assert "port" not in raised.value.summary


def test_a_cache_that_is_not_a_folder_is_an_error(
    dashboard: Dashboard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ArgumentInvalidError) as raised:
        Dashboard(dashboard.settings, Address(port=0))
    assert raised.value.params["argument"] == "HEADRACE_CACHE"


@pytest.mark.parametrize(("host", "is_loopback"), [("127.0.0.1", True), ("::1", True), ("0.0.0.0", False)])
def test_only_this_machine_is_loopback(host: str, is_loopback: bool) -> None:
    assert Address(host=host).is_loopback is is_loopback
