"""Each record of a Kinesis stream is in the table once: kills, resharding, throttling, lost records."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.run.failpoints import FAIL_VARIABLE, Point
from kinesis_server import FAULTS, KinesisServer, aggregate
from proof.driver import start
from stream_site import StreamSite
from waiting import until

pytestmark = pytest.mark.usefixtures("spark")

POINTS: tuple[Point, ...] = ("batch-start", "before-commit", "after-commit", "after-batch")


@pytest.fixture
def site(tmp_path: Path, kinesis_server: KinesisServer) -> StreamSite:
    return StreamSite(tmp_path / "site", kinesis_server)


@pytest.fixture(autouse=True)
def no_faults() -> Iterator[None]:
    yield
    FAULTS.end()


def test_a_kill_at_any_point_loses_and_doubles_nothing(site: StreamSite) -> None:
    """Each start replays what the kill before left behind, from the stream: the rows that the plan has kept
    are gone with its process. Shards are split and merged in between."""
    for batch, point in enumerate(POINTS, 1):
        site.put(30)
        with start(site, pause=(point, batch)) as driver:  # type: ignore[arg-type]
            driver.wait_at(point)
            (site.server.split if batch % 2 else site.server.merge)(site.stream)
            site.put(10)
            driver.kill("both" if driver.has_jvm else "python")
            driver.wait_until_gone()
    site.put(10)
    site.run_well()
    site.check()


@pytest.mark.parametrize("point", POINTS)
def test_a_batch_that_failed_is_read_again_with_the_same_records(
    site: StreamSite, point: Point, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(40)
    monkeypatch.setenv(FAIL_VARIABLE, f"{point}:1")
    assert site.run().outcome == "failed"
    site.put(40)
    site.run_well()
    site.check()
    assert site.commits()[0]["input"] == 40


def test_shards_that_are_split_and_merged_in_mid_run_lose_and_double_nothing(site: StreamSite) -> None:
    site.put(50)
    with start(site, "--continuous") as driver:  # type: ignore[arg-type]
        until(lambda: site.holds(50), "the first records are there")
        for step, reshard in enumerate((site.server.split, site.server.merge, site.server.split)):
            site.put(25)
            reshard(site.stream)
            site.put(25)
            reshard(site.stream)
            wanted = 50 * (step + 2)
            until(lambda wanted=wanted: site.holds(wanted), f"{wanted} records are there")
        driver.kill("both" if driver.has_jvm else "python")
        driver.wait_until_gone()
    site.put(5)
    site.run_well()
    site.check()


def test_the_records_of_a_key_stay_in_order_across_a_split(site: StreamSite) -> None:
    """The children of a shard are read in a later batch than its last records."""
    site.put(20)
    site.server.split(site.stream)
    site.put(20)
    site.server.split(site.stream)
    site.put(20)
    site.run_well()
    site.check()
    last = 0
    for commit in site.commits():
        (source,) = commit["sources"]
        shards = source["until"][site.stream]
        for parent, children in (("0", ("2", "3")),):
            begun = [one for one in children if shards.get(one, {}).get("number", 0)]
            before = source["from"][site.stream].get(parent, {})
            assert not begun or before.get("closed"), "a child was read before its parent had ended"
            last += len(begun)
    assert last


def test_of_two_drivers_one_is_refused_and_the_other_reads_each_record_once(site: StreamSite) -> None:
    site.put(10)
    with start(site, pause=("before-commit", 1)) as driver:  # type: ignore[arg-type]
        driver.wait_at("before-commit")
        assert site.error().code == "SECOND_DRIVER"
        driver.go_on("before-commit")
        assert driver.end() == 0
    site.check()


@pytest.mark.parametrize("harm", ["removed", "cut", "replaced"])
def test_harmed_files_of_kept_rows_are_not_read(site: StreamSite, harm: str, monkeypatch: Any) -> None:
    """The batch reads the stream again. Two shards have the same number of records here."""
    monkeypatch.setenv("TMPDIR", str(site.root))
    monkeypatch.setenv("HEADRACE_ENGINE", "off")
    for one in site.server.open_shards(site.stream):
        keys = [{"ExplicitHashKey": str(one.starting_hash), "PartitionKey": "k"}] * 20
        ids = range(len(site.put_ids), len(site.put_ids) + 20)
        records = [
            {**key, "Data": json.dumps({"id": id}).encode()} for key, id in zip(keys, ids, strict=True)
        ]
        site.server.client.put_records(StreamName=site.stream, Records=records)
        site.put_ids += ids
    with start(site, pause=("batch-start", 1)) as driver:  # type: ignore[arg-type]
        driver.wait_at("batch-start")
        one, two = site.root.glob("headrace-kinesis-*/*.arrow")
        match harm:
            case "removed":
                one.unlink()
            case "cut":
                one.write_bytes(one.read_bytes()[:-200])
            case "replaced":
                one.write_bytes(two.read_bytes())
        driver.go_on("batch-start")
        assert driver.end() == 0, driver.said()
    site.check()


def test_throttled_and_empty_pages_and_expired_iterators_lose_and_double_nothing(site: StreamSite) -> None:
    site.put(100)
    FAULTS.codes = [
        "ProvisionedThroughputExceededException",
        "ExpiredIteratorException",
        *["ProvisionedThroughputExceededException"] * 4,
        "InternalFailure",
        "ExpiredIteratorException",
    ]
    FAULTS.empty = 6
    site.run_well()
    site.check()
    assert not FAULTS.codes and not FAULTS.empty


def test_a_start_at_the_end_reads_all_records_since_the_flow_was_opened(
    site: StreamSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.write(more=', starting_position="latest"')
    site.run_well()  # there is no record yet
    site.put(30)
    monkeypatch.setenv(FAIL_VARIABLE, "before-commit:1")
    assert site.run().outcome == "failed"
    site.put(30)
    site.run_well()
    site.check()


def test_a_stream_that_was_created_again_is_refused(site: StreamSite) -> None:
    site.put(10)
    site.run_well()
    site.server.delete(site.stream)
    site.server.create(site.stream, 1)
    site.put(10)
    refused = site.error()
    assert refused.code == "STREAM_RECREATED"
    assert len(site.ids()) == 10
    site.run_well(reset=frozenset(["clicks"]))
    assert site.ids() == site.put_ids


def test_a_stream_that_is_created_again_during_a_batch_is_not_committed(site: StreamSite) -> None:
    site.put(10)
    site.run_well()
    site.put(10)
    with start(site, pause=("batch-start", 2)) as driver:  # type: ignore[arg-type]
        driver.wait_at("batch-start")
        site.server.delete(site.stream)
        site.server.create(site.stream, 2)
        driver.go_on("batch-start")
        driver.end()
        assert "STREAM_RECREATED" in driver.said() or "OFFSETS_EXPIRED" in driver.said()
    assert len(site.ids()) == 10


def test_records_that_expired_are_refused_or_recorded_as_lost(site: StreamSite) -> None:
    site.put(20)
    site.run_well()
    site.put(20)
    site.server.expire(site.stream)
    site.put_ids = site.put_ids[:20]
    refused = site.error()
    assert refused.code == "OFFSETS_EXPIRED" and refused.remedies
    assert "shardId-000000000000: it was read up to" in refused.facts[0]
    assert site.ids() == site.put_ids

    site.write_spec(on_data_loss="record")
    site.run_well()
    new = [json.dumps({"id": one}).encode() for one in (100, 101, 102)]
    site.server.put(site.stream, *((f"key-{n}", one) for n, one in enumerate(new)))
    site.run_well()
    assert site.ids() == [*site.put_ids, 100, 101, 102]
    proof = site.proof()
    assert proof["grades"]["ranges"]["figures"]["lost"] >= 2
    assert proof["grades"]["ranges"]["verdict"] == "proven"


def test_a_batch_that_failed_and_whose_records_have_expired_is_a_recorded_loss(
    site: StreamSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.put(20)
    site.run_well()
    site.put(20)
    monkeypatch.setenv(FAIL_VARIABLE, "before-commit:2")
    assert site.run().outcome == "failed"
    site.server.expire(site.stream)
    site.server.put(site.stream, *((f"key-{one}", json.dumps({"id": one}).encode()) for one in (100, 101)))
    assert site.error().code == "OFFSETS_EXPIRED"
    site.write_spec(on_data_loss="record")
    for _ in range(2):
        site.run_well()
        assert site.ids() == [*range(20), 100, 101]
    assert site.verdicts()["ranges"] == "proven"


def test_a_planned_batch_that_the_stream_has_lost_a_record_of_is_left_out_by_a_reset(
    site: StreamSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The records of a first batch can be almost as old as the retention when the flow starts."""
    site.put(20)
    monkeypatch.setenv(FAIL_VARIABLE, "before-commit:1")
    assert site.run().outcome == "failed"
    shard = site.server.open_shards(site.stream)[0]
    gone = json.loads(b64decode(shard.records.popitem(last=False)[1].data))
    error = site.error()
    assert error.code == "OFFSETS_EXPIRED" and "headrace reset clicks" in error.remedies[0]
    site.put_ids.remove(gone["id"])
    site.run_well(reset=frozenset(["clicks"]))
    site.check()


def test_a_shard_that_vanished_unread_is_refused(site: StreamSite) -> None:
    site.put(20)
    site.run_well()
    site.server.split(site.stream)
    site.server.forget_closed(site.stream)
    refused = site.error()
    assert refused.code == "OFFSETS_EXPIRED"


def test_shards_that_came_and_expired_while_the_flow_was_stopped_are_a_loss(
    tmp_path: Path, kinesis_server: KinesisServer
) -> None:
    """The flow has read their parent to its end, and Kinesis lists none of them any more."""
    site = StreamSite(tmp_path / "site", kinesis_server, shards=1)
    site.put(20)
    site.server.split(site.stream)
    site.run_well()
    site.put(20)
    site.server.split(site.stream)
    site.server.split(site.stream)
    site.server.expire(site.stream)
    site.server.forget_closed(site.stream)
    new = list(range(100, 120))
    site.server.put(site.stream, *((f"key-{one}", json.dumps({"id": one}).encode()) for one in new))
    assert site.error().code == "OFFSETS_EXPIRED"
    site.write_spec(on_data_loss="record")
    for _ in range(2):
        site.run_well()
        assert site.ids() == [*range(20), *new]
    assert site.proof()["grades"]["ranges"]["figures"]["lost"] == 4


def test_parents_that_were_read_and_have_expired_are_not_read_again(site: StreamSite) -> None:
    site.put(20)
    site.server.split(site.stream)
    site.put(20)
    site.run_well()
    site.server.forget_closed(site.stream)
    site.put(20)
    site.run_well()
    site.run_well()
    assert site.ids() == site.put_ids
    assert set(site.verdicts().values()) <= {"proven", "partial"}


def test_verify_finds_rows_that_were_lost_and_rows_that_are_there_twice(site: StreamSite) -> None:
    site.put(40)
    site.run_well()
    site.check()
    # A file without a commit: one row removed, another doubled.
    file = max(site.table.glob("*.parquet"), key=lambda path: pq.read_metadata(path).num_rows)
    rows = pq.read_table(file)
    gone, doubled = (rows.column("_source")[index].as_py() for index in (5, 6))
    pq.write_table(pa.concat_tables([rows.slice(0, 5), rows.slice(6, 1), rows.slice(6)]), file)
    records = site.proof()["grades"]["records"]
    assert records["verdict"] == "refuted"
    assert {one["code"]: (one["shard"], one["ranges"]) for one in records["findings"]} == {
        "RECORDS_MISSING": (gone["shard"], [[gone["record_number"], gone["record_number"] + 1]]),
        "RECORDS_TWICE": (doubled["shard"], [[doubled["record_number"], doubled["record_number"] + 1]]),
    }


def test_verify_finds_a_record_that_the_stream_has_and_a_batch_has_not_counted(site: StreamSite) -> None:
    site.put(40)
    site.run_well()
    shard = next(one for one in site.server.stream(site.stream).shards.values() if len(one.records) > 2)
    first = next(iter(shard.records))
    shard.records[first].data = _aggregated(shard.records[first])
    proof = site.proof()["grades"]
    assert proof["ranges"]["verdict"] == "refuted"
    assert proof["ranges"]["findings"][0]["code"] == "RANGE_DIFFERS"


def _aggregated(record: Any) -> str:
    """A record that holds two now, in the form of the server."""
    return b64encode(aggregate([(record.partition_key, b"{}"), (record.partition_key, b"{}")])).decode()
