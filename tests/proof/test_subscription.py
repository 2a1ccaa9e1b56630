"""However a flow names its topics and its start, it reads each record exactly once, and the proof says so."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import deltalake
import pytest
from confluent_kafka.admin import AdminClient

from headrace.errors import HeadraceError
from headrace.model.events import BatchCommitted, FlowFailed
from headrace.project.pipeline import Pipeline
from proof.ledger import TIMEOUT_S, Record, create_topic, end_offsets, expire, recreate_topic, settings
from proof.shop import BRONZE, Shop
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

PATTERN = BRONZE.replace(
    'hr.read_kafka("{topic}", max_offsets_per_trigger={limit})', 'hr.read_kafka(pattern="{topic}-[a-z]+")'
)


def topics_of(shop: Shop, *names: str) -> list[str]:
    found = [f"{shop.topic}-{name}" for name in names]
    for topic in found:
        create_topic(shop.ledger.bootstrap, topic, 2)
    return found


def delete_topic(shop: Shop, topic: str) -> None:
    admin = AdminClient(settings(shop.ledger.bootstrap))
    admin.delete_topics([topic])[topic].result(TIMEOUT_S)


def ids_of_last_commit(shop: Shop, table: str = "bronze") -> dict[str, str]:
    history = deltalake.DeltaTable(shop.table(table)).history(1)
    (source,) = json.loads(history[0]["userMetadata"])["sources"]
    return dict(source["identity"]["topics"])


def test_topics_that_come_to_match_a_pattern_join_and_are_watched_like_the_others(shop: Shop) -> None:
    shop.write(PATTERN)
    create_topic(shop.ledger.bootstrap, f"{shop.topic}-17", 1)
    eu, us = topics_of(shop, "eu", "us")
    for topic in (eu, us):
        shop.ledger.produce(topic, 10, 2)
    shop.run_well()
    shop.check()
    (asia,) = topics_of(shop, "asia")
    for topic in (eu, asia):
        shop.ledger.produce(topic, 10, 2)
    shop.run_well()
    shop.check()
    assert sorted(ids_of_last_commit(shop)) == sorted([eu, us, asia])
    assert [flow.outcome for flow in shop.run_well().flows] == ["up to date"]

    recreate_topic(shop.ledger.bootstrap, asia, 2)
    shop.ledger.produce(asia, 10, 2)
    error = shop.refused()
    assert (error.code, error.params["topic"]) == ("TOPIC_RECREATED", asia)
    shop.run_well(reset="bronze")
    shop.check()

    delete_topic(shop, us)
    shop.ledger.produce(eu, 10, 2)
    error = shop.refused()
    assert (error.code, error.params["topic"]) == ("TOPIC_NOT_FOUND", us)
    shop.run_well(reset="bronze")
    shop.check(proof=False)
    shop.ledger.produce(asia, 10, 2)
    shop.run_well()
    shop.check(proof=False)


def test_a_topic_that_joins_in_the_middle_of_a_run_and_is_made_anew_is_refused(shop: Shop) -> None:
    shop.write(PATTERN)
    (eu,) = topics_of(shop, "eu")
    shop.ledger.produce(eu, 10, 2)

    def rows() -> int:
        return sum(event.rows for event in shop.happened(BatchCommitted) if isinstance(event, BatchCommitted))

    with shop.running():
        until(lambda: rows() == 10, "the first records arrive")
        (us,) = topics_of(shop, "us")
        shop.ledger.produce(us, 10, 2)
        until(lambda: rows() == 20, "those of the topic that has joined arrive")
        recreate_topic(shop.ledger.bootstrap, us, 2)
        shop.ledger.produce(us, 30, 2)
        until(lambda: bool(shop.happened(FlowFailed)), "the flow is refused")
    (failed,) = shop.happened(FlowFailed)
    assert isinstance(failed, FlowFailed)
    # It may have been tried again before the topic was there once more.
    assert failed.error["code"] in ("TOPIC_RECREATED", "TOPIC_NOT_FOUND"), failed.error
    assert shop.refused().code == "TOPIC_RECREATED"
    shop.run_well(reset="bronze")
    shop.check()


def test_a_topic_of_a_batch_that_was_never_committed_may_be_made_anew(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write(PATTERN)
    (eu,) = topics_of(shop, "eu")
    shop.ledger.produce(eu, 10, 2)
    shop.run_well()
    (us,) = topics_of(shop, "us")
    shop.ledger.produce(us, 10, 2)
    fail_before_commit(shop, monkeypatch)
    shop.ledger.forget(lambda record: record.topic == us)
    recreate_topic(shop.ledger.bootstrap, us, 2)
    shop.ledger.produce(us, 20, 2)
    shop.run_well()
    shop.check()


def test_a_topic_that_leaves_a_subscription_and_comes_back_is_read_on_where_it_was_left(shop: Shop) -> None:
    eu, us = topics_of(shop, "eu", "us")

    def produce() -> None:
        for topic in (eu, us):
            shop.ledger.produce(topic, 10, 2)

    def subscribe(names: str) -> None:
        shop.write(PATTERN.replace("[a-z]+", names))

    subscribe("[a-z]+")
    produce()
    shop.run_well()
    subscribe("eu")
    produce()
    assert shop.refused().code == "TOPIC_NOT_FOUND"
    shop.run_well(reset="bronze")
    subscribe("[a-z]+")
    produce()
    # A plain run would read it from its beginning: that a topic joins a pattern is nothing special.
    error = shop.refused()
    assert (error.code, error.params["topic"]) == ("SOURCES_CHANGED", us)
    assert any("reset bronze" in remedy for remedy in error.remedies)
    shop.run_well(reset="bronze")
    shop.check()
    # Over two generations, one of which never ran; and made anew, it is another topic.
    for names in ("eu", "eu|asia"):
        subscribe(f"({names})")
        shop.run_well(reset="bronze")
    topics_of(shop, "asia")
    recreate_topic(shop.ledger.bootstrap, us, 2)
    subscribe("[a-z]+")
    produce()
    shop.run_well(reset="bronze")
    produce()
    shop.run_well()
    shop.check()


def test_a_pattern_without_a_match_is_refused_unless_it_may_wait(shop: Shop) -> None:
    shop.write(PATTERN)
    for ask in (shop.refused, lambda: plan_error(shop)):
        error = ask()
        assert error.code == "TOPIC_NOT_FOUND"
        assert shop.topic in " ".join(error.facts)
        assert error.location is not None and error.location.path == "shop.py"
    shop.write(PATTERN.replace('[a-z]+"', '[a-z]+", allow_no_match=True'))
    with Pipeline.load(shop.root) as pipeline:
        assert [one.names for one in pipeline.plan().found.values()] == [()]
    shop.run_well()
    shop.run_well()
    (eu,) = topics_of(shop, "eu")
    shop.ledger.produce(eu, 10, 2)
    shop.run_well()
    shop.check()


def plan_error(shop: Shop) -> HeadraceError:
    with Pipeline.load(shop.root) as pipeline, pytest.raises(HeadraceError) as caught:
        pipeline.plan()
    return caught.value


PLAIN = """
import headrace as hr
import json
from headrace import spark

FIRST, SECOND = "{topic}", "{topic}-second"
BOTH = [FIRST, SECOND]

def plain(**options):
    reader = spark.readStream.format("kafka").options(**{"startingOffsets": "earliest", **options})
    return reader.load().select("topic", "partition", "offset", "value")

def mine(**given):
    return hr.read_kafka(BOTH, **given).select("_source.*", "value")

def declare(name, query):
    hr.table(name=name)(query)

declare("listed", lambda: plain(subscribe=f"{FIRST}, {SECOND}"))
declare("assigned", lambda: plain(assign=json.dumps({FIRST: [0, 2], SECOND: [0]})))
declare("found", lambda: plain(subscribePattern=FIRST, **{"kafka.bootstrap.servers": "embedded"}))
declare("from_offsets", lambda: plain(
    subscribe=FIRST, startingOffsets=json.dumps({FIRST: {"0": 3, "1": -1, "2": -2}})))
declare("since", lambda: plain(subscribe=FIRST, startingTimestamp="{moment}"))
declare("since_each", lambda: plain(
    subscribe=FIRST, startingOffsetsByTimestamp=json.dumps({FIRST: {"0": {moment}, "1": {moment}, "2": 0}})))
declare("lenient", lambda: plain(
    subscribe=",".join(BOTH), startingTimestamp="{moment}", startingOffsetsByTimestampStrategy="latest"))
declare("tuned", lambda: plain(
    subscribe=FIRST, maxOffsetsPerTrigger="7", minOffsetsPerTrigger="1", maxTriggerDelay="1s",
    minPartitions="6", includeHeaders="true", groupIdPrefix="mine", **{
        "kafka.bootstrap.servers": "{servers}", "kafka.max.poll.records": "3", "kafka.client.id": "me"}))
declare("ours", lambda: mine(
    starting_offsets={FIRST: {0: "earliest", 1: 2, 2: "latest"}, SECOND: {0: 1}}))
declare("ours_since", lambda: mine(starting_timestamp="{iso}"))
"""


def test_every_way_to_name_topics_and_a_start_stands_under_the_protocol(shop: Shop) -> None:
    second = f"{shop.topic}-second"
    create_topic(shop.ledger.bootstrap, second, 1)
    shop.ledger.produce(shop.topic, 15, 3)
    shop.ledger.produce(second, 4, 1)
    early = list(shop.ledger.records)
    moment = datetime.now(UTC)
    until(lambda: datetime.now(UTC).timestamp() > moment.timestamp() + 0.01, "the clock goes on")
    shop.ledger.produce(shop.topic, 15, 3)
    code = PLAIN.replace("{servers}", f" {shop.ledger.bootstrap} ").replace("{iso}", moment.isoformat())
    code = code.replace("{moment}", str(int(moment.timestamp() * 1000)))
    shop.write(code)
    shop.run_well()

    late: list[Record] = []

    def starts(r: Record) -> dict[str, bool]:
        """Which of the tables have to hold a record."""
        first, new = r.topic == shop.topic, r not in early
        return {
            "listed": True,
            "assigned": r.partition != 1,
            "found": True,
            "from_offsets": first and (r.partition == 2 or r in late or (r.partition == 0 and r.offset >= 3)),
            "since": first and new,
            "since_each": first and (new or r.partition == 2),
            "lenient": new,
            "tuned": first,
            "ours": r in late or r.offset >= (1 if not first else [0, 2, 99][r.partition]),
            "ours_since": new,
        }

    def check() -> None:
        wanted = [(r.place, starts(r)) for r in shop.ledger.records]
        for name in wanted[0][1]:
            table = deltalake.DeltaTable(shop.table(name))
            rows = table.to_pyarrow_table(columns=["topic", "partition", "offset"]).to_pylist()
            assert sorted(tuple(row.values()) for row in rows) == sorted(
                p for p, in_ in wanted if in_[name]
            ), name

    check()
    shop.verify()
    before = len(shop.ledger.records)
    shop.ledger.produce(shop.topic, 9, 3)
    shop.ledger.produce(second, 3, 1)
    late += shop.ledger.records[before:]
    shop.run_well()
    check()
    shop.verify()
    assert all(flow.outcome == "up to date" for flow in shop.run_well().flows)


def test_a_start_is_chosen_once_also_where_the_first_batch_is_never_committed(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.ledger.produce(shop.topic, 9, 3)
    early = list(shop.ledger.records)
    moment = datetime.now(UTC)
    until(lambda: datetime.now(UTC).timestamp() > moment.timestamp() + 0.01, "the clock goes on")
    shop.ledger.produce(shop.topic, 1, 1)
    shop.write(BRONZE.replace("max_offsets_per_trigger={limit}", f'starting_timestamp="{moment}"'))
    fail_before_commit(shop, monkeypatch)
    shop.ledger.produce(shop.topic, 9, 3)
    shop.run_well()
    shop.ledger.forget(lambda record: record in early)
    shop.check()


def fail_before_commit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a batch that Spark has planned and that the table does not hold."""

    def fail(*_: Any) -> None:
        raise RuntimeError("the machine went off")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.sinks.delta.append.AppendTarget.begin", fail)
        assert shop.refused().code == "FLOW_FAILED"


STARTS = [
    ('starting_offsets={"{topic}": {0: 1}}', "START_INVALID", "does not name"),
    ('starting_offsets={"{topic}": {0: 0, 1: 0, 2: 0, 7: 0}}', "START_INVALID", "/7"),
    ('starting_offsets={"{topic}": {0: 999, 1: 0, 2: 0}}', "START_INVALID", "does not have the start offset"),
    ('starting_timestamp="2999-01-01"', "OPTION_INVALID", "in the future"),
    ('starting_timestamp="yesterday"', "ARGUMENT_INVALID", "not a time"),
    ('options={"startingOffsets": "{oops"}', "OPTION_INVALID", "startingOffsets"),
    ('options={"maxOffsetPerTrigger": "5"}', "OPTION_UNKNOWN", "maxOffsetPerTrigger"),
    ('options={"minPartitions": "many"}', "OPTION_INVALID", "minPartitions"),
]


def test_a_start_that_cannot_be_is_refused_with_its_line_before_anything_is_written(shop: Shop) -> None:
    shop.produce(9)
    for argument, code, words in STARTS:
        shop.write(BRONZE.replace("max_offsets_per_trigger={limit}", argument))
        for ask in (lambda: plan_error(shop), shop.refused):
            error = ask()
            assert (error.code, words in str(error)) == (code, True), (argument, error.to_dict())
            assert error.location is not None and error.location.path == "shop.py", argument
            assert error.location.line == 10, argument
    shop.write(BRONZE)
    shop.run_well()
    shop.check()


LOSING = """
import headrace as hr
from headrace import spark

def options(**more):
    plain = spark.readStream.format("kafka").option("subscribe", "{topic}")
    return plain.option("startingOffsets", "earliest").options(**more).load()

@hr.table
def bronze():
    return options(failOnDataLoss="false").select("topic", "partition", "offset", "value")

@hr.table
def mine():
    rows = hr.read_kafka("{topic}", on_data_loss="record")
    return rows.select("_source.topic", "_source.partition", "_source.offset", "value")

@hr.table
def strict():
    return options().select("topic", "partition", "offset", "value")
"""


def test_lost_records_are_recorded_for_the_flows_that_say_so_alone(shop: Shop) -> None:
    shop.write(LOSING)
    shop.produce(30)
    shop.run_well()
    ends = end_offsets(shop.ledger.bootstrap, shop.topic, shop.partitions)
    shop.produce(30)
    expire(shop.ledger.bootstrap, shop.topic, {0: ends[0] + 7})
    result = shop.run()
    assert [(error.code, error.params["flow"]) for error in result.errors] == [("OFFSETS_EXPIRED", "strict")]
    shop.ledger.forget(lambda r: r.partition == 0 and ends[0] <= r.offset < ends[0] + 7)
    shop.check(proof=False)
    with Pipeline.load(shop.root) as pipeline:
        proof = pipeline.verify(["bronze", "mine"])
    assert proof.proven
    assert json.dumps(proof.to_json()).count("7 offsets lost, as recorded") == 2


SHARED = """
import headrace as hr
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.functions import from_json

session = SparkSession.builder.getOrCreate()
records = session.readStream.format("kafka").option("subscribe", "{topic}")
records = records.option("startingOffsets", "earliest").load()
places = records.select("topic", "partition", "offset", "value")

@hr.table
def bronze():
    return places

@hr.table(spark_conf={"spark.sql.session.timeZone": "Asia/Tokyo"})
def zoned():
    return places.withColumn("zone", F.expr("current_timezone()"))

@hr.table
def parsed():
    seen = SparkSession.getActiveSession().readStream.table("bronze")
    sale = from_json(F.col("value").cast("string"), "id LONG, name STRING, sales DECIMAL(12, 2)")
    return seen.select(sale.alias("sale"), "topic", "partition", "offset")
"""


def test_a_dataframe_of_module_level_serves_several_flows_each_with_its_own_settings(shop: Shop) -> None:
    shop.write(SHARED)
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    shop.run_well()
    shop.check()
    zoned = deltalake.DeltaTable(shop.table("zoned")).to_pyarrow_table()
    assert (zoned.num_rows, set(zoned["zone"].to_pylist())) == (60, {"Asia/Tokyo"})
    assert shop.checkpoint("bronze") != shop.checkpoint("zoned")
    with Pipeline.load(shop.root) as pipeline:
        (source,) = next(one for one in pipeline.plan().flows if one.flow.name == "zoned").sources
    assert (source.location.path, source.location.line) == ("shop.py", 8)

    bad = shop.ledger.produce_raw(shop.topic, b'{"id": "no number"}', partition=1)
    shop.run_well()
    # What users parse themselves keeps Spark's semantics: a malformed record becomes NULL.
    parsed = deltalake.DeltaTable(shop.table("parsed")).to_pyarrow_table().to_pylist()
    assert len(parsed) == 61
    assert [row["offset"] for row in parsed if not row["sale"] or row["sale"]["id"] is None] == [bad.place[2]]
    assert (*bad.place, bad.value) in shop.bronze()
