"""The newest metadata of a table is found wherever its log keeps it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from stores import At, on_disk

from headrace.model.names import TableName
from headrace.plan.stored import load_stored
from headrace.storage.layout import Storage

ORDERS = TableName("shop", "orders")
SCHEMA = {"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]}


def metadata(**configuration: str) -> dict[str, Any]:
    return {
        "id": "t1",
        "schemaString": json.dumps(SCHEMA),
        "partitionColumns": ["day"],
        "configuration": configuration,
    }


def commit(path: Path, version: int, *actions: dict[str, Any]) -> None:
    log = path / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(action, separators=(",", ":")) for action in actions]
    (log / f"{version:020d}.json").write_text("\n".join(lines))


def checkpoint(path: Path, version: int, actions: list[dict[str, Any]]) -> None:
    kind = pa.struct(
        [
            ("id", pa.string()),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", pa.map_(pa.string(), pa.string())),
        ]
    )
    rows = [None if a is None else {**a, "configuration": list(a["configuration"].items())} for a in actions]
    table = pa.table({"metaData": pa.array(rows, kind)})
    parquet.write_table(table, path / "_delta_log" / f"{version:020d}.checkpoint.parquet")
    (path / "_delta_log" / "_last_checkpoint").write_text(json.dumps({"version": version}))


def test_the_newest_commit_with_metadata_wins(at: At, tmp_path: Path) -> None:
    storage = Storage(at(tmp_path))
    path = on_disk(storage.table(ORDERS))
    commit(path, 0, {"metaData": metadata(old="1")})
    commit(path, 1, {"metaData": metadata(**{"headrace.pipeline": "shop", "headrace.checkpoint.web": "c1"})})
    commit(path, 2, {"add": {"path": "x"}})
    stored = load_stored(storage, ORDERS)
    assert stored is not None
    assert (stored.version, stored.pipeline, stored.flows) == (2, "shop", ("web",))
    assert stored.schema == SCHEMA
    assert stored.partition_cols == ("day",)


def clustering(*columns: list[str], removed: bool = False) -> dict[str, Any]:
    said = json.dumps({"clusteringColumns": columns, "domainName": "delta.clustering"})
    return {"domainMetadata": {"domain": "delta.clustering", "configuration": said, "removed": removed}}


def test_the_newest_clustering_is_told_by_logical_names(at: At, tmp_path: Path) -> None:
    storage = Storage(at(tmp_path))
    path = on_disk(storage.table(ORDERS))
    inner = {"type": "struct", "fields": [{"name": "at", "type": "long", "metadata": {}}]}
    renamed = {"name": "place", "type": inner, "metadata": {"delta.columnMapping.physicalName": "c-1"}}
    schema = {"type": "struct", "fields": [*SCHEMA["fields"], renamed]}

    def clustered() -> tuple[str, ...]:
        stored = load_stored(storage, ORDERS)
        assert stored is not None
        return stored.cluster_by

    commit(path, 0, {"metaData": {**metadata(), "schemaString": json.dumps(schema)}}, clustering(["id"]))
    assert clustered() == ("id",)
    commit(path, 1, {"domainMetadata": {"domain": "another", "configuration": "{}", "removed": False}})
    commit(path, 2, clustering(["c-1", "at"], ["id"]))
    commit(path, 3, {"add": {"path": "x"}})
    assert clustered() == ("place.at", "id")
    stored = load_stored(storage, ORDERS)
    # The metadata of these tests has a partition column, which such a table cannot have.
    unpartitioned = None if stored is None else replace(stored, partition_cols=())
    assert unpartitioned is not None
    assert unpartitioned.new_clustering(("Place.at", "ID")) == (), "names are known in any case"
    assert unpartitioned.new_clustering(("id",)) == ("id",)
    commit(path, 4, clustering(removed=True))
    assert clustered() == ()


def test_a_checkpoint_answers_when_old_commits_are_gone(at: At, tmp_path: Path) -> None:
    storage = Storage(at(tmp_path))
    path = on_disk(storage.table(ORDERS))
    commit(path, 11, {"add": {"path": "x"}})
    checkpoint(path, 10, [None, metadata(**{"headrace.kind": "materialized_view"})])  # type: ignore[list-item]
    stored = load_stored(storage, ORDERS)
    assert stored is not None
    assert (stored.version, stored.kind) == (11, "materialized_view")


def test_what_is_no_table_is_not_found(at: At, tmp_path: Path) -> None:
    storage = Storage(at(tmp_path))
    assert load_stored(storage, ORDERS) is None
    assert storage.find_tables() == ()
    commit(on_disk(storage.table(ORDERS)), 0, {"metaData": metadata()})
    (storage.tables / "shop" / "folder").make_folder()
    assert storage.find_tables() == (ORDERS,)
