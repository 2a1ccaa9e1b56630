"""Pages that show where the columns of a dataset come from, and the path of a column."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from lineage_definitions import definitions, rows_of

from headrace.dashboard.server import Address, Dashboard, serving
from headrace.declare.spec import load_project
from headrace.observe.event_table import EventTable
from waiting import until

Get = Callable[[str], requests.Response]


@pytest.fixture
def get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Get]:
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: none.py}]\n")
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    settings = load_project(tmp_path)
    EventTable(settings.storage.events).append(rows_of(definitions(), datetime.now(UTC)))
    dashboard = Dashboard(settings, Address(port=0), token="t")
    with serving(dashboard), requests.Session() as session:
        home = f"http://127.0.0.1:{dashboard.port}"
        session.get(f"{home}/?token=t", timeout=10)
        until(lambda: dashboard.site.index.progress.done == 1, "the index was not made")
        yield lambda path: session.get(f"{home}/p/shop/{path}", timeout=10)


def cells(page: str, column: str) -> str:
    """The row of a column in the table of columns, without its tags."""
    found = re.search(rf"<tr><th scope=\"row\"><a[^>]*><code>{column}</code>.*?</tr>", page, re.DOTALL)
    assert found is not None, page
    return " ".join(re.sub(r"<[^>]+>", " ", found[0]).split())


def test_each_column_has_what_it_comes_from(get: Get) -> None:
    page = get("dataset?name=default.revenue").text
    assert cells(page, "total") == "total orders.amount aggregation"
    assert cells(page, "n") == "n no column"
    assert "/p/shop/?name=default.orders&amp;column=amount" in page
    rows = re.search(r"Which rows:(.*?)</p>", page, re.DOTALL)
    assert rows is not None and "orders.customer" in rows[1] and "group by" in rows[1]
    assert "<script>" not in page


def test_the_graph_shows_the_path_of_a_column(get: Get) -> None:
    found: dict[str, Any] = get("graph.json?name=default.revenue&column=total").json()
    columns = {one["id"]: one["columns"] for one in found["nodes"]}
    assert columns == {
        "default.orders": ["amount"],
        "default.revenue": ["total"],
        "default.report": ["value"],
        "default.cities": [],
        "source kafka orders": ["value.amount"],
    }
    assert sorted(map(tuple, found["path"])) == [
        ("default.orders", "default.revenue"),
        ("default.revenue", "default.report"),
        ("source kafka orders", "default.orders"),
    ]
    page = get("?name=default.revenue&column=total").text
    assert "The path of <code>revenue.total</code>" in page
    assert "graph.json?name=default.revenue&amp;column=total" in page
    assert "on the path: amount" in page


@pytest.mark.parametrize("query", ["", "?name=default.revenue", "?name=none&column=x"])
def test_the_whole_graph_without_a_known_column(get: Get, query: str) -> None:
    found = get(f"graph.json{query}").json()
    assert "path" not in found and "columns" not in found["nodes"][0]
    assert get(query).status_code == 200
