"""Whether a stream over a table has anything to read, told without Spark."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import deltalake
import pyarrow as pa
import pytest
from stores import At, on_disk

from headrace.errors import SourceLocation, StorageUnsupportedError
from headrace.model.declarations import AppendFlow
from headrace.model.names import TableName
from headrace.model.queries import PythonQuery
from headrace.run.failures import Failures
from headrace.sources.delta.facts import DeltaPosition, rewritten
from headrace.sources.delta.source import DeltaKind, DeltaSource
from headrace.sources.requests import StreamRead
from headrace.storage.layout import Storage
from headrace.storage.table_log import LoggedCommit

UPSTREAM = TableName("default", "bronze")
HERE = SourceLocation("shop.py", 1)


def is_drained(storage: Storage, version: int, *, erasures_only: bool = True) -> bool:
    """Whether a stream that has read everything before a version has nothing to read."""
    path = str(storage.table(UPSTREAM))
    source = DeltaSource(index=0, folder=0, location=HERE, path=path, erasures_only=erasures_only)
    position = DeltaPosition(table_id="t", version=version, index=-1)
    unused = cast(Any, None)
    return source.is_drained(unused, position, unused)


@pytest.fixture
def storage(at: At, tmp_path: Path) -> Storage:
    """A table of versions 0 to 2."""
    storage = Storage(at(tmp_path))
    for number in range(3):
        deltalake.write_deltalake(
            on_disk(storage.table(UPSTREAM)), pa.table({"id": [number, 10]}), mode="append"
        )
    return storage


def test_a_stream_at_the_end_has_nothing_to_read(storage: Storage) -> None:
    assert is_drained(storage, 3)
    assert not is_drained(storage, 2)


def test_commits_that_bring_a_stream_nothing_are_passed_over(storage: Storage) -> None:
    table = deltalake.DeltaTable(on_disk(storage.table(UPSTREAM)))
    table.optimize.compact()
    table.delete("id = 1")
    assert is_drained(storage, 3)
    assert not is_drained(storage, 3, erasures_only=False)
    table.update({"id": "7"}, predicate="id = 2")
    assert not is_drained(storage, 3)


def test_a_log_that_has_lost_what_comes_next_is_left_to_spark(storage: Storage) -> None:
    for version in (0, 1):
        (storage.table(UPSTREAM) / "_delta_log" / f"{version:020d}.json").delete()
    assert not is_drained(storage, 1)


@pytest.mark.parametrize("written", ["file://{path}", "file:{path}", "{path}/", "{path}"])
def test_a_stream_over_a_table_has_one_path_however_it_is_written(tmp_path: Path, written: str) -> None:
    path = tmp_path / "orders"
    assert build(written.replace("{path}", str(path))).path == str(path)


def test_a_stream_over_a_table_in_an_object_store_is_refused_at_its_line() -> None:
    with pytest.raises(StorageUnsupportedError) as caught:
        build("gs://bucket/orders")
    assert caught.value.location == HERE


def build(path: str) -> DeltaSource:
    unused = cast(Any, None)
    return DeltaKind().build(
        StreamRead(
            format="delta",
            index=0,
            folder=0,
            read=0,
            location=HERE,
            options={"path": path},
            adaptive=False,
            table=None,
            settings=unused,
        )
    )


MAPPED = {"delta.columnMapping.mode": "name"}


def column(name: str, kind: Any = "long", physical: str | None = None) -> dict[str, Any]:
    metadata = {} if physical is None else {"delta.columnMapping.physicalName": physical}
    return {"name": name, "type": kind, "nullable": True, "metadata": metadata}


def log_columns(table: Path, version: int, operation: str, *columns: dict[str, Any]) -> None:
    schema = json.dumps({"type": "struct", "fields": columns})
    actions = [
        {"commitInfo": {"timestamp": version, "operation": operation, "engineInfo": "an engine"}},
        {"metaData": {"id": "t", "schemaString": schema, "configuration": MAPPED}},
    ]
    log = table / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    (log / f"{version:020d}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ([column("key", physical="id"), column("at")], "renamed its column `id` to `key`"),
        ([column("at")], "dropped its column `id`"),
        ([column("id", "string"), column("at")], "changed the type of its column `id`"),
    ],
)
def test_a_change_of_columns_that_a_feed_cannot_cross_is_named(
    tmp_path: Path, columns: list[dict[str, Any]], text: str
) -> None:
    address = {"type": "struct", "fields": [column("street")]}
    log_columns(tmp_path, 0, "CREATE TABLE", column("id"), column("at"), column("home", address))
    log_columns(tmp_path, 1, "CHANGE IT", *columns, column("home", address))
    log_columns(tmp_path, 2, "ADD COLUMNS", *columns, column("home", address), column("more"))
    source = DeltaSource(
        index=0, folder=0, location=HERE, path=str(tmp_path), options={"readChangeFeed": "true"}
    )
    flow = AppendFlow(name="extra", target=UPSTREAM, query=PythonQuery(lambda: None, HERE))
    failure = Exception(
        "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG] Streaming read is not supported"
    )
    error = Failures(settings=None, sources=[source]).as_error(failure, flow)
    assert (error.code, error.location) == ("UPSTREAM_SCHEMA_CHANGED", HERE)
    assert error.summary == f"extra: delta {tmp_path}, which it reads, has {text}"
    assert error.facts[0] == "version 1: CHANGE IT by an engine" and len(error.facts) == 2


def test_a_change_feed_is_a_remedy_only_if_it_has_the_changed_rows() -> None:
    commit = LoggedCommit(3, 0, None, {}, "UPDATE", "an engine", changes_data=True, removes_data=True)
    fed, other = (
        rewritten("f", "extra", "/people", HERE, replace(commit, has_feed=one)).remedies
        for one in (True, False)
    )
    assert 'from version 3 on, with _change_type:   hr.read_changes("/people")' in fed[0]
    assert fed[1].endswith("headrace full-refresh extra") and len(fed) == 2
    assert other[0].endswith("headrace full-refresh extra") and 'hr.read_changes("/people")' in other[1]
