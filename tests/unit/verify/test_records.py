"""The third grade: every record that the broker holds is in the table, once, and nothing else is."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from lake import HandFlow, Lake, LakeTable, edit, replace_file, rows
from rejected_rows import rejected, write_rejected

from headrace.model.kafka_settings import KafkaConnection
from headrace.verify import records as records_module

Verify = Any
Broker = Any


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table()


@pytest.fixture
def flow(table: LakeTable) -> HandFlow:
    return table.flow()


def ranges_of(report: Any, code: str) -> dict[int, list[list[int]]]:
    """The offending ranges by partition."""
    return {f.place["partition"]: f.place["ranges"] for f in report.findings if f.code == code}


def test_every_record_once(flow: HandFlow, verify: Verify, broker: Broker) -> None:
    flow.append({0: (0, 10), 1: (0, 5)})
    flow.append({0: (10, 20)})
    broker.holds({0: range(20), 1: range(5)})
    report = verify.grade("records")
    assert report.verdict == "proven"
    assert report.text == "25 read from Kafka = 25 in the table"


def test_records_beyond_the_last_commit_are_not_judged(
    flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    flow.append({0: (0, 10)})
    broker.holds({0: range(500)})
    assert verify.grade("records").verdict == "proven"


def test_one_row_removed_and_another_doubled_in_one_batch(
    flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    flow.append({0: (0, 10)}, rows([0, 1, 2, 3, 4, 6, 6, 7, 8, 9]))
    broker.holds({0: range(10)})
    assert verify.grade("ranges").verdict == "proven"
    assert verify.grade("counts").verdict == "proven"
    report = verify.grade("records")
    assert ranges_of(report, "RECORDS_MISSING") == {0: [[5, 6]]}
    assert ranges_of(report, "RECORDS_TWICE") == {0: [[6, 7]]}
    assert verify().exit_code == 1


def test_a_file_that_was_replaced_without_a_commit(
    table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    flow.append({0: (0, 10)})
    broker.holds({0: range(10)})
    (add,) = table.active()
    path = table.path / add["path"]
    # Equal size, rows, bounds and age: nothing but the rows themselves can tell.
    replace_file(path, rows([0, 1, 2, 3, 3, 5, 6, 7, 8, 9]))
    assert path.stat().st_size == add["size"]
    report = verify.grade("records")
    assert ranges_of(report, "RECORDS_MISSING") == {0: [[4, 5]]}
    assert ranges_of(report, "RECORDS_TWICE") == {0: [[3, 4]]}


def test_offending_offsets_are_told_as_ranges_of_each_partition(
    flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    lost = {2, 3, 4, 50}
    content = rows(sorted(set(range(100)) - lost)) + rows([*range(10), 7], 1)
    flow.append({0: (0, 100), 1: (0, 10)}, content)
    broker.holds({0: range(100), 1: range(10)})
    report = verify.grade("records")
    assert ranges_of(report, "RECORDS_MISSING") == {0: [[2, 5], [50, 51]]}
    assert ranges_of(report, "RECORDS_TWICE") == {1: [[7, 8]]}
    assert report.findings[0].text == "sales/0: offsets 2 to 4, 50 are on the broker and not in the table"


def test_a_row_outside_of_every_committed_range_is_found(
    flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    flow.append({0: (0, 10)}, rows([*range(10), 99]) + rows([3], 7) + rows([4], 0, "elsewhere"))
    broker.holds({0: range(100)})
    report = verify.grade("records")
    assert [f.text for f in report.findings if f.code == "RECORDS_STRANGE"] == [
        "elsewhere/0: offset 4 is in the table, outside the committed ranges",
        "sales/0: offset 99 is in the table, outside the committed ranges",
        "sales/7: offset 3 is in the table, outside the committed ranges",
    ]


def test_rows_without_a_place_are_found(flow: HandFlow, verify: Verify, broker: Broker) -> None:
    flow.append({0: (0, 10)}, [*rows(range(10)), (10, None, None, None)])
    broker.holds({0: range(10)})
    assert verify.codes("records") == ["RECORDS_NOWHERE"]


class TestOffsetsWithoutRecords:
    """Transaction markers, aborted records and compaction leave gaps that are no loss."""

    def test_markers_and_aborted_records(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        kept = sorted(set(range(30)) - {9, 10, 11, 12, 29})
        flow.append({0: (0, 30)}, rows(kept))
        broker.holds({0: kept}, high={0: 30})
        report = verify.grade("records")
        assert report.verdict == "proven"
        assert report.text == "25 read from Kafka = 25 in the table"

    def test_a_row_of_an_aborted_record_is_found(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 30)})
        broker.holds({0: set(range(30)) - {11, 12}}, high={0: 30})
        report = verify.grade("records")
        assert ranges_of(report, "RECORDS_UNCOMMITTED") == {0: [[11, 13]]}

    @pytest.mark.parametrize("compacted", [True, None])
    def test_a_row_whose_record_was_compacted_later_is_no_fault(
        self, flow: HandFlow, verify: Verify, broker: Broker, compacted: bool | None
    ) -> None:
        flow.append({0: (0, 30)})
        broker.holds({0: set(range(30)) - {11, 12}}, high={0: 30}, compacted=compacted)
        assert verify.grade("records").verdict == "proven"

    def test_a_large_topic_is_asked_only_for_what_the_table_lacks(
        self, flow: HandFlow, verify: Verify, broker: Broker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(records_module, "READ_WHOLE", 10)
        monkeypatch.setattr(records_module, "_REACH", 3)
        flow.append({0: (0, 1000)}, rows(sorted(set(range(1000)) - {100, 102, 500})))
        broker.holds({0: set(range(1000)) - {100, 500}})
        report = verify.grade("records")
        assert ranges_of(report, "RECORDS_MISSING") == {0: [[102, 103]]}
        asked = {place: spans.pairs() for place, spans in broker.asked.items()}
        assert asked == {("sales", 0): [(100, 103), (500, 501)]}
        broker.topics["sales"].offsets[0] -= {102}
        report = verify.grade("records")
        assert report.verdict == "proven"
        assert report.text == "1,000 offsets = 997 in the table + 3 without a record"


class TestUnread:
    """Records that the flow has not read yet are counted, and are not missing."""

    def test_behind_the_last_batch(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        flow.append({0: (0, 10), 1: (0, 5)})
        broker.holds({0: range(3010), 1: range(5), 2: range(75)})
        assert verify.grade("records").text == "15 read from Kafka = 15 in the table; 3,075 unread"

    def test_before_the_first_batch(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        broker.holds({0: range(10)})
        assert verify.grade("records").text == "no record yet"

    def test_in_partitions_that_the_query_does_not_name(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        source = flow.source({"sales": {"0": 0}}, {"sales": {"0": 10}})
        source["identity"]["partitions"] = {"sales": [0]}
        flow.append_from([source], rows(range(10)))
        broker.holds({0: range(12), 1: range(75)})
        assert verify.grade("records").text == "10 read from Kafka = 10 in the table; 2 unread"


class TestWhatTheBrokerNoLongerHolds:
    def test_expired_records_lower_the_grade(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        flow.append({0: (0, 100)})
        broker.holds({0: range(40, 100)}, low={0: 40})
        report = verify.grade("records")
        assert report.verdict == "partial"
        assert report.reasons == ("the broker no longer holds records of sales/0 (before offset 40)",)
        assert verify().exit_code == 0
        assert verify(require="records").exit_code == 3
        assert verify(require="counts").exit_code == 0

    def test_a_doubled_row_below_what_the_broker_holds_is_found(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 100)}, rows([*range(100), 7]))
        broker.holds({0: range(40, 100)}, low={0: 40})
        assert ranges_of(verify.grade("records"), "RECORDS_TWICE") == {0: [[7, 8]]}

    def test_a_missing_row_above_is_still_found(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        flow.append({0: (0, 100)}, rows(sorted(set(range(100)) - {20, 60})))
        broker.holds({0: range(40, 100)}, low={0: 40})
        assert ranges_of(verify.grade("records"), "RECORDS_MISSING") == {0: [[60, 61]]}

    def test_without_a_broker_the_grade_cannot_be_judged(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        report = verify.grade("records")
        assert report.verdict == "unjudged"
        assert report.reasons == ("no Kafka broker answers at nowhere",)
        assert verify().exit_code == 0
        proof = verify(require="records")
        assert proof.exit_code == 3
        assert proof.unmet == ("bronze: records: no Kafka broker answers at nowhere",)

    def test_without_a_broker_a_doubled_row_is_still_found(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)}, rows([*range(10), 3]))
        assert ranges_of(verify.grade("records"), "RECORDS_TWICE") == {0: [[3, 4]]}

    def test_a_topic_that_is_gone(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(5)}, topic="another")
        report = verify.grade("records")
        assert report.verdict == "unjudged"
        assert report.reasons == ("the broker no longer has the topic sales",)

    def test_a_topic_that_was_created_again_is_judged_by_its_own_records(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        flow.open("reset", topic_id="topic-2")
        flow.append({0: (0, 4)})
        broker.holds({0: range(4)}, id="topic-2")
        report = verify.grade("records")
        assert report.verdict == "partial"
        assert "was deleted" in report.reasons[0]
        flow.append({0: (4, 20)}, rows([*range(4, 19), 18, 18]))
        broker.holds({0: range(20)}, id="topic-2")
        report = verify.grade("records")
        assert ranges_of(report, "RECORDS_MISSING") == {0: [[19, 20]]}
        assert ranges_of(report, "RECORDS_TWICE") == {0: [[18, 19], [18, 19]]}

    def test_recorded_losses_are_not_missed(self, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        flow.append({0: (0, 10)})
        loss = {"source": 0, "topic": "sales", "partition": 0, "from": 10, "until": 15}
        flow.open("data-loss", at={"sales": {"0": 15}}, losses=[loss])
        flow.append({0: (15, 20)})
        broker.holds({0: range(20)})
        assert verify.grade("records").verdict == "proven"

    def test_a_topic_that_ends_before_what_was_read(
        self, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(8)})
        report = verify.grade("records")
        assert report.verdict == "partial"
        assert "ends at offset 8, and it was read up to 10" in report.reasons[0]


class TestOthers:
    """What other writers add and remove is accounted for, so that ours can still be judged."""

    def test_deletion_vectors(self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        table.delete([2, 3], table.active()[0], inline=True)
        table.delete([2, 3, 7], table.active()[0])
        assert verify.grade("records").verdict == "proven"
        assert verify().proven

    def test_a_damaged_deletion_vector_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        table.delete([2, 3], table.active()[0])
        (path,) = table.path.glob("deletion_vector_*.bin")
        path.write_bytes(path.read_bytes()[:-6] + b"\0" * 6)
        assert "RECORDS_UNREADABLE" in verify.codes("records")

    def test_erased_rows_are_not_missed_and_lost_ones_are(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)}, rows(range(10, 19)))
        broker.holds({0: range(20)})
        table.commit([table.remove(table.active()[0])], operation="DELETE")
        assert ranges_of(verify.grade("records"), "RECORDS_MISSING") == {0: [[19, 20]]}

    def test_an_erasure_whose_files_are_vacuumed_is_known_by_number_only(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        broker.holds({0: range(20)})
        add = table.active()[0]
        table.commit([table.remove(add)], operation="DELETE")
        (table.path / add["path"]).unlink()
        report = verify.grade("records")
        assert report.verdict == "partial"
        assert "10 records missing, and other writers removed 10 rows" in report.reasons[0]
        assert verify().exit_code == 0

    def test_records_that_another_writer_rolled_back_are_missed(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        broker.holds({0: range(20)})
        table.commit([table.remove(table.active()[1])], operation="RESTORE")
        assert ranges_of(verify.grade("records"), "RECORDS_MISSING") == {0: [[10, 20]]}

    def test_an_overwrite_with_the_same_records_misses_none(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        table.commit([table.remove(table.active()[0]), table.write(rows(range(10)))], operation="WRITE")
        assert verify.grade("records").verdict == "proven"

    def test_what_others_added_and_erased_stands_in_the_equation(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        table.delete([2, 3], table.active()[0])
        table.commit([table.write(rows([5, 5, 5]))], operation="WRITE")
        assert verify.grade("records").text == (
            "10 read from Kafka = 8 in the table (and 3 by other writers) + 2 erased by other writers"
        )

    def test_an_erasure_that_only_the_ledger_remembers_is_known_by_number_only(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        broker.holds({0: range(20)})
        erased = table.commit([table.remove(table.active()[0])], operation="DELETE")
        other = {"version": erased, "timestamp": 1, "operation": "DELETE", "engine": "spark"}
        table.fold("bronze", 0, erased, flow.said, [{**other, "added": 0, "removed": 10}])
        table.forget_log(erased)
        report = verify.grade("records")
        assert report.verdict == "partial"
        assert "10 records missing, and other writers removed 10 rows" in report.reasons[0]
        table.fold("bronze", 0, erased, flow.said, [{**other, "added": 0, "removed": 9}])
        assert ranges_of(verify.grade("records"), "RECORDS_MISSING") == {0: [[0, 10]]}

    def test_a_foreign_copy_of_our_rows_is_not_ours(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        foreign = [*rows([3, 500]), (1, None, None, None)]
        table.commit([table.write(foreign)], operation="WRITE", engine="delta-rs:1.0")
        broker.holds({0: range(10)})
        assert verify.grade("records").verdict == "proven"
        table.rewrite(table.active(), [*rows([*range(10), 3, 500]), (1, None, None, None)])
        assert verify.grade("records").verdict == "proven"

    def test_a_doubled_row_beside_a_foreign_writer_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)}, rows([*range(10), 4]))
        table.commit([table.write(rows([3]))], operation="WRITE", engine="delta-rs:1.0")
        broker.holds({0: range(10)})
        assert ranges_of(verify.grade("records"), "RECORDS_TWICE") == {0: [[4, 5]]}

    def test_a_compaction_that_swaps_a_row_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        table.rewrite(table.active(), rows([0, 1, 2, 3, 4, 5, 6, 7, 7, 9]))
        report = verify.grade("records")
        assert ranges_of(report, "RECORDS_MISSING") == {0: [[8, 9]]}
        assert ranges_of(report, "RECORDS_TWICE") == {0: [[7, 8]]}


class TestStreamsFromTables:
    """A stream from a table of ours is judged by that table's own coordinates."""

    @pytest.fixture
    def silver(self, lake: Lake, table: LakeTable) -> HandFlow:
        return lake.table("silver").flow()

    def append(
        self, silver: HandFlow, source: LakeTable, start: Any, version: int, offsets: Iterable[int]
    ) -> Any:
        entry = self.entry(source, start, version)
        silver.append_from([entry], rows(offsets))
        return entry["until"]

    def entry(self, source: LakeTable, start: Any, version: int) -> dict[str, Any]:
        until = {
            "sourceVersion": 1,
            "reservoirId": source.id,
            "reservoirVersion": version,
            "index": -1,
            "isStartingVersion": False,
        }
        identity = {"table_id": source.id, "path": str(source.path)}
        return {"index": 0, "kind": "delta", "identity": identity, "from": start, "until": until}

    def test_every_row_upstream_once(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify, broker: Broker
    ) -> None:
        flow.append({0: (0, 10)})
        until = self.append(silver, table, None, 3, range(10))
        flow.append({0: (10, 20)})
        self.append(silver, table, until, 4, range(10, 20))
        flow.append({0: (20, 30)})
        broker.holds({0: range(30)})
        report = verify.grade("records", "silver")
        assert report.verdict == "proven"
        assert report.text == "20 in bronze v3 = 20 in the table"

    def test_a_row_that_did_not_come_through_is_found(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        self.append(silver, table, None, 3, [0, 1, 2, 4, 5, 5, 6, 7, 8, 9])
        report = verify.grade("records", "silver")
        assert ranges_of(report, "RECORDS_MISSING") == {0: [[3, 4]]}
        assert ranges_of(report, "RECORDS_TWICE") == {0: [[5, 6]]}
        assert "on bronze v2 and not in the table" in report.findings[0].text

    def test_a_row_on_which_the_query_failed_is_in_the_quarantine(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        entry = self.entry(table, None, 3)
        silver.append_from([entry], rows([*range(4), *range(5, 9)]), quarantined=2)
        path = f"file:{table.path}/part-0.snappy.parquet"
        for offset in (4, 9):
            row = json.dumps({"id": 1, "_source": {"topic": "sales", "partition": 0, "offset": offset}})
            read = {"offset": 2, "path": path, "value": row.encode()}
            source = dict.fromkeys(("topic", "partition", "timestamp", "key", "headers"), None) | read
            write_rejected(silver, [rejected(silver, offset, source=source, row=None)])
        report = verify.grade("records", "silver")
        assert report.verdict == "proven", report
        assert report.text == "10 in bronze v2 = 8 in the table + 2 in quarantine"

    def test_a_row_in_quarantine_that_was_cut_may_be_the_missing_one(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        silver.append_from([self.entry(table, None, 3)], rows(range(9)), quarantined=1)
        read = {"offset": 2, "path": f"file:{table.path}/part-0.snappy.parquet", "value": b'{"id": 1, "te'}
        source = dict.fromkeys(("topic", "partition", "timestamp", "key", "headers"), None) | read
        write_rejected(silver, [rejected(silver, 4, source=source, row=None)])
        report = verify.grade("records", "silver")
        assert report.verdict == "partial", report
        assert "1 row in quarantine without the coordinates" in report.reasons[0]

    def test_a_row_from_nowhere_is_found(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        self.append(silver, table, None, 3, [*range(10), 77])
        report = verify.grade("records", "silver")
        assert ranges_of(report, "RECORDS_STRANGE") == {0: [[77, 78]]}

    def test_rows_that_were_erased_upstream_later_may_stay(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        until = self.append(silver, table, None, 3, range(10))
        table.delete([4], table.active()[0])
        self.append(silver, table, until, 4, [])
        assert verify.grade("records", "silver").verdict == "proven"

    def test_a_stream_that_was_told_to_start_later(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        self.append(silver, table, None, 4, range(10, 20))
        report = verify.grade("records", "silver")
        assert report.verdict == "partial"
        assert "sales/0 from 10 on" in report.reasons[0]

    def test_a_table_that_is_not_ours_cannot_be_asked(
        self, table: LakeTable, flow: HandFlow, silver: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        table_id, table.id = table.id, "another"
        self.append(silver, table, None, 3, range(10))
        table.id = table_id
        report = verify.grade("records", "silver")
        assert report.verdict == "unjudged"
        assert "not a table of a pipeline" in report.reasons[0]


def test_a_table_without_coordinates_cannot_be_judged_by_records(lake: Lake, verify: Verify) -> None:
    lake.table(coordinates=False).flow().append({0: (0, 10)})
    report = verify.grade("records")
    assert report.verdict == "unjudged"
    assert "keeps no coordinates" in report.reasons[0]
    assert verify(require="records").exit_code == 3


def test_coordinates_that_name_no_column_are_told(lake: Lake, verify: Verify) -> None:
    properties = {"headrace.coordinates": '{"topic": "t", "partition": "p", "offset": "o"}'}
    lake.table(properties=properties).flow().append({0: (0, 10)})
    assert "no column t" in verify.grade("records").reasons[0]


def test_two_flows_into_one_table_are_judged_apart(table: LakeTable, verify: Verify, broker: Broker) -> None:
    table.flow("north").append({0: (0, 10)}, topic="north")
    table.flow("south").append({0: (0, 10)}, rows(range(9), topic="south"), topic="south")
    broker.holds({0: range(10)}, topic="north")
    broker.holds({0: range(10)}, topic="south")
    grades = {flow.flow: flow.grades[2] for flow in verify.dataset().flows}
    assert grades["north"].verdict == "proven"
    assert ranges_of(grades["south"], "RECORDS_MISSING") == {0: [[9, 10]]}


def test_two_flows_that_read_the_same_topic_each_bring_every_record(
    table: LakeTable, verify: Verify, broker: Broker
) -> None:
    table.flow("one").append({0: (0, 10)})
    table.flow("two").append({0: (0, 10)}, rows(range(9)))
    broker.holds({0: range(10)})
    grades = {flow.flow: flow.grades[2] for flow in verify.dataset().flows}
    assert ranges_of(grades["two"], "RECORDS_MISSING") == {0: [[9, 10]]}


def test_only_what_was_committed_since_is_judged(
    table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    flow.append({0: (0, 10)}, rows([1, 1, 2]))
    version = flow.append({0: (10, 20)})
    broker.holds({0: range(20)})
    assert not verify().proven
    proof = verify(since=version)
    assert proof.exit_code == 0
    assert proof.datasets[0].flows[0].grades[2].text.startswith("10 compared with Kafka")
    flow.append({0: (20, 30)}, rows([*range(20, 29), 20]))
    broker.holds({0: range(30)})
    assert [finding.code for finding in verify(since=version).findings] == [
        "RECORDS_MISSING",
        "RECORDS_TWICE",
    ]


def elsewhere(flow: HandFlow, end: int, *, servers: str = "other:9092") -> None:
    """Commit a batch that reads the topic in another cluster than the profile's."""
    source = flow.source({"sales": {"0": 0}}, {"sales": {"0": end}})
    source["identity"]["servers"] = servers
    flow.append_from([source], rows(range(end)))


def test_records_of_another_cluster_are_compared_with_that_cluster(
    flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    elsewhere(flow, 10)
    broker.holds({0: range(10)})
    login = KafkaConnection({"bootstrap.servers": "other:9092", "sasl.password": "secret"})
    (one,) = verify.dataset(others=[login]).flows
    assert [grade.verdict for grade in one.grades] == ["proven"] * 3
    assert broker.connections == {"other:9092": login}


def test_records_of_another_cluster_without_a_login_are_not_judged(
    flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    elsewhere(flow, 10)
    report = verify.grade("records")
    assert report.verdict == "unjudged"
    assert "verify has no login for the Kafka cluster other:9092" in report.reasons[0]
    assert set(broker.connections) == {"other:9092"}


def test_rows_of_one_topic_name_in_two_clusters_cannot_be_told_apart(
    table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    flow.append({0: (0, 10)})
    elsewhere(table.flow("second"), 10)
    broker.holds({0: range(10)})
    for one in verify.dataset().flows:
        report = one.grades[2]
        assert (report.verdict, report.applies) == ("unjudged", False)
        assert "several Kafka clusters" in report.reasons[0]


@pytest.mark.parametrize("feature", ["typeWidening", "notKnownYet"])
def test_records_are_not_judged_where_deltalake_does_not_read_the_vectors(
    table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker, feature: str
) -> None:
    flow.append({0: (0, 10)})
    broker.holds({0: range(10)})
    features = ["deletionVectors", feature]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    lists = {"readerFeatures": features, "writerFeatures": features}
    table.commit([{"protocol": {**protocol, **lists}}], operation="SET TBLPROPERTIES")
    table.delete([1, 2], table.active()[0])
    report = verify.grade("records")
    assert report.verdict == "unjudged"
    assert "deltalake cannot read its deletion vectors" in report.reasons[0]
    assert (verify().exit_code, verify(require="records").exit_code) == (0, 3)


def test_dropped_rows_excuse_records_of_their_own_batch_alone(
    table: LakeTable, flow: HandFlow, verify: Verify, broker: Broker
) -> None:
    """A record that is missing from another batch was not dropped."""
    dropping = flow.append({0: (0, 10)}, rows(range(9)))
    edit(table, dropping, input=10, accepted=9, dropped=1)
    losing = flow.append({0: (10, 20)}, rows(range(10, 20)))
    broker.holds({0: range(20)})
    assert verify.grade("records").verdict == "proven"
    assert verify.grade("records").text == "20 read from Kafka = 19 in the table + 1 dropped"
    (path,) = [
        table.path / add["path"]
        for add in table.active()
        if add["path"] in (table.log / f"{losing:020d}.json").read_text()
    ]
    replace_file(path, rows([10, 11, 12, 13, 14, 15, 16, 17, 18, 18]))
    report = verify.grade("records")
    assert ranges_of(report, "RECORDS_MISSING") == {0: [[19, 20]]}
    # An offset of the dropping batch may be missing once, and not twice.
    edit(table, dropping, input=9, accepted=9, dropped=0)
    assert ranges_of(verify.grade("records"), "RECORDS_MISSING") == {0: [[9, 10], [19, 20]]}
