"""Rows as requests to a web hook."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.project.pipeline import Pipeline
from hook_server import Hook, running_hook
from landing import Site

pytestmark = pytest.mark.usefixtures("spark")

ALERTS = """
import headrace as hr

hr.create_sink("hook", "http", OPTIONS)

@hr.append_flow(target="hook")
def alert():
    return hr.read_files("landing", format="json", schema="id LONG, text STRING")
"""


@pytest.fixture
def hook() -> Iterator[Hook]:
    with running_hook() as one:
        yield one


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


def write(site: Site, hook: Hook, **more: str) -> None:
    site.write(ALERTS.replace("OPTIONS", repr({"url": hook.url, **more})))


def ids(hook: Hook) -> list[int]:
    return sorted(one["id"] for one in hook.rows)


def test_each_row_is_a_signed_request(site: Site, hook: Hook) -> None:
    write(site, hook, **{"sign_with": "a long word", "header.X-Team": "data"})
    site.put("a.json", {"id": 1, "text": "grün"}, {"id": 2}, {"id": 2})
    site.run_well()
    assert ids(hook) == [1, 2, 2]
    assert {"id": 1, "text": "grün"} in hook.rows and {"id": 2, "text": None} in hook.rows
    for one in hook.taken:
        digest = hmac.new(b"a long word", one.body, hashlib.sha256).hexdigest()
        assert one.headers["x-headrace-signature"] == f"sha256={digest}"
        assert one.headers["x-team"] == "data"


def test_several_rows_are_one_request(site: Site, hook: Hook) -> None:
    write(site, hook, rows="10")
    site.put("a.json", *({"id": number} for number in range(25)))
    site.run_well()
    assert sorted(row["id"] for one in hook.taken for row in one.row) == list(range(25))
    assert len(hook.taken) < 25


def test_a_receiver_that_is_busy_is_asked_again(site: Site, hook: Hook) -> None:
    write(site, hook)
    busy = [503, 429, 500]
    hook.answer = lambda request: busy.pop() if busy else 200
    site.put("a.json", {"id": 1})
    site.run_well()
    assert ids(hook) == [1] and not busy
    assert {one.key for one in hook.refused} == {hook.taken[0].key}


def test_a_repeated_batch_has_the_same_keys(site: Site, hook: Hook) -> None:
    write(site, hook, retries="1")
    answers = iter([500] * 4)
    hook.answer = lambda request: next(answers, 200) if request.row["id"] == 3 else 200
    site.put("a.json", {"id": 1}, {"id": 2}, {"id": 2}, {"id": 3})
    site.run()
    site.run_well()
    assert len(hook.taken) > 4 and ids(hook) == [1, 2, 2, 3]


def test_a_row_that_the_receiver_refuses_goes_to_the_quarantine(site: Site, hook: Hook) -> None:
    write(site, hook)
    hook.answer = lambda request: 422 if request.row["id"] == 3 else 200
    site.put("a.json", *({"id": number} for number in range(1, 8)))
    site.run_well()
    assert ids(hook) == [1, 2, 4, 5, 6, 7]
    with Pipeline.load(site.root) as pipeline:
        rejected = pipeline.quarantine.show("hook")
    assert rejected is not None and "422" in str(rejected.arrow.to_pylist()), rejected


@pytest.mark.parametrize("status", [302, 401])
def test_a_receiver_that_refuses_all_stops_the_flow(site: Site, hook: Hook, status: int) -> None:
    write(site, hook)
    hook.answer = lambda request: status
    site.put("a.json", {"id": 1})
    error = site.error()
    assert error.code == "SINK_INVALID" and str(status) in error.summary, error
    hook.answer = lambda request: 200
    site.run_well()
    assert ids(hook) == [1]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"method": "", "timout": "3"}, "timeout"),
        ({"rows": "none"}, "rows"),
        ({"url": "hook"}, "address"),
        ({"url": "http://[x/"}, "address"),
        ({"header.X": "a\nb"}, "ASCII"),
        ({"header.X T": "a"}, "X T"),
    ],
)
def test_a_plan_says_which_option_is_wrong(site: Site, hook: Hook, more: dict[str, str], says: str) -> None:
    write(site, hook, **more)
    with Pipeline.load(site.root) as pipeline:
        (error,) = pipeline.plan().refusals
    assert says in str(error)
