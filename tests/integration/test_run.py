"""Runs of a pipeline: what is done, what is left alone, who goes on, and what Kafka's tools see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import deltalake
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from headrace.cli.main import run as cli
from headrace.errors import SourceLocation, TopicNotFoundError
from headrace.model.events import (
    BatchCommitted,
    FlowFailed,
    FlowFinished,
    FlowRetrying,
    UpdateFinished,
    ViewRefreshed,
)
from headrace.project.pipeline import Pipeline
from headrace.run.reporting import LagGauge
from landing import VISITS, Site
from proof.ledger import TIMEOUT_S, end_offsets, settings
from proof.shop import BRONZE, SILVER, Shop
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.usefixtures("spark")


def test_a_run_with_nothing_new_changes_nothing(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    before = shop.versions()
    result = shop.run_well()
    assert [flow.outcome for flow in result.flows] == ["up to date", "up to date"]
    assert [view.outcome for view in result.views] == ["up to date"]
    assert shop.versions() == before


def test_each_batch_tells_what_it_committed(shop: Shop) -> None:
    shop.write(limit=15)
    shop.produce(30)
    shop.run_well()
    batches = [event for event in shop.happened(BatchCommitted) if isinstance(event, BatchCommitted)]
    assert [event.batch for event in batches] == [0, 1]
    assert [event.rows for event in batches] == [15, 15]
    assert all(event.latency_s and event.latency_s[0] >= event.latency_s[1] > 0 for event in batches)
    versions = [event.version for event in batches]
    assert versions == sorted(versions)
    assert deltalake.DeltaTable(shop.table("bronze")).version() == versions[-1]
    (finished,) = shop.happened(FlowFinished)
    assert isinstance(finished, FlowFinished)
    assert (finished.outcome, finished.rows, finished.batches) == ("up to date", 30, 2)


def test_reporting_never_fails_a_flow(
    make_shop: Callable[..., Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of the year 12000, an event that cannot be taken, a lag that cannot be measured."""
    shop = make_shop(partitions=1)
    admin = AdminClient(settings(shop.ledger.bootstrap))
    resource = ConfigResource(ConfigResource.Type.TOPIC, shop.topic)
    resource.add_incremental_config(
        ConfigEntry(
            "message.timestamp.after.max.ms", str(2**63 - 1), incremental_operation=AlterConfigOpType.SET
        )
    )
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(TIMEOUT_S)
    shop.produce(3)
    producer = Producer(settings(shop.ledger.bootstrap))
    producer.produce(shop.topic, b"{}", timestamp=316_516_000_000_000)
    assert producer.flush(TIMEOUT_S) == 0

    def fail(*_: object) -> None:
        raise ValueError("no lag")

    monkeypatch.setattr(LagGauge, "measure", fail)
    with Pipeline.load(shop.root) as pipeline:
        result = pipeline.run(emit=fail)
    assert [(flow.outcome, flow.rows) for flow in result.flows] == [("up to date", 4)], result.errors
    assert shop.run_well().flows[0].outcome == "up to date"


SEEN = """
@hr.materialized_view
def seen():
    return spark.read.table("bronze").groupBy("topic").count()
"""


def test_what_reads_a_refused_table_is_not_started_and_plan_says_so(
    shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    shop.write(BRONZE, SILVER, SEEN)
    shop.produce(30)
    shop.run_well()
    before = shop.versions()
    shop.write(BRONZE.replace('"value"', 'F.col("value").cast("string").alias("value")', 1), SILVER, SEEN)
    shop.produce(30)
    result = shop.run()
    assert [error.code for error in result.errors] == ["SCHEMA_MISMATCH"]
    skipped = [one for one in (*result.flows, *result.views) if one.outcome == "skipped"]
    why = f"it reads {shop.database}.bronze, which could not be opened (SCHEMA_MISMATCH)"
    assert {one.reason for one in skipped} == {why}
    assert len(skipped) == 2
    assert shop.versions() == before
    assert shop.foreseen() == ["SCHEMA_MISMATCH"]

    # Alone, what reads the table is not run on other columns than its query was planned with either.
    error = shop.refused("silver")
    assert error.code == "UPSTREAM_SCHEMA_STALE"
    assert any("headrace full-refresh" in remedy and "bronze" in remedy for remedy in error.remedies)

    capsys.readouterr()
    command = ["plan", "--project", str(shop.root), "--exit-code"]
    assert cli(command) == 1
    said = capsys.readouterr()
    assert "`headrace run` would stop with 1 error" in said.out
    assert "error[SCHEMA_MISMATCH]" in said.err and "value is BINARY in the table" in said.err
    assert cli([*command, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in found["refusals"]] == ["SCHEMA_MISMATCH"]

    shop.write(BRONZE, SILVER, SEEN)
    shop.run_well()
    shop.check(silver=True)


def test_a_table_that_lacks_a_column_is_brought_up_to_date_before_it_is_read(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    wider = BRONZE.replace('"value",', 'F.lit(1).alias("one"), "value",', 1)
    shop.write(
        wider,
        SILVER.replace('select("sale.*",', 'select("sale.*", "one",').replace(
            'timestamp")\n', 'timestamp", "one")\n', 1
        ),
    )
    error = shop.refused("silver")
    assert error.code == "UPSTREAM_SCHEMA_STALE"
    assert any("headrace run" in remedy and "bronze" in remedy for remedy in error.remedies)
    shop.run_well()
    shop.check(silver=True)


CHAIN = """
import headrace as hr

@hr.table
def one():
    return hr.read_files("landing", format="json", schema="id LONG{more}")

@hr.table
def two():
    return spark.readStream.table("one").select("id"{column})

@hr.table
def three():
    return spark.readStream.table("two").select("id"{column})

@hr.materialized_view
def four():
    return spark.read.table("three").select("id"{column})

@hr.table
def five():
    return spark.readStream.table("one").select("id")
"""


def test_what_was_not_brought_up_to_date_holds_back_all_that_needs_it(tmp_path: Path) -> None:
    """And nothing else: not a query that does not read what is missing."""
    site = Site(tmp_path / "site")

    def write(more: str, column: str) -> None:
        site.write(code=CHAIN.replace("{more}", more).replace("{column}", column))

    def versions() -> dict[str, int]:
        logs = site.storage.tables.glob("*/*/_delta_log")
        return {log.parent.name: len(list(log.glob("*.json"))) for log in logs}

    def codes(*datasets: str) -> dict[str, str]:
        with Pipeline.load(site.root) as pipeline:
            planned = pipeline.plan(datasets)
            altered = {c.dataset.name for c in planned.changes or () if c.kind != "keep"}
            before = versions()
            result = pipeline.run(datasets)
        found = {f.flow: f.error.code for f in result.flows if f.error}
        found |= {v.dataset.name: v.error.code for v in result.views if v.error}
        assert sorted(found.values()) == sorted(error.code for error in planned.refusals)
        assert not altered & set(found), "a plan names no change that is not made"
        assert all(versions()[name] == before[name] for name in found)
        return found

    site.put("a.json", {"id": 1})
    write("", "")
    assert codes() == {}
    write(", n LONG", ', "n"')
    site.put("b.json", {"id": 2, "n": 2})
    assert codes("two", "three", "four", "five") == dict.fromkeys(
        ["two", "three", "four"], "UPSTREAM_SCHEMA_STALE"
    )
    assert codes() == {}
    assert sorted(row["n"] or 0 for row in site.rows("three")) == [0, 2]
    assert len(site.rows("four")) == len(site.rows("five")) == 2


def test_a_view_alone_over_a_table_that_nobody_made_is_foreseen(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.put("a.json", {"id": 1})
    site.write(code=CHAIN.replace("{more}", "").replace("{column}", ""))
    with Pipeline.load(site.root) as pipeline:
        (refusal,) = pipeline.plan(["four"]).refusals
        (error,) = pipeline.run(["four"]).errors
    assert refusal.code == error.code == "VIEW_INPUT_MISSING"


FEED = """
@hr.table
def feed():
    return spark.readStream.option("readChangeFeed", "true").table("visits")
"""


def test_a_feed_that_a_run_enables_starts_at_that_version(tmp_path: Path) -> None:
    site = Site(tmp_path / "site")
    site.put("a.json", {"id": 1, "page": "p"})
    site.write(code=VISITS.replace("{more}", ""))
    site.run_well()
    code = VISITS.replace("{more}", "") + FEED
    late = FEED.replace("feed()", "late()").replace(".table(", '.option("startingVersion", FROM).table(')
    site.write(code=code + late.replace("FROM", "1"))
    with Pipeline.load(site.root) as pipeline:
        assert pipeline.run(["visits"]).outcome == "completed"
        (refusal,) = pipeline.plan().refusals
        assert refusal.code == "START_INVALID"
        assert "starts after startingVersion" in refusal.summary
        assert [error.code for error in pipeline.run().errors] == ["START_INVALID"]
    site.write(code=code + late.replace("FROM", str(refusal.params["versions"][0])))
    site.put("b.json", {"id": 2, "page": "p"})
    site.run_well()
    assert sorted(row["id"] for row in site.rows("feed")) == [1, 2]
    assert [row["id"] for row in site.rows("late")] == [2]


def test_kafka_s_own_tools_see_how_far_a_flow_has_come(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    admin = AdminClient(settings(shop.ledger.bootstrap))
    group = "headrace-shop-bronze"
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
    found = asked[group].result(TIMEOUT_S).topic_partitions
    published = {place.partition: place.offset for place in found if place.topic == shop.topic}
    assert published == end_offsets(shop.ledger.bootstrap, shop.topic, shop.partitions)


def test_one_failing_flow_stops_no_other(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop()
    other = """
@hr.table
def other():
    return hr.read_kafka("{topic}").selectExpr("value")
"""
    shop.write(BRONZE, other)
    shop.produce(30)
    shop.run_well()
    shutil.rmtree(shop.checkpoints("other"))
    shop.produce(30)
    with shop.running():
        until(lambda: bool(shop.happened(FlowFailed, flow="other")), "one flow is refused")
        shop.produce(30)
        until(lambda: len(shop.bronze()) == 90, "the other goes on")
    shop.check(proof=False)
    shop.run_well(reset="other")
    shutil.rmtree(shop.table("other"))
    shop.produce(10)
    result = shop.run()
    assert [(flow.flow, flow.outcome) for flow in result.flows] == [
        ("bronze", "up to date"),
        ("other", "failed"),
    ]
    shop.check(proof=False)


def test_a_stream_over_a_table_that_nobody_made_says_so(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    error = shop.refused("silver")
    assert (error.code, error.params["table"]) == ("UPSTREAM_MISSING", f"{shop.database}.bronze")
    shop.run_well()
    shop.check(silver=True)


def test_a_stop_leaves_a_batch_that_has_not_begun_to_the_next_start(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, limit=10)
    shop.produce(60)
    with shop.running() as stop:
        until(lambda: bool(shop.happened(BatchCommitted, flow="silver")), "the first rows arrive")
        stop.request()
    (finished,) = shop.happened(UpdateFinished)
    assert isinstance(finished, UpdateFinished)
    assert (finished.outcome, finished.duration_s < DEADLINE_S) == ("stopped", True)
    with Pipeline.load(shop.root) as pipeline:
        assert flow_states(pipeline) == {"bronze": "stopped", "silver": "stopped"}
        shop.run_well()
        assert flow_states(pipeline) == {"bronze": "up to date", "silver": "up to date"}
    shop.check(silver=True)


def flow_states(pipeline: Pipeline) -> dict[str, str]:
    return {flow.flow: flow.state for dataset in pipeline.status().datasets for flow in dataset.flows}


CONSTANT = """
import headrace as hr
from headrace import spark

@hr.materialized_view
def constant():
    return spark.range(3)
"""


def test_views_follow_their_inputs_in_a_continuous_run(shop: Shop) -> None:
    shop.write(BRONZE, SILVER, CONSTANT)
    shop.produce(30)

    def sales() -> int:
        if shop.versions().get("gold", -1) < 0:
            return 0
        return sum(deltalake.DeltaTable(shop.table("gold")).to_pyarrow_table()["n"].to_pylist())

    with shop.running():
        until(lambda: sales() == 30, "gold counts the first sales")
        refreshed = len(shop.happened(ViewRefreshed))
        shop.produce(30)
        until(lambda: sales() == 60, "gold counts the later sales")
        until(lambda: len(shop.happened(ViewRefreshed)) > refreshed, "the event log tells of it")
        until(lambda: shop.versions().get("constant", -1) >= 0, "the view without inputs is computed")
    shop.check(silver=True)


def test_a_view_that_another_writer_changed_is_computed_anew(shop: Shop) -> None:
    shop.write(BRONZE, SILVER)
    shop.produce(30)
    shop.run_well()
    deltalake.DeltaTable(shop.table("gold")).delete("n > 0")
    (view,) = shop.run_well().views
    assert view.outcome == "refreshed"
    shop.check(silver=True)


TWO_FLOWS = """
import headrace as hr

hr.create_streaming_table("both")

def read(least):
    records = hr.read_kafka("{topic}").where(f"_source.offset % 2 = {least}")
    return records.select("value", *[f"_source.{name}" for name in ("topic", "partition", "offset")])

@hr.append_flow(target="both")
def even():
    return read(0)

@hr.append_flow(target="both")
def odd():
    return read(1)
"""


def test_the_first_run_of_two_flows_into_one_table_meets_no_conflict(shop: Shop) -> None:
    shop.write(TWO_FLOWS)
    shop.produce(30)
    shop.run_well()
    assert shop.happened(FlowRetrying) == []
    assert deltalake.DeltaTable(shop.table("both")).to_pyarrow_table().num_rows == 30
    shop.verify()


def test_values_of_one_s_own_reach_the_queries(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(configuration={"shop.least": "5"})
    code = BRONZE.replace("return records", 'return records.where("_source.offset >= " + LEAST)')
    shop.write(code.replace("    records =", '    LEAST = spark.conf.get("shop.least")\n    records ='))
    shop.produce(30)
    shop.run_well()
    assert min(offset for _, _, offset, _ in shop.bronze()) == 5


TWO_TOPICS = (
    BRONZE
    + """
@hr.table
def returns():
    return hr.read_kafka("nobody-made-this")
"""
)


def test_a_plan_asks_the_broker_for_the_topics_of_what_is_planned(shop: Shop) -> None:
    shop.write(TWO_TOPICS)
    with Pipeline.load(shop.root) as pipeline:
        assert [one.text for one in pipeline.plan(["bronze"]).found.values()] == ["3 partitions"]
        assert pipeline.plan(offline=True).found == {}
        with pytest.raises(TopicNotFoundError) as caught:
            pipeline.plan()
    assert caught.value.params == {"topic": "nobody-made-this"}
    assert caught.value.location == SourceLocation("shop.py", TWO_TOPICS.count("\n"))


def test_a_table_whose_folder_is_taken_is_named_and_the_others_go_on(shop: Shop) -> None:
    shop.write(BRONZE, NOTES)
    shop.produce(10)
    shop.table("notes").mkdir(parents=True)
    (shop.table("notes") / "thesis.txt").write_text("years of work")
    (error,) = shop.run().errors
    assert error.code == "TABLE_FOLDER_TAKEN"
    assert "thesis.txt" in error.facts[0]
    assert [path.name for path in shop.table("notes").iterdir()] == ["thesis.txt"]
    shop.check(proof=False)


NOTES = """
@hr.table
def notes():
    return hr.read_kafka("{topic}")
"""


def test_two_pipelines_of_one_session_never_take_each_other_s_tables(make_shop: Callable[..., Shop]) -> None:
    first, second = make_shop(), make_shop()
    first.produce(30)
    first.run_well()
    second.database = first.database
    second.write()
    second.produce(10)
    assert second.refused().code == "TABLE_NAME_TAKEN"
    first.check()


COPIES = """
@hr.table(trigger="available_now")
def once():
    return hr.read_kafka("{topic}").select("value")

@hr.table(trigger="12 hours")
def seldom():
    return hr.read_kafka("{topic}").select("value")
"""


def test_each_flow_of_a_continuous_update_follows_its_own_trigger(shop: Shop) -> None:
    shop.write(BRONZE, COPIES)
    shop.produce(10)

    def count(table: str) -> int:
        return 0 if shop.versions().get(table, -1) < 1 else rows_of(shop, table)

    with shop.running():
        until(lambda: bool(shop.happened(FlowFinished, flow="once")), "one flow has read what was there")
        until(lambda: count("seldom") == 10, "the other has begun with what was there")
        shop.produce(10)
        until(lambda: len(shop.bronze()) == 20, "the third goes on with what comes")
        assert (count("once"), count("seldom")) == (10, 10)
    shop.run_well()
    assert (count("once"), count("seldom")) == (20, 20)


TOTAL = """
@hr.materialized_view
def total():
    return spark.read.table("bronze").groupBy().count()
"""


def test_an_update_whose_flows_end_refreshes_its_views_and_ends(make_shop: Callable[..., Shop]) -> None:
    shop = make_shop(trigger="availableNow", views={"interval": "1 hour"})
    shop.write(BRONZE, TOTAL)
    shop.produce(30)
    shop.run_well(continuous=True)
    total = deltalake.DeltaTable(shop.table("total")).to_pyarrow_table()
    assert total.to_pylist() == [{"count": 30}]


def rows_of(shop: Shop, table: str) -> int:
    return deltalake.DeltaTable(shop.table(table)).to_pyarrow_table().num_rows


NUMBERS = """
import headrace as hr
from pyspark.sql import functions as F

@hr.table
def numbers():
    number = F.from_json(F.col("value").cast("string"), "n INT", {"mode": "FAILFAST"})
    return hr.read_kafka("{topic}").select(number.alias("number"))
"""


TOGETHER = """
import headrace as hr

def few(batches):
    for batch in batches:
        if len(batch) > 5:
            raise ValueError("the service takes five at most")
        yield batch

@hr.table
def numbers():
    return hr.read_kafka("{topic}").select("value").mapInPandas(few, "value BINARY")
"""


def test_no_record_is_blamed_for_what_fails_only_together(shop: Shop) -> None:
    shop.write(TOGETHER)
    shop.produce(20)
    (error,) = shop.run().errors
    assert error.code == "FLOW_FAILED"
    assert "offset" not in error.params
    assert not any("the query fails on" in fact for fact in error.facts)


def test_a_record_on_which_a_query_fails_is_found_among_many(shop: Shop) -> None:
    shop.write(NUMBERS)
    for number in range(60):
        shop.ledger.produce_raw(shop.topic, b'{"n": 1}', number % 3)
    bad = shop.ledger.produce_raw(shop.topic, b"seven", 1)
    for number in range(60):
        shop.ledger.produce_raw(shop.topic, b'{"n": 1}', number % 3)
    shop.run_well()
    assert rows_of(shop, "numbers") == 120
    rejected = deltalake.DeltaTable(shop.root / "lake" / "quarantine" / shop.database / "numbers")
    (row,) = rejected.to_pyarrow_table().to_pylist()
    assert (row["source"]["topic"], row["source"]["partition"], row["source"]["offset"]) == bad.place
    assert row["source"]["value"] == bad.value
    assert [(one["kind"], one["name"]) for one in row["reasons"]] == [("exception", "RECORD_UNPARSEABLE")]
    shop.verify()
