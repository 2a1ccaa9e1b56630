"""Whatever happens to a topic, no record is skipped over silently and none is read twice."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

import headrace as hr
from headrace.model.events import BatchCommitted, FlowFailed, FlowReconnected, FlowReconnecting, FlowRetrying
from headrace.project.pipeline import Pipeline
from headrace.runtime.broker import Broker
from proof.ledger import TIMEOUT_S, Transaction, create_topic, end_offsets, expire, recreate_topic, settings
from proof.shop import BRONZE, SILVER, Shop
from waiting import DEADLINE_S, until

pytestmark = pytest.mark.usefixtures("spark")


_SHORTER = pytest.param(15, id="shorter", marks=pytest.mark.thorough)
_AS_LONG = pytest.param(30, id="as long")


@pytest.mark.parametrize(
    "count", [_SHORTER, _AS_LONG, pytest.param(60, id="longer", marks=pytest.mark.thorough)]
)
def test_a_topic_created_again_before_the_start_is_refused_and_then_read_whole(
    shop: Shop, count: int
) -> None:
    shop.produce(30)
    shop.run_well()
    recreate_topic(shop.ledger.bootstrap, shop.topic, shop.partitions)
    shop.produce(count)
    error = shop.refused()
    assert (error.code, error.params["topic"]) == ("TOPIC_RECREATED", shop.topic)
    shop.run_well(reset="bronze")
    shop.check()
    shop.produce(10)
    shop.run_well()
    shop.check()


@pytest.mark.parametrize(
    "count", [_SHORTER, _AS_LONG, pytest.param(60, id="longer", marks=pytest.mark.guarantee)]
)
def test_a_topic_created_again_in_the_middle_of_a_run_is_refused_and_then_read_whole(
    shop: Shop, count: int
) -> None:
    shop.produce(30)
    with shop.running():
        until(lambda: rows_committed(shop) == 30, "the first records arrive")
        recreate_topic(shop.ledger.bootstrap, shop.topic, shop.partitions)
        shop.produce(count)
        if count == 30:
            # As long as before: Spark sees nothing new until one more arrives.
            shop.produce(1)
        until(lambda: bool(shop.happened(FlowFailed)), "the flow is refused")
    (failed,) = shop.happened(FlowFailed)
    assert isinstance(failed, FlowFailed)
    assert failed.error["code"] == "TOPIC_RECREATED", failed.error
    assert shop.refused().code == "TOPIC_RECREATED"
    shop.run_well(reset="bronze")
    shop.check()


def test_a_log_that_was_rolled_back_is_refused_and_reported_and_then_read_whole(
    shop: Shop, broker: Broker
) -> None:
    shop.produce(30)
    shop.run_well()
    with stopped(broker):
        copies = keep_log(broker, shop.topic)
    kept = len(shop.ledger.records)
    shop.produce(30)
    shop.run_well()
    lost = shop.ledger.records[kept:]
    with stopped(broker):
        restore_log(broker, copies)
    ends = end_offsets(shop.ledger.bootstrap, shop.topic, shop.partitions)
    assert sum(ends.values()) == 30, "the log was not rolled back"
    assert shop.refused().code == "OFFSETS_BEYOND_END"
    del shop.ledger.records[kept:]
    shop.produce(45)
    reused = {record.place for record in lost} & {record.place for record in shop.ledger.records}
    assert len(reused) == 30, "the offsets were not used again"
    error = shop.refused()
    assert error.code == "OFFSETS_REUSED"
    assert (shop.topic, error.params["partition"], error.params["offset"]) in reused
    assert error.params["timestamp_ms"] < error.params["now_ms"]
    assert shop.refused(reset="bronze").code == "OFFSETS_REUSED"
    with Pipeline.load(shop.root) as pipeline:
        found = pipeline.verify().findings
    assert {one.code for one in found} == {"OFFSETS_REUSED"}
    assert {one.place["partition"] for one in found} == set(range(shop.partitions))
    with Pipeline.load(shop.root) as pipeline:
        assert pipeline.full_refresh(["bronze"], accept_loss=["bronze"]).outcome == "completed"
    shop.check()


AT_MS = 1_700_000_000_000


def produce_at(shop: Shop, values: list[str]) -> None:
    """Records with the same timestamp, each acknowledged before the next."""
    producer = Producer(settings(shop.ledger.bootstrap))
    for value in values:
        producer.produce(shop.topic, value, partition=0, timestamp=AT_MS)
        assert producer.flush(TIMEOUT_S) == 0


def wait_for_end(shop: Shop, offset: int) -> None:
    """Waits for the markers of transactions, which the broker writes after it has confirmed the commit."""
    until(lambda: end_offsets(shop.ledger.bootstrap, shop.topic, 1) == {0: offset}, "the markers are written")


@pytest.mark.parametrize("now", ["another record with its timestamp", "a transaction marker"])
def test_a_log_that_was_rolled_back_is_refused_whatever_is_at_the_offset_now(
    make_shop: Callable[..., Shop], broker: Broker, now: str
) -> None:
    shop = make_shop(partitions=1)
    produce_at(shop, ["0", "1", "2"])
    shop.run_well()
    with stopped(broker):
        copies = keep_log(broker, shop.topic)
    # The batch ends with three markers, and with the record 6 before them.
    transactions = [shop.ledger.begin(shop.topic, 1, 1) for _ in range(3)]
    produce_at(shop, ["6"])
    for transaction in transactions:
        transaction.commit()
    wait_for_end(shop, 10)
    shop.run_well()
    with stopped(broker):
        restore_log(broker, copies)
    if now == "a transaction marker":
        produce_at(shop, ["x", "y"])
        shop.ledger.begin(shop.topic, 1, 1).commit()
        wait_for_end(shop, 7)
    produce_at(shop, list("abcdefg"))
    error = shop.refused()
    assert (error.code, error.params["partition"], error.params["offset"]) == ("OFFSETS_REUSED", 0, 6)
    assert error.params["now_ms"] == (None if now == "a transaction marker" else AT_MS)
    with Pipeline.load(shop.root) as pipeline:
        found = pipeline.verify().findings
    assert ("OFFSETS_REUSED", 6) in {(one.code, one.place.get("offset")) for one in found}


@contextmanager
def stopped(broker: Broker) -> Iterator[None]:
    """Stops the broker for the block."""
    broker.stop()
    try:
        yield
    finally:
        broker.start()


def keep_log(broker: Broker, topic: str) -> dict[Path, Path]:
    """A copy of the log folder of each partition of a topic."""
    copies = {log: log.parent.parent / f"copy-of-{log.name}" for log in broker.data.glob(f"{topic}-*")}
    assert copies
    for log, copy in copies.items():
        shutil.copytree(log, copy)
    return copies


def restore_log(broker: Broker, copies: dict[Path, Path]) -> None:
    """Puts the copies in the place of the log folders."""
    for log, copy in copies.items():
        shutil.rmtree(log)
        copy.rename(log)


def rows_committed(shop: Shop) -> int:
    return sum(event.rows for event in shop.happened(BatchCommitted) if isinstance(event, BatchCommitted))


def test_a_topic_that_is_gone_is_named(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    admin = AdminClient(settings(shop.ledger.bootstrap))
    admin.delete_topics([shop.topic])[shop.topic].result(TIMEOUT_S)
    assert shop.refused().code == "TOPIC_NOT_FOUND"


def test_a_new_generation_of_a_topic_that_is_the_same_reads_nothing_twice(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    shop.produce(20)
    shop.run_well(reset="bronze")
    shop.check()


def test_a_subscription_that_gains_a_topic_goes_on_in_a_new_generation(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    first, second = shop.topic, f"{shop.topic}-second"
    create_topic(shop.ledger.bootstrap, second, 1)
    shop.ledger.produce(second, 10, 1)
    shop.ledger.produce(first, 10, shop.partitions)
    shop.topic = f"{first},{second}"
    shop.write()
    error = shop.refused()
    assert error.code == "SOURCES_CHANGED"
    assert any("reset bronze" in remedy for remedy in error.remedies)
    shop.run_well(reset="bronze")
    shop.check()
    recreate_topic(shop.ledger.bootstrap, second, 1)
    shop.ledger.produce(second, 20, 1)
    shop.ledger.produce(first, 10, shop.partitions)
    error = shop.refused()
    assert (error.code, error.params["topic"]) == ("TOPIC_RECREATED", second)
    shop.run_well(reset="bronze")
    shop.check()


def add_partitions(shop: Shop, count: int) -> None:
    admin = AdminClient(settings(shop.ledger.bootstrap))
    admin.create_partitions([NewPartitions(shop.topic, count)])[shop.topic].result(TIMEOUT_S)
    shop.partitions = count


def test_new_partitions_are_read_from_their_beginning(shop: Shop) -> None:
    shop.produce(30)
    shop.run_well()
    add_partitions(shop, 5)
    shop.produce(30)
    shop.run_well()
    shop.produce(30)
    shop.run_well()
    shop.check()


def test_partitions_that_are_added_in_the_middle_of_a_run_are_read_from_their_beginning(shop: Shop) -> None:
    shop.produce(30)
    with shop.running():
        until(lambda: rows_committed(shop) == 30, "the first records arrive")
        for count in (4, 6):
            before = rows_committed(shop)
            add_partitions(shop, count)
            shop.produce(30)
            until(lambda expected=before + 30: rows_committed(shop) == expected, "all partitions are read")
    assert not shop.happened(FlowRetrying) and not shop.happened(FlowFailed)
    shop.check()


@pytest.mark.parametrize("pending", [False, True], ids=["between batches", "with a batch planned"])
def test_records_that_expired_unread_are_refused_or_recorded_as_lost(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, pending: bool
) -> None:
    shop.produce(30)
    shop.run_well()
    ends = end_offsets(shop.ledger.bootstrap, shop.topic, shop.partitions)
    shop.produce(30)
    if pending:
        fail_before_commit(shop, monkeypatch)
        shop.produce(30)
    expired = {0: ends[0] + 7, 1: ends[1] + 2}
    expire(shop.ledger.bootstrap, shop.topic, expired)
    error = shop.refused()
    assert error.code == "OFFSETS_EXPIRED"
    assert [(loss["partition"], loss["from"], loss["until"]) for loss in error.params["losses"]] == [
        (0, ends[0], ends[0] + 7),
        (1, ends[1], ends[1] + 2),
    ]
    shop.spec["on_data_loss"] = "record"
    shop.write()
    shop.run_well()
    lost = shop.ledger.forget(
        lambda r: r.offset >= ends[r.partition] and r.offset < expired.get(r.partition, 0)
    )
    assert lost == 9
    proof = shop.check()
    assert proof is not None and "9 offsets lost, as recorded" in json.dumps(proof.to_json())
    with Pipeline.load(shop.root) as pipeline:
        (gone,) = pipeline.plan_refresh(["bronze"]).gone
    assert gone.count == sum(expired.values()) and shop.topic in gone.text
    shop.produce(10)
    shop.run_well()
    shop.check()


def fail_before_commit(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave a batch that Spark has planned and that the table does not hold."""

    def fail(*_: Any) -> None:
        raise RuntimeError("the machine went off")

    with monkeypatch.context() as patch:
        patch.setattr("headrace.sinks.delta.append.AppendTarget.begin", fail)
        assert shop.refused().code == "FLOW_FAILED"


@pytest.mark.guarantee
def test_aborted_transactions_never_arrive_and_leave_no_gap(shop: Shop) -> None:
    def begin(count: int) -> Transaction:
        return shop.ledger.begin(shop.topic, count, shop.partitions)

    begin(20).abort()
    shop.run_well()
    shop.check()
    shop.produce(10)
    begin(20).commit()
    begin(20).abort()
    shop.run_well()
    shop.check()
    begin(5).abort()
    shop.run_well()
    shop.produce(10)
    shop.run_well()
    shop.check()


def test_an_open_transaction_holds_back_what_follows_it(shop: Shop) -> None:
    transaction = shop.ledger.begin(shop.topic, 10, shop.partitions)
    shop.produce(30)
    shop.run_well()
    assert shop.bronze() == []
    transaction.commit()
    shop.run_well()
    shop.check()


def test_a_broker_that_is_killed_in_the_middle_of_a_run_and_comes_back_costs_nothing(
    make_shop: Callable[..., Shop], broker: Broker
) -> None:
    # Java's clients wait for a minute by themselves; so long the test cannot wait.
    patience = {"request.timeout.ms": "2000", "default.api.timeout.ms": "2000"}
    shop = make_shop(kafka={"bootstrap.servers": broker.start(), **patience})
    shop.produce(30)
    with shop.running():
        until(lambda: rows_committed(shop) == 30, "the first records arrive")
        kill(broker)
        stopped = datetime.now(UTC)
        try:
            until(lambda: bool(shop.happened(FlowReconnecting)), "the lost broker is reported")
            assert shop.happened(FlowReconnecting)[0].at - stopped < timedelta(seconds=60)
            until(lambda: bool(shop.happened(FlowRetrying)), "the flow is tried again")
        finally:
            broker.start()
        until(lambda: bool(shop.happened(FlowReconnected)), "the broker's return is reported")
        shop.produce(30)
        until(lambda: rows_committed(shop) == 60, "the later records arrive")
    assert not shop.happened(FlowFailed)
    shop.check()


def kill(broker: Broker) -> None:
    """Ends the broker's process as a crash does."""
    process = psutil.Process(broker.status().pid)
    process.kill()
    process.wait(DEADLINE_S)
    assert broker.status().state == "stopped"


BAD = [
    b"no json",
    b'{"id": "x", "name": "n", "sales": 1.00}',
    b'{"id": 99999999999999999999, "name": "n", "sales": 1.00}',
    b'{"id": 1, "name": "n", "sales": 123456789012345.00}',
    b'{"id": 1, "name": "n", "sales": ',
    b"[1]",
    b'[{"id": 1}, {"id": 2}]',
    b'{"id": 1} {"id": 2}',
    b"null",
    b"",
    None,
]


def test_a_record_that_is_no_sale_goes_to_the_quarantine_of_the_flow_that_parses_it(
    make_shop: Callable[..., Shop], spark: Any
) -> None:
    shop = make_shop(partitions=2)
    shop.write(BRONZE, SILVER)
    shop.produce(20)
    shop.run_well("bronze", "silver")
    shop.produce(20)
    shop.ledger.produce_raw(shop.topic, BAD[0], partition=1)
    shop.produce(20)
    shop.run_well("bronze", "silver")
    shop.check(proof=False)
    silver = spark.read.format("delta").load(str(shop.table("silver")))
    assert silver.count() == 60
    quarantine = shop.root / "lake" / "quarantine" / shop.database / "silver"
    assert spark.read.format("delta").load(str(quarantine)).count() == 1


@pytest.mark.parametrize("value", BAD, ids=repr)
def test_no_record_becomes_a_row_of_nulls(spark: Any, value: bytes | None) -> None:
    rows = spark.createDataFrame([(value, 7)], "value BINARY, offset BIGINT")
    sale = hr.parse_json("value", "id LONG, name STRING, sales DECIMAL(12,2)", at=["offset"])
    with pytest.raises(Exception, match=r'HEADRACE_BAD_RECORD \{.*"at":\{"offset":7\}'):
        rows.select(sale).collect()
