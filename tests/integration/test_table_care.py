"""The care of tables changes no data: readers, change feeds and the proof do not notice it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from headrace.cli.main import build_output, run
from headrace.model.event_forms import Event
from headrace.model.events import FlowFailed, FlowRetrying
from headrace.model.table_events import OperationProgressed
from headrace.project.pipeline import Pipeline
from headrace.run.stop import StopSignal
from headrace.storage.layout import locate
from landing import Site
from waiting import DEADLINE_S, until

TABLES = """
import headrace as hr
from headrace import spark

@hr.table(maintenance={"small_files": 3}, partition_cols=["page"],
          table_properties={"delta.enableChangeDataFeed": "true"})
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")

@hr.table
def copied():
    return spark.readStream.table("visits").select("id")

@hr.table
def changed():
    return spark.readStream.option("readChangeFeed", "true").table("visits").select("id", "_change_type")
"""


@pytest.fixture
def site(tmp_path: Path, spark: object) -> Site:
    site = Site(tmp_path / "site")
    site.write(TABLES)
    return site


def operations(site: Site) -> list[str]:
    history = DeltaTable(str(site.storage.table(site.name()))).history()
    return [one["operation"] for one in history]


def ids(site: Site) -> list[int]:
    path = site.storage.table(site.name())
    return site.ids() if (path / "_delta_log" / f"{1:020d}.json").exists() else []


def command(site: Site, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    """The JSON result of a command."""
    capsys.readouterr()
    line = [*arguments, "--project", str(site.root), "--json"]
    assert run(line, build_output(line)) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_readers_and_proof_do_not_notice_compaction_and_vacuum(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    events: list[Event] = []

    def update(number: int) -> dict[str, int]:
        site.put(f"{number}.json", {"id": number, "page": "ab"[number % 2]}, {"id": number + 10, "page": "a"})
        with Pipeline.load(site.root) as pipeline:
            result = pipeline.run(emit=events.append)
        assert result.outcome == "completed", [error.to_dict() for error in result.errors]
        return {one.flow: one.rows for one in result.flows}

    for number in range(5):
        rows = update(number)
        assert set(rows.values()) == {2}, (number, rows)
    # The run compacts the table that its flow appends to, at its end.
    assert operations(site).count("OPTIMIZE") == 1
    (done,) = [one for one in events if isinstance(one, OperationProgressed)]
    assert done.dataset == site.name() and done.outcome["compacted"]["files"]["removed"] >= 3
    for table in ("copied", "changed"):
        assert sorted(one["id"] for one in site.rows(table)) == sorted(one["id"] for one in site.rows())
    assert {one["_change_type"] for one in site.rows("changed")} == {"insert"}
    assert site.verify().proven

    (health,) = [
        one for one in command(site, capsys, "status", "--tables")["tables"] if "visits" in one["dataset"]
    ]
    assert health["compacted"] and not health["vacuumed"] and health["problem"] is None
    vacuum = ("maintain", f"{site.database}.visits", "--only", "vacuum", "--retain", "0s")
    refused = command(site, capsys, *vacuum, code=1)
    assert refused["tables"][0]["error"]["code"] == "RETENTION_TOO_SHORT"
    allowed = (*vacuum, "--allow-short-retention")
    planned = command(site, capsys, *allowed, "--dry-run")["tables"][0]
    stored = planned["before"]["stored_files"]
    assert planned["steps"] == ["vacuum"] and planned["vacuum"]["size_bytes"] > 0
    # A pinned version can still be read afterwards.
    command(site, capsys, "pin", f"{site.database}.visits", "--version", "2", "--for", "30d")
    kept = command(site, capsys, *allowed)["tables"][0]
    assert kept["vacuum"]["held_by"][0]["kind"] == "pin"
    path = str(site.storage.table(site.name()))
    assert DeltaTable(path, version=2).to_pyarrow_table().num_rows == 2
    assert command(site, capsys, "pin", f"{site.database}.visits", "--remove")["removed"][0]["version"] == 2
    done_again = command(site, capsys, *allowed)["tables"][0]
    assert done_again["after"]["stored_files"] < stored
    assert site.verify().proven
    assert set(update(5).values()) == {2}
    assert site.verify().proven
    assert len(site.rows("changed")) == len(site.rows("copied")) == len(site.rows()) == 12
    health = command(site, capsys, "status", "--tables")["tables"]
    assert any(one["vacuumed"] for one in health)


ORDERED = """
import headrace as hr

@hr.table(maintenance={"small_files": 2}, table_properties={"pipelines.autoOptimize.zOrderCols": "id"})
def visits():
    return hr.read_files("landing", format="json", schema="id LONG, page STRING")
"""


def test_rows_are_ordered_although_runs_compact_the_table(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.write(ORDERED)
    path = str(site.storage.table(site.name()))

    def update(*numbers: int) -> None:
        for number in numbers:
            site.put(f"{number}.json", {"id": number, "page": "a"})
            site.run_well()

    def orders() -> list[list[str]]:
        """The columns of each compaction, the newest last."""
        held = [one for one in DeltaTable(path).history() if one["operation"] == "OPTIMIZE"]
        return [json.loads(one["operationParameters"]["zOrderBy"]) for one in reversed(held)]

    def remarks() -> list[str]:
        (health,) = command(site, capsys, "status", "--tables")["tables"]
        return [one["text"] for one in health["remarks"]]

    update(0, 1, 2)
    assert orders() == [[]] and remarks() == ["new rows are not ordered by id yet"]
    assert command(site, capsys, "maintain", "--only", "optimize")["tables"][0]["steps"] == ["optimize"]
    assert orders() == [[], ["id"]] and remarks() == []
    # Nothing is due until there are enough new commits.
    update(3)
    assert command(site, capsys, "maintain", "--only", "optimize")["tables"][0]["steps"] == []
    update(4)
    assert command(site, capsys, "maintain", "--only", "optimize")["tables"][0]["steps"] == ["optimize"]
    assert orders()[-1] == ["id"] and site.ids() == list(range(5))
    assert site.verify().proven


def test_a_continuous_run_compacts_beside_its_flow(site: Site) -> None:
    stop, events, results = StopSignal(), list[Event](), []
    site.put("0.json", {"id": 0, "page": "a"})

    def work() -> None:
        with Pipeline.load(site.root) as pipeline:
            results.append(pipeline.run(continuous=True, emit=events.append, stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for number in range(1, 30):
            until(lambda number=number: len(ids(site)) == number, f"{number} rows are in the table")
            if any(isinstance(one, OperationProgressed) for one in list(events)):
                break
            site.put(f"{number}.json", {"id": number, "page": "a"})
    finally:
        stop.request()
        thread.join(DEADLINE_S)
    assert operations(site).count("OPTIMIZE") >= 1
    assert not [one for one in events if isinstance(one, FlowRetrying | FlowFailed)]
    site.run_well()
    assert len(site.rows("copied")) == len(site.rows("changed")) == len(site.rows())
    assert site.verify().proven


def test_compaction_is_repeated_after_a_conflict_and_misses_no_partition(
    site: Site, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headrace.model.maintenance import TablePolicy
    from headrace.sinks.delta import compaction

    path = locate(str(site.root / "by_day"))
    for number in range(4):
        frame = spark.range(number * 4, number * 4 + 4).selectExpr(
            "id", "DATE '2026-01-01' + CAST(id % 3 AS INT) AS day", "IF(id % 2 = 0, NULL, 'a''b') AS kind"
        )
        frame.coalesce(1).write.format("delta").mode("append").partitionBy("day", "kind").save(str(path))
    before = len(DeltaTable(str(path)).file_uris())
    one = {"day": "2026-01-01", "kind": None}
    done = compaction.compact_files(
        spark, path, TablePolicy(), partitions=[one, {"day": "2026-01-02", "kind": "a'b"}]
    )
    assert done.added == 2 and len(DeltaTable(str(path)).file_uris()) == before - done.removed + 2
    tried = []

    rewrite = compaction._rewrite

    def first(*given: Any) -> Any:
        tried.append(given)
        if len(tried) == 1:
            raise RuntimeError("[DELTA_CONCURRENT_DELETE_READ.X] ConcurrentDeleteReadException: gone")
        return rewrite(*given)

    monkeypatch.setattr(compaction, "_rewrite", first)
    done = compaction.compact_files(spark, path)
    assert done.conflicts == {"ConcurrentDeleteRead": 1} and done.added > 0
    assert len(DeltaTable(str(path)).file_uris()) == 6
