"""Flows that apply changes by key: from Kafka into a table, with what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import deltalake
import pyarrow as pa
import pytest

from cdc_oracle import (
    Change,
    Version,
    current_rows,
    history_rows,
    partial_rows,
    random_batches,
    random_changes,
    random_events,
)
from headrace.contracts.changes import ChangeColumns, as_changes, without_own_columns
from headrace.errors import ColumnInvalidError, HeadraceError, PlanFailedError
from headrace.model.event_forms import Event
from headrace.model.table_events import OperationProgressed
from headrace.project.pipeline import Pipeline
from headrace.run import targets
from headrace.runtime.lazy_pyspark import F
from headrace.sinks.delta import placed_rows, table_index
from landing import Site
from proof.shop import Shop, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

VIEW = """
import headrace as hr
from headrace import spark

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="id LONG, sequence LONG, op STRING, value STRING")
"""
FLOW = """
hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    target="current",
    source="changes",
    keys=["id"],
    sequence_by="sequence",
    apply_as_deletes="op = 'delete'",
    apply_as_truncates="op = 'truncate'",
    except_column_list=["op"],
)
"""
CODE = VIEW + FLOW


@pytest.fixture
def current(make_shop: Callable[..., Shop]) -> Shop:
    shop = make_shop(partitions=1)
    shop.write(CODE)
    return shop


def produce(shop: Shop, changes: Sequence[Change]) -> None:
    records = [
        {"id": one.key, "sequence": one.sequence, "op": one.operation, "value": one.value, "note": one.note}
        for one in changes
    ]
    shop.ledger.produce_values(shop.topic, [(json.dumps(one).encode(), 0) for one in records])


def rows_of(shop: Shop) -> dict[int, str]:
    return values_of(shop.table("current"))


def values_of(table: Path) -> dict[int, str]:
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(table))
    found = query.execute("SELECT id, value FROM t").read_all()
    assert len(set(found["id"].to_pylist())) == found.num_rows, "a key has two rows"
    return dict(zip(found["id"].to_pylist(), found["value"].to_pylist(), strict=True))


def test_the_newest_record_of_each_key_is_its_row_and_verify_proves_it(
    current: Shop, spark: SparkSession
) -> None:
    changes = random_changes(6, keys=20, count=120, truncates=1)
    for batch in random_batches(6, changes, 2):
        produce(current, batch)
        current.run_well()
    assert rows_of(current) == current_rows(changes)
    current.verify()
    with Pipeline.load(current.root) as pipeline:
        found = pipeline.events(level="metrics")
    progress = [one.details["metrics"] for one in found if "metrics" in one.details]
    assert sum(one["num_upserted_rows"] for one in progress) > 0
    assert sum(one["num_deleted_rows"] for one in progress) > 0
    # Another writer adds a key that is there.
    key = min(current_rows(changes))
    table = deltalake.DeltaTable(current.table("current"))
    row = (
        deltalake.QueryBuilder().register("t", table).execute(f"SELECT * FROM t WHERE id = {key}").read_all()
    )
    append(spark, current.table("current"), pa.table(row).to_pylist())
    with Pipeline.load(current.root) as pipeline:
        proof = pipeline.verify()
    assert "KEY_TWICE" in {one.code for dataset in proof.datasets for one in dataset.table.findings}


def append(spark: SparkSession, table: Path, rows: list[dict[str, object]]) -> None:
    schema = spark.read.format("delta").load(str(table)).schema
    spark.createDataFrame(rows, schema).write.format("delta").mode("append").save(str(table))


def test_records_without_a_key_or_a_sequence_are_quarantined_and_can_be_replayed(
    current: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [
        {"id": 1, "sequence": 1, "value": "a"},
        {"id": None, "sequence": 2, "value": "no key"},
        {"id": 3, "value": "no sequence"},
        {"id": 1, "op": "delete"},
    ]
    current.ledger.produce_values(current.topic, [(json.dumps(one).encode(), 0) for one in records])
    current.run_well()
    assert rows_of(current) == {1: "a"}
    current.write(VIEW + FLOW.replace('sequence_by="sequence"', 'sequence_by="coalesce(sequence, 5)"'))
    with monkeypatch.context() as patched, Pipeline.load(current.root) as pipeline:
        patched.setattr(placed_rows, "commit_batch", Mock(side_effect=RuntimeError("planted")))
        with pytest.raises(Exception, match="planted"):
            pipeline.quarantine.replay("current")
    # A delete that the table does not have leaves no tombstone.
    assert rows(current, f"tombstones/{current.database}/current") == []
    with Pipeline.load(current.root) as pipeline:
        (found,) = pipeline.quarantine.replay("current").flows
        assert (found.replayed, found.rejected) == (2, 1)
        assert pipeline.verify().proven
    assert rows_of(current) == {3: "no sequence"}


def refusal(shop: Shop, code: str) -> HeadraceError:
    shop.write(code)
    with Pipeline.load(shop.root) as pipeline:
        try:
            plan = pipeline.plan()
        except PlanFailedError as error:
            return error.errors[0]
        except HeadraceError as error:
            return error
    return plan.refusals[0]


READS = """
@hr.table
def copied():
    return spark.readStream.table("current")
"""
APPENDS = """
@hr.append_flow(target="current")
def appended():
    return spark.readStream.table("changes").drop("op")
"""


def test_what_a_table_with_changes_by_key_cannot_be(current: Shop) -> None:
    error = refusal(current, CODE + READS)
    assert (error.code, error.remedies[0]) == (
        "STREAM_OVER_MERGED_TABLE",
        f'read its changes, each with _change_type:   hr.read_changes("{current.database}.current")',
    )
    assert refusal(current, CODE + APPENDS).code == "FLOW_KINDS_DIFFER"
    unknown = refusal(current, CODE.replace('keys=["id"]', 'keys=["idd"]'))
    assert (unknown.code, unknown.remedies) == ("COLUMN_NOT_FOUND", ("did you mean `id`?",))
    assert unknown.location is not None and unknown.location.line == 10
    assert refusal(current, CODE.replace('["op"]', '["op", "id"]')).code == "ARGUMENT_INVALID"
    for keys, message in (
        ('["id", "ID"]', "keys has the column `id` twice"),
        ('[F.col("value"), F.abs("id").alias("id")]', "the source has no column `abs(id) AS id`"),
    ):
        code = CODE.replace('keys=["id"]', f"keys={keys}")
        assert refusal(current, f"from pyspark.sql import functions as F\n{code}").summary == message
    collated = 'value STRING").selectExpr("* EXCEPT (value)", "value COLLATE UTF8_LCASE AS value")'
    for old, new, column in (('["id"]', '["value"]', "value"), ('"sequence"', '"value"', "sequence_by")):
        error = refusal(current, CODE.replace('value STRING")', collated).replace(old, new))
        assert (error.code, error.params) == ("COLUMN_INVALID", {"column": column})
        assert "STRING COLLATE UTF8_LCASE" in error.summary
    for listed, different, extra in (
        ("id LONG, value STRING, note STRING", [], ["__START_AT", "__END_AT"]),
        ("id LONG, value STRING, note STRING, __START_AT STRING, __END_AT LONG", ["__START_AT"], []),
    ):
        declared = HISTORY.replace('table("current")', f'table("current", schema="{listed}")')
        error = refusal(current, declared)
        assert (error.code, error.params["different"], error.params["extra"]) == (
            "SCHEMA_MISMATCH",
            different,
            extra,
        )
    tracked = HISTORY.replace('track_history_except_column_list=["note"]', 'track_history_column_list=["op"]')
    message = "`op` is listed, but it is a key or not a column of the table"
    assert refusal(current, tracked).summary == message
    current.write(CODE)
    produce(current, [Change(0, 1, 1, "upsert", "a")])
    current.run_well()
    assert refusal(current, CODE.replace('keys=["id"]', 'keys=["id", "value"]')).code == "KEYS_CHANGED"
    other = refusal(current, CODE.replace('sequence_by="sequence"', 'sequence_by="string(sequence)"'))
    assert (other.code, other.params["columns"]) == ("SCHEMA_MISMATCH", ["_sequence"])


def test_a_run_reports_how_much_of_a_large_table_it_has_indexed(
    current: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        produce(
            current,
            [Change(number, key, number, "upsert", "a") for key in range(number * 20, number * 20 + 20)],
        )
        current.run_well()
    monkeypatch.setattr(table_index, "_ROWS_AT_ONCE", 20)
    # As in a new process, which has no index yet.
    targets._shared_tables.cache_clear()
    produce(current, [Change(9, 1, 9, "upsert", "b")])
    seen: list[OperationProgressed] = []

    def watch(event: Event) -> None:
        if isinstance(event, OperationProgressed) and event.operation == "KEY_INDEX":
            seen.append(event)

    with Pipeline.load(current.root) as pipeline:
        pipeline.run(emit=watch)
    assert [one.outcome for one in seen] == [{"rows_read": read, "rows": 60} for read in (20, 40, 60)]
    assert [one.status for one in seen] == ["STARTED", "STARTED", "COMPLETED"]


def test_a_struct_sequence_keeps_its_fields(current: Shop) -> None:
    fields = CODE.replace('sequence_by="sequence"', 'sequence_by="struct(sequence)"')
    current.write(fields)
    produce(current, [Change(0, 1, 1, "upsert", "a")])
    current.run_well()
    more = fields.replace("struct(sequence)", "struct(sequence, value)")
    assert refusal(current, more).params["columns"] == ["_sequence"]


def test_a_record_without_a_key_stops_a_flow_that_demands_keys(current: Shop) -> None:
    current.write(CODE.replace('keys=["id"],', 'keys=["id"],\n    null_keys="fail",'))
    records = [{"id": 1, "sequence": 1, "value": "a"}, {"sequence": 2, "value": "no key"}]
    current.ledger.produce_values(current.topic, [(json.dumps(one).encode(), 0) for one in records])
    with Pipeline.load(current.root) as pipeline:
        (error,) = pipeline.run().errors
    assert error.code == "EXPECTATION_FAILED"
    assert "the key is not NULL" in str(error)
    assert rows_of(current) == {}


TWO_FLOWS = """
import headrace as hr

def changes_of(folder):
    schema = "id LONG, sequence LONG, op STRING, value STRING"
    return lambda: hr.read_files(folder, format="json", schema=schema)

hr.create_streaming_table("current")
for folder in ("landing", "other"):
    hr.temporary_view(name=f"changes_in_{folder}")(changes_of(folder))
    hr.create_auto_cdc_flow(
        name=f"from_{folder}",
        target="current",
        source=f"changes_in_{folder}",
        keys=["id"],
        sequence_by="sequence",
        apply_as_deletes="op = 'delete'",
        apply_as_truncates="op = 'truncate'",
        except_column_list=["op"],
    )

@hr.temporary_view
def feed():
    return hr.read_changes("current")

hr.create_streaming_table("copy")
hr.create_auto_cdc_flow(
    target="copy",
    source="feed",
    keys=["id"],
    sequence_by="_commit_version",
    apply_as_deletes="_change_type = 'delete'",
    column_list=["id", "value"],
)

@hr.materialized_view
def copied():
    return hr.spark.read.table("copy")
"""


def test_two_flows_feed_a_table_whose_changes_feed_other_tables(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.write(TWO_FLOWS)
    changes = random_changes(7, keys=8, count=60, truncates=1)
    applied: list[Change] = []
    for number, batch in enumerate(random_batches(7, changes, 2)):
        for index, folder in enumerate(("landing", "other")):
            records = [
                # Without equal sequences, the result does not depend on the order of the folders.
                {
                    "id": one.key,
                    "sequence": 100 * one.sequence + one.offset,
                    "op": one.operation,
                    "value": one.value,
                }
                for one in batch
                if one.offset % 2 == index
            ]
            site.put(f"../{folder}/{number}.json", *records)
        applied += batch
        if not number:
            with Pipeline.load(site.root) as pipeline:
                preview = pipeline.preview("copied", limit=100)
            assert {row[0]: row[1] for row in preview.rows} == current_rows(applied)
        site.run_well()
        for table in ("current", "copy", "copied"):
            assert values_of(site.storage.table(site.name(table))) == current_rows(applied), table
    assert site.verify().proven


def test_a_source_may_have_columns_of_its_own_with_names_of_headrace(spark: SparkSession) -> None:
    columns = "id INT, _sequence INT, _source STRING, _commit_version LONG"
    feed = spark.createDataFrame([(1, 7, "web", 3)], columns)
    ordered = ChangeColumns(keys=("id",), sequence_by="_sequence", excluded=("_sequence",))
    (row,) = as_changes(feed, ordered).collect()
    assert (row["_sequence"]["value"], row["_source"]) == (7, "web")
    with pytest.raises(ColumnInvalidError, match="except_column_list") as caught:
        as_changes(feed, replace(ordered, excluded=()))
    assert caught.value.params == {"column": "_sequence"}
    # A table with changes by key has such columns from Headrace.
    own = as_changes(feed, ordered).drop("_cdc_operation").withColumn("_commit_version", F.lit(4))
    assert as_changes(own, replace(ordered, sequence_by="_commit_version", excluded=())).columns[0] == "id"
    assert without_own_columns(feed).columns == feed.columns
    assert "_sequence" not in without_own_columns(own).columns


ROUTES = """
import headrace as hr

@hr.temporary_view
def changes():
    return hr.read_kafka("{topic}", format="json", schema="{schema}")

hr.create_streaming_table("current", table_properties={"delta.autoOptimize.autoCompact": "true"})
hr.create_auto_cdc_flow(
    target="current", source="changes", keys={keys}, sequence_by="at", apply_as_deletes="value = 'gone'"
)
"""


def routes(schema: str, *keys: str) -> str:
    return ROUTES.replace("{schema}", schema).replace("{keys}", repr(list(keys)))


def test_keys_with_the_names_of_other_columns_and_a_full_refresh_with_other_keys(
    current: Shop, spark: SparkSession
) -> None:
    before = routes("batch LONG, n LONG, `a.b` LONG, at LONG, value STRING", "batch", "n", "a.b")
    current.write(before)
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "2")
    try:
        for value, at in (("gone", 5), ("late", 4), ("new", 6)):
            record = {"batch": 1, "n": 2, "a.b": 3, "at": at, "value": value}
            other = {**record, "n": at, "value": "other"}
            current.ledger.produce_values(
                current.topic, [(json.dumps(one).encode(), 0) for one in (record, other)]
            )
            current.run_well()
            found = [row["value"] for row in rows(current, f"tables/{current.database}/current")]
            assert sorted(set(found) - {"other"}) == (["new"] if value == "new" else [])
    finally:
        spark.conf.unset("spark.databricks.delta.autoCompact.minNumFiles")
    current.verify()
    # The tombstones have the keys and the sequence of before.
    current.write(routes("n STRING, at STRING, value STRING", "n"))
    with Pipeline.load(current.root) as pipeline:
        result = pipeline.full_refresh(["current"])
    assert result.outcome == "completed", result.errors
    found = rows(current, f"tables/{current.database}/current")
    assert {row["n"]: row["value"] for row in found} == {"2": "new", "4": "other", "5": "other", "6": "other"}
    current.verify()
    table = deltalake.DeltaTable(current.table("current"))
    assert table.metadata().configuration["headrace.keys"] == '["n"]'
    append(spark, current.table("current"), found[:1])
    with Pipeline.load(current.root) as pipeline:
        proof = pipeline.verify()
    findings = [
        one for dataset in proof.datasets for one in dataset.table.findings if one.code == "KEY_TWICE"
    ]
    assert [one.text for one in findings] == [f"the key n = {found[0]['n']} has 2 rows"]


HISTORY = (
    VIEW.replace("value STRING", "value STRING, note STRING")
    + """
hr.create_streaming_table("current")
hr.create_auto_cdc_flow(
    target="current",
    source="changes",
    keys=["id"],
    sequence_by="sequence",
    apply_as_deletes="op = 'delete'",
    except_column_list=["op", "sequence"],
    stored_as_scd_type=2,
    track_history_except_column_list=["note"],
)

hr.create_streaming_table("filled")
hr.create_auto_cdc_flow(
    target="filled",
    source="changes",
    keys=["id"],
    sequence_by="sequence",
    apply_as_deletes="op = 'delete'",
    except_column_list=["op"],
    ignore_null_updates=True,
    ignore_null_updates_except_column_list=["value"],
)
"""
)


def history_of(shop: Shop) -> set[Version]:
    table = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(shop.table("current")))
    found = table.execute('SELECT id, "__START_AT", "__END_AT", value, note FROM t').read_all()
    return {Version(*row) for row in zip(*(column.to_pylist() for column in found.columns), strict=True)}


def test_histories_and_records_with_some_columns_are_kept_and_verify_proves_it(
    current: Shop, spark: SparkSession
) -> None:
    current.write(HISTORY)
    changes = random_events(7, keys=15, count=120, notes=("x", "y", None))
    for batch in random_batches(7, changes, 2):
        produce(current, batch)
        current.run_well()
    assert history_of(current) == history_rows(changes)
    filled = rows(current, f"tables/{current.database}/filled")
    assert {row["id"]: (row["value"], row["note"]) for row in filled} == partial_rows(changes)
    current.verify()
    error = refusal(current, CODE)
    assert error.code == "KEYS_CHANGED"
    assert error.summary.partition(".")[2] == (
        "current was built with the history of the key id; the file now declares the key id"
    )
    # Another writer adds a row that begins before the current one of its key ends.
    current.write(HISTORY)
    one = next(one for one in rows(current, f"tables/{current.database}/current") if one["__END_AT"] is None)
    append(spark, current.table("current"), [{**one, "__START_AT": one["__START_AT"] + 100}])
    with Pipeline.load(current.root) as pipeline:
        proof = pipeline.verify()
    found = {one.code: one.text for dataset in proof.datasets for one in dataset.table.findings}
    assert found["HISTORY_OVERLAPS"] == f"the key id = {one['id']} has rows that overlap or are empty"
    merged = HISTORY.replace("stored_as_scd_type=2,", "").replace(
        'track_history_except_column_list=["note"],', ""
    )
    current.write(merged)
    with Pipeline.load(current.root) as pipeline:
        result = pipeline.full_refresh(["current"])
    assert result.outcome == "completed", result.errors
    assert rows_of(current) == current_rows(changes)
    current.verify()
