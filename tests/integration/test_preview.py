"""A look at a query's rows: what is read, what it shows, and that nothing is written."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient
from deltalake import write_deltalake

from headrace.cli.main import run
from headrace.declare.loader import activate
from headrace.declare.registry import ActivePipeline
from headrace.errors import HeadraceError, SourceLocation
from headrace.model.ranges import SourceRange
from headrace.plan.sources import evaluate_ranges
from headrace.project.pipeline import Pipeline
from headrace.project.preview import Preview, collect_columns
from headrace.sources.files import reader
from headrace.sources.kafka.position import KafkaOffsets
from headrace.storage.layout import locate
from proof.ledger import TIMEOUT_S, settings
from proof.shop import BRONZE, SILVER, Shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.usefixtures("spark")

MORE = """
@hr.table
def unique_sales():
    late = spark.readStream.table("silver").withWatermark("timestamp", "1 hour")
    return late.dropDuplicatesWithinWatermark(["id"])

@hr.table
def hours():
    late = spark.readStream.table("silver").withWatermark("timestamp", "1 hour")
    return late.groupBy(F.window("timestamp", "1 hour")).agg(F.count("*").alias("n"))

@hr.temporary_view
def large():
    return spark.sql("SELECT s.id, silver.sales FROM STREAM silver, (SELECT 1 AS one) s2, LATERAL "
                     "(SELECT silver.id) s WHERE silver.sales >= 0.74")

@hr.table
def named():
    return spark.sql("SELECT large.id FROM STREAM(large)")

@hr.append_flow(target="named", name="raw")
def raw():
    return hr.read_kafka("{topic}").select(F.col("_source.offset").alias("id"))
"""


def look(shop: Shop, name: str, **arguments: Any) -> Preview:
    with Pipeline.load(shop.root) as pipeline:
        return pipeline.preview(name, **{"limit": 1000, **arguments})


def fault(shop: Shop, name: str, **arguments: Any) -> HeadraceError:
    with pytest.raises(HeadraceError) as caught:
        look(shop, name, **arguments)
    return caught.value


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file, with its size and the time of its last change."""
    files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in files}


def totals(preview: Preview) -> dict[str, Decimal]:
    return {row[0]: row[1] for row in preview.rows}


def expected(shop: Shop) -> dict[str, Decimal]:
    found: dict[str, Decimal] = {}
    for record in shop.ledger.records:
        found[record.sale["name"]] = found.get(record.sale["name"], Decimal()) + record.sale["sales"]
    return found


def test_moments_and_structs_are_what_they_are_in_a_table(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write("""
import headrace as hr

@hr.table
def sales():
    return hr.read_kafka("{topic}")
""")
    shop.produce(1)
    (record,) = shop.ledger.records
    capsys.readouterr()
    assert run(["preview", "sales", "--json", "--project", str(shop.root)]) == 0
    (previewed,) = json.loads(capsys.readouterr().out)["rows"]
    shop.run_well()
    assert run(["read", "sales", "--json", "--project", str(shop.root)]) == 0
    (stored,) = json.loads(capsys.readouterr().out)["rows"]
    assert previewed["_source"] == stored["_source"]
    assert previewed["_source"]["timestamp"].endswith("+00:00")
    assert previewed["_source"]["offset"] == record.offset


def test_a_pipeline_that_never_ran_is_looked_at_from_end_to_end(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    before = tree(shop.root)
    preview = look(shop, "gold")
    assert totals(preview) == expected(shop)
    assert (preview.columns, preview.types[0], preview.is_cut) == (("name", "sales", "n"), "string", False)
    assert [str(source) for source in preview.sources] == [
        f"table {shop.database}.silver: computed from its query; the table does not exist yet",
        f"table {shop.database}.bronze: computed from its query; the table does not exist yet",
        f"kafka {shop.topic}: 30 of 30 records",
    ]
    assert tree(shop.root) == before
    assert not shop.storage.root.exists()
    admin = AdminClient(settings(shop.ledger.bootstrap))
    groups = admin.list_consumer_groups(request_timeout=TIMEOUT_S).result(TIMEOUT_S).valid
    assert not [
        one.group_id for one in groups if "headrace-shop" in one.group_id and shop.topic in one.group_id
    ]


def test_tables_that_a_run_has_made_are_read_and_left_alone(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    before = tree(shop.root)
    shop.produce(30)
    preview = look(shop, "silver")
    assert len(preview.rows) == 30
    version = shop.versions()["bronze"]
    assert [str(source) for source in preview.sources] == [f"table {shop.database}.bronze: v{version}"]
    assert len(look(shop, "bronze").rows) == 60
    assert tree(shop.root) == before
    # A column that the table has not got yet is computed, from what the topic holds.
    code = SILVER.replace(
        '*PLACE, "timestamp")\n    return rows', '*PLACE, "timestamp", "doubled")\n    return rows'
    )
    code = code.replace(
        'select("sale.*", *PLACE, "timestamp")', 'select("sale.*", *PLACE, "timestamp", "doubled")'
    )
    shop.write(BRONZE.replace('"timestamp")])', '"timestamp")], F.lit(2).alias("doubled"))'), code)
    preview = look(shop, "silver", columns=["doubled"])
    assert (set(preview.rows), len(preview.rows)) == ({(2,)}, 60)
    assert "does not have doubled yet" in str(preview.sources[0])


def test_the_newest_records_are_read_within_what_the_query_asks_for(shop: Shop) -> None:
    shop.write(
        BRONZE.replace("max_offsets_per_trigger={limit}", 'starting_offsets={"{topic}": {0: 8, 1: 0, 2: 0}}')
    )
    shop.produce(30)
    preview = look(shop, "bronze", records=10, columns=["partition", "offset"])
    offsets = sorted((partition, offset) for partition, offset in preview.rows)
    assert offsets == [(0, 8), (0, 9), *((p, o) for p in (1, 2) for o in range(6, 10))]
    (source,) = preview.sources
    assert (source.read, source.held) == (10, 22)


def test_streaming_queries_of_every_kind_are_batches_here(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, MORE)
    shop.produce(30)
    assert len(look(shop, "unique_sales").rows) == 30
    assert sum(row[1] for row in look(shop, "hours").rows) == 30
    large = sorted(
        record.sale["id"] for record in shop.ledger.records if record.sale["sales"] >= Decimal("0.74")
    )
    assert sorted(row[0] for row in look(shop, "large").rows) == large
    assert len(look(shop, "named").rows) == len(large) + 30
    assert sorted(row[0] for row in look(shop, "raw").rows) == sorted(r.offset for r in shop.ledger.records)


READER = """
import headrace as hr

@hr.table
@hr.expect_or_drop("an even id", "id % 2 = 0")
def sales():
    return hr.read_kafka("{topic}", format="json", schema="id LONG")
"""


def test_bad_records_are_counted_and_named_beside_the_rows(shop: Shop) -> None:
    shop.write(READER)
    shop.ledger.produce_values(shop.topic, [(b'{"id": %d}' % number, 0) for number in range(3)])
    bad = [shop.ledger.produce_raw(shop.topic, b"{no json", partition=1) for _ in range(4)]
    preview = look(shop, "sales", columns=["id"])
    assert sorted(preview.rows) == [(0,), (2,)]
    (found,) = preview.bad_records
    assert (found.name, found.records, len(found.examples)) == ("RECORD_UNPARSEABLE", 4, 3)
    assert found.examples[0].startswith(f"topic {bad[0].topic} partition 1 offset {bad[0].offset}: ")


def test_a_record_on_which_the_query_fails_is_named_by_its_place(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(3)
    bad = shop.ledger.produce_raw(shop.topic, b"{no json", partition=1)
    error = fault(shop, "gold")
    assert error.code == "RECORD_UNPARSEABLE"
    place = {key: error.params[key] for key in ("topic", "partition", "offset")}
    assert place == {"topic": bad.topic, "partition": bad.partition, "offset": bad.offset}


BAD_FILES = """
import headrace as hr

@hr.table
def visits():
    return hr.read_files("visits", format="json", schema="id LONG")

@hr.table
def prices():
    return hr.read_files("prices", format="csv", schema="id LONG, price DOUBLE")
"""


def test_a_bad_file_is_named_and_with_csv_by_its_line(shop: Shop) -> None:
    shop.write(BAD_FILES)
    files = {"visits": '{"id": 1}\n{no json\n', "prices": "1,2.5\n2,much\n"}
    for folder, lines in files.items():
        (shop.root / folder).mkdir()
        (shop.root / folder / "a").write_text(lines)
    preview = look(shop, "visits", columns=["id"])
    (found,) = preview.bad_records
    assert (preview.rows, found.name, found.records) == (((1,),), "RECORD_UNPARSEABLE", 1)
    assert str(shop.root / "visits" / "a") in found.examples[0]
    error = fault(shop, "prices")
    assert (error.code, error.params["path"]) == ("RECORD_UNPARSEABLE", str(shop.root / "prices" / "a"))
    assert not any("topic" in remedy for remedy in error.remedies)


def test_names_and_conditions_that_are_wrong_are_answered_with_what_was_meant(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    assert look(shop, "bronze").rows == ()
    unknown = fault(shop, "bronzee")
    assert (unknown.code, unknown.remedies) == ("DATASET_UNKNOWN", ("did you mean `bronze`?",))
    column = fault(shop, "bronze", columns=["ofset"])
    assert (column.code, column.remedies) == ("READ_COLUMN_UNKNOWN", ("did you mean `offset`?",))
    assert fault(shop, "bronze", where="ofset > 1").code == "READ_COLUMN_UNKNOWN"
    assert fault(shop, "bronze", where="offset >").code == "READ_CONDITION_INVALID"
    shop.write(BRONZE.replace("{topic}", "no-such-topic"))
    error = fault(shop, "bronze")
    assert (error.code, error.location) == ("TOPIC_NOT_FOUND", SourceLocation("shop.py", 10))


def test_the_command_shows_rows_and_says_what_was_read(
    shop: Shop, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(BRONZE)
    shop.produce(6)
    monkeypatch.chdir(shop.root)
    command = ["preview", "bronze", "--columns", "partition,offset", "--where", "partition = 2"]
    assert run([*command, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(row["offset"] for row in said["rows"]) == [0, 1]
    assert said["sources"][0]["read"] == 6
    assert run([*command, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "1 row of" in out and "use --limit to see more" in out
    assert f"kafka {shop.topic}: 6 of 6 records" in out


FOLDERS = """
import headrace as hr
from headrace import spark

@hr.table
def clicks():
    return spark.readStream.schema("id LONG").json("{folder}/clicks")

@hr.table
def people():
    return spark.readStream.format("delta").load("{folder}/people")

@hr.table
def changes():
    return spark.readStream.option("readChangeFeed", "true").table("people").select("id", "_change_type")
"""


def test_folders_and_tables_elsewhere_are_looked_at_too(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_deltalake(tmp_path / "people", pa.table({"id": [1, 2]}))
    (tmp_path / "clicks").mkdir()
    for number in range(3):
        (tmp_path / "clicks" / f"{number} #.json").write_text(f'{{"id": {number}}}\n')
    shop.write(FOLDERS.replace("{folder}", str(tmp_path)))
    monkeypatch.setattr(reader, "FILES", 2)
    clicks = look(shop, "clicks")
    assert sorted(row[0] for row in clicks.rows) == [1, 2]
    assert str(clicks.sources[0]).endswith("/clicks: 2 of 3 files")
    assert sorted(look(shop, "people").rows) == [(1,), (2,)]
    assert sorted(look(shop, "changes").rows) == [(1, "insert"), (2, "insert")]


def test_a_query_is_evaluated_over_given_offsets_and_no_others(shop: Shop, spark: SparkSession) -> None:
    shop.write(BRONZE)
    shop.produce(30)
    with Pipeline.load(shop.root) as pipeline:
        plan = pipeline.plan(offline=True)
    start, until = KafkaOffsets({shop.topic: {0: 2, 1: 5, 2: 0}}), KafkaOffsets({shop.topic: {0: 4, 1: 5}})
    one = SourceRange(index=0, kind="kafka", identity={}, start=start, until=until)
    with activate(ActivePipeline(plan.project, lambda: spark)):
        frame = evaluate_ranges(spark, plan.flows[0], plan, [one], locate(shop.root))
    assert [(row.partition, row.offset) for row in frame.collect()] == [(0, 2), (0, 3)]
    rows: Callable[[], Sequence[Any]] = frame.select("value").collect
    wanted = {record.value for record in shop.ledger.records if record.place[1:] in ((0, 2), (0, 3))}
    assert {bytes(row.value) for row in rows()} == wanted


def test_plain_values_are_the_same_as_those_of_arrow(spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT true AS a, 1Y AS a, 2S AS c, 3 AS d, 4L AS e, 0.1F AS f, 0.1D AS g, 1.50BD AS h, 'ö' AS i, "
        "DATE '2026-01-02' AS j, CAST('x' AS CHAR(3)) AS k, CAST(NULL AS STRING) AS l UNION ALL "
        "SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 'y'"
    )
    renamed = frame.toDF(*(f"c{number}" for number in range(len(frame.columns))))
    assert collect_columns(frame) == [column.to_pylist() for column in renamed.toArrow().columns]
