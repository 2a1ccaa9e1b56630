"""A reader that lags holds a vacuum back, then the vacuum is refused; `status` says from which date on."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from stores import on_disk

from headrace.cli.main import build_output, run
from headrace.declare.spec import load_project
from headrace.maintain.health import find_lagging
from headrace.project.pipeline import Pipeline
from headrace.storage.layout import locate
from read_table import ORDERS, ReadTable


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReadTable:
    """A table with a compacted commit that the flow `large` has not read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "headrace.yml").write_text("name: shop\nlibraries: [{file: orders.py}]\n")
    (tmp_path / "orders.py").touch()
    desk = ReadTable(locate(tmp_path / "lake"))
    desk.add_reader(2)
    desk.append(3)
    desk.compact()
    return desk


def command(capsys: pytest.CaptureFixture[str], *line: str, code: int = 0) -> Any:
    """The JSON result of a command, for its first table."""
    capsys.readouterr()
    assert run([*line, "--json"], build_output([*line, "--json"])) == code
    return json.loads(capsys.readouterr().out)


def stored(desk: ReadTable) -> int:
    return len(list(on_disk(desk.path).rglob("*.parquet")))


VACUUM = ("maintain", "orders", "--only", "vacuum")


def test_a_reader_that_lags_holds_a_vacuum_back(desk: ReadTable, capsys: pytest.CaptureFixture[str]) -> None:
    desk.age(20)
    before = stored(desk)
    (done,) = command(capsys, *VACUUM)["tables"]
    # The files of the last commit that it may have read in part, and of the commit that it has not read.
    assert done["vacuum"]["held_files"] == 4
    assert done["vacuum"]["held_by"] == [{"kind": "flow", "name": "large", "version": 2}]
    assert stored(desk) == before - 4 and done["error"] is None


def test_a_reader_beyond_the_limit_is_a_refusal_until_it_is_ignored(
    desk: ReadTable, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.age(40)
    before = stored(desk)
    (refused,) = command(capsys, *VACUUM, code=1)["tables"]
    error = refused["error"]
    assert (error["code"], error["params"]["flow"], error["params"]["dataset"]) == (
        "READER_LAGS",
        "large",
        "default.orders",
    )
    assert error["params"]["lag_s"] // 86400 == 40 and stored(desk) == before
    assert any("--ignore-reader large" in one for one in error["remedies"])
    with Pipeline.load(".") as pipeline:
        (event,) = [one for one in pipeline.events(level="error") if one.type == "operation_progress"]
    assert "READER_LAGS" in json.dumps(event.to_json())
    # A higher limit, or the name of the flow, lets it pass.
    (held,) = command(capsys, *VACUUM, "--set", "maintenance.reader_lag=60d")["tables"]
    assert held["error"] is None and stored(desk) == before - 4
    (done,) = command(capsys, *VACUUM, "--ignore-reader", "large")["tables"]
    assert done["steps"] == ["vacuum"] and done["vacuum"]["held_files"] == 0
    assert stored(desk) == before - 8


def test_status_warns_of_the_date(desk: ReadTable, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys, "status")["lagging_readers"] == []
    desk.age(20)
    (late,) = command(capsys, "status")["lagging_readers"]
    until = datetime.now(UTC) + timedelta(days=10)
    assert abs(datetime.fromisoformat(late["until"]) - until) < timedelta(minutes=5)
    text = f"flow large has not read commits of orders for 20 days; from {late['until'][:10]}"
    assert late["text"].startswith(text) and late["text"].endswith("UTC on, a vacuum fails")
    (health,) = command(capsys, "status", "--tables")["tables"]
    assert {"text": late["text"], "command": "headrace run"} in health["remarks"]
    assert run(["status"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{late['text']}: headrace run" in shown


@pytest.mark.parametrize(("age", "number"), [(0.1, 0), (0.2, 1)])
def test_a_warning_comes_in_time_for_short_limits(desk: ReadTable, age: float, number: int) -> None:
    settings = load_project(text="name: shop\n", overrides={"maintenance.reader_lag": "8h"})
    desk.age(age)
    found = list(find_lagging(desk.storage, settings.maintenance))
    assert len(found) == number


def test_delta_may_delete_commits_earlier_than_a_vacuum_fails(desk: ReadTable) -> None:
    write_deltalake(
        str(desk.storage.table(ORDERS)),
        pa.table({"id": [1], "day": ["c"]}),
        mode="overwrite",
        configuration={"delta.enableExpiredLogCleanup": "true"},
    )
    DeltaTable(on_disk(desk.path)).alter.set_table_properties({"delta.enableExpiredLogCleanup": "true"})
    desk.age(0.1)
    settings = load_project(text="name: shop\n", overrides={"maintenance.log_retention": "1h"})
    (late,) = find_lagging(desk.storage, settings.maintenance)
    assert not late.is_refused and "Delta may delete these commits" in late.text
