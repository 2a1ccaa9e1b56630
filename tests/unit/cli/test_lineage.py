"""`headrace lineage`: what it prints of the recorded lineage, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lineage_definitions import definitions, rows_of

from headrace.declare.spec import load_project
from headrace.observe.event_table import EventTable
from headrace.project.last_results import keep_result
from headrace.storage.layout import Storage

Call = Callable[..., Any]


@pytest.fixture(autouse=True)
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: shop.py}]\n")
    return tmp_path


@pytest.fixture
def planned(pipeline: Path) -> None:
    settings = load_project(pipeline / "headrace.yml")
    keep_result(settings, "plan", {"definitions": definitions()})


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


def edges(found: Any) -> set[str]:
    return {
        f"{one['from']['dataset'] or one['from']['source']}.{one['from']['column']} "
        f"{one['way']} {one['to']['dataset']}.{one['to']['column']}"
        for one in found
    }


@pytest.mark.usefixtures("planned")
def test_all_datasets_with_what_they_read(headrace: Call) -> None:
    _, _, *rows = lines(headrace("lineage").out)
    assert rows == [
        "orders streaming table 4 kafka orders",
        "revenue materialized view 4 orders",
        "report sink 2 revenue",
        "cities temporary view 4 kafka orders",
    ]


@pytest.mark.usefixtures("planned")
def test_columns_of_a_dataset(headrace: Call) -> None:
    shown = lines(headrace("lineage", "revenue").out)
    assert "total orders.amount aggregation" in shown
    assert "n no column -" in shown
    assert "(which rows) orders.customer group by" in shown
    assert "customer report.who transformation, masked" in shown
    assert "through the temporary views cities" in shown
    assert "read by revenue" in lines(headrace("lineage", "cities").out)


@pytest.mark.usefixtures("planned")
def test_the_whole_path_of_a_column(headrace: Call) -> None:
    shown = lines(headrace("lineage", "revenue.total").out)
    path = shown[shown.index("comes from how") : shown.index("is used by how")]
    assert path == [
        "comes from how",
        "orders.amount aggregation",
        "kafka orders.value.amount transformation",
        "orders.customer group by of the rows",
        "orders.id filter of the rows",
    ]
    assert shown[-1] == "report.value identity"
    # A field of a struct is followed through a column that is taken as it is.
    assert "kafka orders.value.address.city identity" in lines(headrace("lineage", "revenue.city").out)
    nothing = headrace("lineage", "revenue.n").out
    assert "no column: it is a constant" in nothing and "no dataset uses it" in nothing


@pytest.mark.usefixtures("planned")
def test_what_depends_on_a_field_of_a_topic(headrace: Call) -> None:
    found = json.loads(headrace("lineage", "kafka orders.value.id", "--json").out)
    assert edges(found["downstream"]) == {
        "kafka orders.value.id transformation default.orders.id",
        "kafka orders.value.id transformation default.cities.id",
        "default.orders.id filter default.revenue.None",
    }
    assert (found["dataset"], found["source"], found["column"]) == (None, "kafka orders", "value.id")


@pytest.mark.usefixtures("planned")
def test_upstream_of_a_column_as_json(headrace: Call) -> None:
    found = json.loads(headrace("lineage", "report.value", "--json").out)
    assert edges(found["upstream"]) == {
        "default.revenue.total identity default.report.value",
        "default.orders.amount aggregation default.revenue.total",
        "kafka orders.value.amount transformation default.orders.amount",
    }
    whole = json.loads(headrace("lineage", "--json").out)
    assert len(whole["edges"]) == 15 and whole["recorded"] == "plan"


@pytest.mark.usefixtures("planned")
def test_unknown_names_have_a_suggestion(headrace: Call) -> None:
    error = json.loads(headrace("lineage", "revnue", "--json").out)["error"]
    assert error["code"] == "TABLE_UNKNOWN"
    assert error["remedies"] == ["did you mean `revenue`?"]
    error = json.loads(headrace("lineage", "revenue.totl", "--json").out)["error"]
    assert error["code"] == "READ_COLUMN_UNKNOWN"
    assert error["remedies"] == ["did you mean `total`?"]
    assert headrace("lineage", "default.revenue.TOTAL").exit_code == 0


def test_nothing_was_recorded(headrace: Call) -> None:
    error = json.loads(headrace("lineage", "--json").out)["error"]
    assert error["code"] == "LINEAGE_MISSING"
    assert any(one.endswith("headrace plan") for one in error["remedies"])


def test_a_newer_run_replaces_a_plan(headrace: Call, pipeline: Path, planned: None) -> None:
    table = EventTable(Storage.at(pipeline / "lake").events)
    table.append(rows_of((one for one in definitions() if "report" not in one["name"]), datetime.now(UTC)))
    found = json.loads(headrace("lineage", "--json").out)
    assert found["recorded"] == "run"
    known = [one["dataset"] for one in found["datasets"]]
    assert known == ["default.orders", "default.revenue", "default.cities", None]


@pytest.mark.usefixtures("planned")
def test_no_spark_is_imported(pipeline: Path) -> None:
    code = (
        "import sys; from headrace.cli.main import main; sys.argv[1:] = ['lineage', 'revenue']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", code], cwd=pipeline, check=True, capture_output=True)
    assert time.monotonic() - began < 30
