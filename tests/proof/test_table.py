"""Whatever happens to a table or its storage, its rows are those of the ledger, or nothing runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pytest

from headrace.model.names import TableName
from headrace.model.table_events import ForeignCommitSeen
from headrace.plan.stages import OpenTableStage
from headrace.project import refresh
from headrace.project.pipeline import Pipeline
from headrace.sinks.delta import append
from headrace.sinks.delta.commit import commit_generation
from proof.ledger import create_topic
from proof.shop import BRONZE, SILVER, Shop, named, take_back_newest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")


def full_refresh(shop: Shop, *datasets: str) -> None:
    with Pipeline.load(shop.root) as pipeline:
        result = pipeline.full_refresh(datasets)
    assert result.outcome == "completed", result.errors


@pytest.mark.guarantee
def test_a_lost_table_is_refused_and_rebuilt(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    shutil.rmtree(shop.table("bronze"))
    shop.produce(20)
    assert shop.refused().code == "TABLE_LOST"
    assert not shop.table("bronze").exists()
    full_refresh(shop, "bronze")
    shop.check()


def test_a_table_that_somebody_made_anew_is_refused_and_rebuilt(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    schema = deltalake.DeltaTable(shop.table("bronze")).schema()
    shutil.rmtree(shop.table("bronze"))
    deltalake.DeltaTable.create(shop.table("bronze"), schema)
    shop.produce(20)
    assert shop.refused().code == "TABLE_LOST"
    full_refresh(shop, "bronze")
    shop.check()


def test_a_full_refresh_reads_everything_again_exactly_once(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    shop.produce(20)
    full_refresh(shop, "bronze")
    shop.run_well("gold")
    shop.check(silver=True)
    shop.produce(10)
    shop.run_well()
    shop.check(silver=True)


def test_places_that_a_change_of_the_query_took_away_come_back_with_a_full_refresh(shop: Shop) -> None:
    """Rows of a query that left some out must not be held against the topic; rows of this one may."""
    filtered = BRONZE.replace("return records", 'return records.where("_source.offset >= 0")')
    for code, places in ((BRONZE, True), (filtered, False), (BRONZE, False)):
        shop.write(code)
        shop.produce(10)
        shop.run_well()
        assert has_places(shop) == places
    full_refresh(shop, "bronze")
    assert has_places(shop)
    proof = shop.check()
    assert proof is not None and proof.datasets[0].flows[0].grades[2].verdict == "proven"


TEXT_TIMES = BRONZE.replace(
    '(*PLACE, "timestamp")]', 'PLACE], F.col("_source.timestamp").cast("string").alias("timestamp")'
)


def test_a_column_of_another_type_is_refused_and_a_full_refresh_changes_it(shop: Shop) -> None:
    shop.write(BRONZE)
    shop.produce(20)
    shop.run_well()
    shop.write(TEXT_TIMES)
    shop.produce(20)
    error = shop.refused()
    assert (error.code, error.params["columns"]) == ("SCHEMA_MISMATCH", ["timestamp"])
    full_refresh(shop, "bronze")
    shop.check()
    rows = deltalake.DeltaTable(shop.table("bronze")).to_pyarrow_table(columns=["timestamp"])
    assert rows.schema.field("timestamp").type == pa.string()


def test_a_stream_passes_over_what_others_erase_and_over_nothing_else(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    deltalake.DeltaTable(shop.table("bronze")).delete("offset = 2")
    shop.produce(30)
    shop.run_well()
    silver = deltalake.DeltaTable(shop.table("silver"))
    assert silver.to_pyarrow_table().num_rows == 60
    (source,) = json.loads(silver.history(1)[0]["userMetadata"])["sources"]
    assert len(source["seen"]["passed"]) == 1
    shop.verify()
    deltalake.DeltaTable(shop.table("bronze")).update({"value": "value"}, predicate="offset = 3")
    shop.produce(30)
    (error,) = shop.run().errors
    assert error.code == "UPSTREAM_REWRITTEN"
    assert "UPDATE" in error.facts[0]
    full_refresh(shop, "silver")
    shop.run_well()


def test_rows_that_others_bring_back_are_not_read_twice(shop: Shop) -> None:
    """The commit of a RESTORE only adds files, and what they hold was read before."""
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    bronze = deltalake.DeltaTable(shop.table("bronze"))
    before = bronze.version()
    bronze.delete()
    bronze.restore(before)
    (error,) = shop.run("silver").errors
    assert error.code == "UPSTREAM_REWRITTEN"
    assert rows_of_silver(shop) == 30


@pytest.mark.parametrize("option", ['"startingVersion", 0', '"maxFilesPerTrigger", 1'])
def test_a_stream_that_begins_beside_a_change_reads_the_state_or_refuses(shop: Shop, option: str) -> None:
    """A snapshot holds the change; a stream that follows the commits would miss it."""
    shop.write(BRONZE, limit=15)
    shop.produce(30)
    shop.run_well()
    deltalake.DeltaTable(shop.table("bronze")).update({"value": "value"}, predicate="offset = 3")
    silver = SILVER.replace(
        'spark.readStream.table("bronze")', f'spark.readStream.option({option}).table("bronze")'
    )
    shop.write(BRONZE, silver)
    errors = [error.code for error in shop.run("silver").errors]
    if "startingVersion" in option:
        assert errors == ["UPSTREAM_REWRITTEN"]
        return
    assert errors == []
    shop.produce(30)
    shop.run_well("bronze", "silver")
    assert rows_of_silver(shop) == 60


def test_a_crash_after_an_opening_forgets_nothing_of_what_was_read(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    copy, checkpoints = tmp_path / "older", shop.keep_copy()
    shutil.copytree(shop.table("bronze"), copy)
    shop.produce(30)
    shop.run_well()

    def crash(*arguments: Any) -> int:
        commit_generation(*arguments)
        raise RuntimeError("a crash straight after the opening")

    with monkeypatch.context() as patch:
        patch.setattr(append, "commit_generation", crash)
        assert shop.run("silver", reset="silver").errors
    shutil.rmtree(shop.table("bronze"))
    shutil.copytree(copy, shop.table("bronze"))
    shop.restore_copy(checkpoints)
    for ledger in shop.storage.ledger(TableName(shop.database, "bronze"), "bronze").glob("*.json"):
        ledger.unlink()
    for _ in range(3):
        shop.produce(10)
        shop.run_well("bronze")
    (error,) = shop.run("silver").errors
    assert error.code == "UPSTREAM_REWRITTEN"


def test_a_crash_between_two_tables_of_a_full_refresh_doubles_nothing(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What reads a table is emptied before it, even where Delta's own option would pass over the change."""
    stream = 'spark.readStream.table("bronze")'
    shop.write(
        BRONZE, SILVER.replace(stream, 'spark.readStream.option("skipChangeCommits", True).table("bronze")')
    )
    shop.produce(30)
    shop.run_well()
    emptied: list[TableName] = []
    clear = refresh._clear

    def crash(opening: OpenTableStage, *arguments: Any) -> None:
        if emptied:
            raise RuntimeError("a crash between two tables")
        emptied.append(opening.table.name)
        clear(opening, *arguments)

    with monkeypatch.context() as patch, Pipeline.load(shop.root) as pipeline:
        patch.setattr(refresh, "_clear", crash)
        with pytest.raises(RuntimeError):
            pipeline.full_refresh(["bronze", "silver"])
    assert [name.name for name in emptied] == ["silver"]
    shop.run_well()
    shop.check(silver=True)


def rows_of_silver(shop: Shop) -> int:
    return int(deltalake.DeltaTable(shop.table("silver")).to_pyarrow_table().num_rows)


def has_places(shop: Shop) -> bool:
    return "headrace.coordinates" in deltalake.DeltaTable(shop.table("bronze")).metadata().configuration


@pytest.mark.parametrize("with_checkpoint", [True, False])
def test_an_older_copy_of_a_table_is_refused_and_every_layer_mended(
    shop: Shop, with_checkpoint: bool, tmp_path: Path
) -> None:
    """The versions that come after it have the numbers of those that a stream has read already."""
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    copy = tmp_path / "older"
    shutil.copytree(shop.table("bronze"), copy)
    checkpoints = shop.keep_copy()
    for _ in range(2):
        shop.produce(30)
        shop.run_well()
    shutil.rmtree(shop.table("bronze"))
    shutil.copytree(copy, shop.table("bronze"))
    if with_checkpoint:
        shop.restore_copy(checkpoints)
    shop.produce(30)
    assert {error.code for error in shop.run().errors} == {"TABLE_BEHIND_CHECKPOINT", "UPSTREAM_REWRITTEN"}
    assert [error.code for error in shop.run("bronze", "silver", "gold", reset="bronze").errors] == [
        "UPSTREAM_REWRITTEN"
    ]
    with Pipeline.load(shop.root) as pipeline:
        codes = {finding.code for finding in pipeline.verify(["silver"]).findings}
    assert "UPSTREAM_ROLLED_BACK" in codes
    shop.produce(30)
    full_refresh(shop, "silver")
    shop.run_well()
    shop.check(silver=True)


def test_a_commit_that_was_taken_out_of_the_log_is_missed_though_checksums_name_it(
    shop: Shop, spark: SparkSession
) -> None:
    for _ in range(3):
        shop.produce(30)
        shop.run_well()
    take_back_newest(spark, shop.table("bronze"))
    assert shop.refused().code == "TABLE_BEHIND_CHECKPOINT"
    shop.run_well(reset="bronze")
    shop.check()


def test_a_writer_beside_ours_is_reported_and_harms_nothing(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    path = shop.table("bronze")
    row = deltalake.DeltaTable(path).to_pyarrow_table().slice(0, 1)
    foreign = row.set_column(row.schema.get_field_index("value"), "value", pa.array([b"foreign"]))
    deltalake.write_deltalake(path, foreign, mode="append")
    shop.produce(20)
    shop.run_well()
    (seen,) = shop.happened(ForeignCommitSeen)
    assert isinstance(seen, ForeignCommitSeen)
    assert "delta-rs" in seen.engine
    assert [row for row in shop.bronze() if row[3] != b"foreign"] == sorted(
        (*record.place, record.value) for record in shop.ledger.records
    )
    shop.run_well()
    assert len(shop.happened(ForeignCommitSeen)) == 1


def test_a_table_s_log_can_be_cleaned_up(shop: Shop, spark: object) -> None:
    for _ in range(3):
        shop.produce(20)
        shop.run_well()
    clean_up(shop.table("bronze"))
    forget_logs(spark)
    shop.check()
    shop.produce(20)
    shop.run_well()
    shop.check()
    clean_up(shop.table("bronze"))
    forget_logs(spark)
    shutil.rmtree(shop.checkpoints())
    shop.produce(20)
    assert shop.refused().code == "CHECKPOINT_LOST"
    shop.run_well(reset="bronze")
    shop.check()


def clean_up(table: Path) -> None:
    """What Delta does when its log's retention has passed: the commits before a checkpoint go."""
    found = deltalake.DeltaTable(table)
    found.create_checkpoint()
    for path in (table / "_delta_log").iterdir():
        number, _, kind = path.name.partition(".")
        if number.isdigit() and int(number) < found.version() and kind in ("json", "crc"):
            path.unlink()


def forget_logs(spark: object) -> None:
    """A new process would read the table from disk."""
    spark.sparkContext._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[attr-defined]


def test_a_storage_that_cannot_be_written_is_named(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    shop.storage.root.write_text("a file stands where the storage should be")
    shop.produce(10)
    assert shop.refused().code == "STORAGE_UNWRITABLE"
    shop.storage.root.unlink()
    shop.run_well()
    shop.check()


def test_a_renamed_flow_is_refused_until_the_rename_is_declared(shop: Shop) -> None:
    shop.write(named("old"))
    shop.produce(30)
    shop.run_well()
    shop.write(named("new"))
    shop.produce(20)
    error = shop.refused()
    assert error.code == "FLOW_RENAMED"
    assert any("--rename-flow old=new" in remedy for remedy in error.remedies)
    shop.run_well(rename_flow={"new": "old"})
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


def test_a_flow_is_renamed_and_goes_on_with_another_topic_in_one_run(shop: Shop) -> None:
    shop.write(named("old"))
    shop.produce(30)
    shop.run_well()
    shop.topic = f"{shop.topic}_next"
    create_topic(shop.ledger.bootstrap, shop.topic, shop.partitions)
    shop.write(named("new"))
    shop.produce(20)
    shop.run_well(rename_flow={"new": "old"}, reset="new")
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


def test_a_flow_that_is_still_declared_is_not_renamed(shop: Shop) -> None:
    old = named("old")
    shop.write(old)
    shop.produce(30)
    shop.run_well()
    new = old[old.index("@") :].replace('"old"', '"new"').replace("def read", "def read_again")
    shop.write(old, new)
    error = shop.run(rename_flow={"new": "old"}).errors[0]
    assert error.code == "RENAME_IMPOSSIBLE"
    shop.check()


def test_a_table_restored_to_before_its_new_checkpoint_is_read_whole_again(shop: Shop) -> None:
    """To continue at any position of the new checkpoint would leave out what the old one had read."""
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    shop.run_well()
    first = deltalake.DeltaTable(shop.table("bronze")).version() - 1
    shop.produce(30)
    shop.run_well(reset="bronze")
    deltalake.DeltaTable(shop.table("bronze")).restore(first)
    assert len(shop.bronze()) == 30, "the rows of the last two runs were not taken away"
    for asked in ({}, {"reset": "bronze"}):
        assert shop.refused(**asked).code == "TABLE_BEHIND_CHECKPOINT"
    full_refresh(shop, "bronze")
    shop.check()
