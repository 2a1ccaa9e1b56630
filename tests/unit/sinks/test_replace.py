"""When a materialized view is stale: one function for `plan` and `run`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from stores import At

from headrace.model.counts import BatchCounts
from headrace.sinks.delta.commit import refresh_metadata
from headrace.sinks.delta.replace import ReplaceTarget, Stale, find_stale
from headrace.sinks.target import RefreshStamp
from headrace.storage.location import Location

SALES = {"table_id": "t1", "version": 8, "commit": "aa"}


def stamp(**inputs: Mapping[str, Any]) -> RefreshStamp:
    return RefreshStamp(pipeline="shop", view="default.gold", update="u1", definition="abc", inputs=inputs)


@pytest.fixture
def view(tmp_path: Path) -> Path:
    """A view that was refreshed once, from version 8 of `sales`."""
    commit(tmp_path, 0, refresh_metadata(stamp(sales=SALES)))
    return tmp_path


def commit(table: Path, version: int, metadata: Mapping[str, Any] | None) -> None:
    log = table / "_delta_log"
    log.mkdir(exist_ok=True)
    info = {"operation": "WRITE", "userMetadata": None if metadata is None else json.dumps(metadata)}
    add = {"path": "a.parquet", "dataChange": True, "stats": '{"numRecords":1}'}
    lines = [json.dumps({"commitInfo": info}), json.dumps({"add": add}, separators=(",", ":"))]
    (log / f"{version:020d}.json").write_text("\n".join(lines) + "\n")


def stale(view: Location, definition: str, inputs: Mapping[str, Mapping[str, Any]]) -> Stale | None:
    return find_stale(view, view / "rejected", definition, inputs)


def target_of(view: Location) -> ReplaceTarget:
    return ReplaceTarget(path=view, quarantine=view / "rejected")


def test_a_view_whose_quarantine_table_is_missing_is_stale(at: At, view: Path) -> None:
    counts = BatchCounts(input=3, accepted=2, quarantined=1)
    commit(view, 1, refresh_metadata(stamp(sales=SALES), counts))
    assert stale(at(view), "abc", {"sales": SALES}) == Stale(part="quarantine")
    (view / "rejected").mkdir()
    commit(view / "rejected", 0, None)
    assert stale(at(view), "abc", {"sales": SALES}) is None


def test_the_same_query_over_the_same_inputs_is_up_to_date(at: At, view: Path) -> None:
    assert stale(at(view), "abc", {"sales": SALES}) is None
    # `plan` knows no table id, and compares what it knows.
    assert stale(at(view), "abc", {"sales": {"version": 8, "commit": "aa"}}) is None


@pytest.mark.parametrize(
    ("definition", "inputs", "expected"),
    [
        ("abc", {"sales": {**SALES, "version": 9}}, Stale(part="inputs", inputs=("sales",))),
        ("abc", {"sales": {**SALES, "commit": "bb"}}, Stale(part="inputs", inputs=("sales",))),
        ("abc", {}, Stale(part="inputs", inputs=("sales",))),
        ("abc", {"sales": SALES, "more": SALES}, Stale(part="inputs", inputs=("more",))),
        ("other", {"sales": SALES}, Stale(part="query")),
    ],
    ids=["new version", "rolled back", "input gone", "new input", "query"],
)
def test_what_has_changed(
    at: At, view: Path, definition: str, inputs: dict[str, Any], expected: Stale
) -> None:
    assert stale(at(view), definition, inputs) == expected


def test_rows_of_another_writer_make_a_view_stale(at: At, view: Path) -> None:
    commit(view, 1, None)
    assert stale(at(view), "abc", {"sales": SALES}) == Stale(part="table")


def test_a_view_that_also_reads_files_is_refreshed_each_time(at: At, view: Path) -> None:
    target, same = target_of(at(view)), stamp(sales=SALES)
    unused = cast(Any, None)
    assert target.begin(unused, same) is None
    assert target.begin(unused, replace(same, varies=True)) is not None


def test_a_view_without_inputs_is_refreshed_each_time(at: At, view: Path) -> None:
    commit(view, 1, refresh_metadata(stamp()))
    target = target_of(at(view))
    assert stale(at(view), "abc", {}) is None
    assert target.begin(None, stamp()) is not None  # type: ignore[arg-type]
