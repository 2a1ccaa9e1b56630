"""The first grade: batches follow each other, range to range, from first to last."""

from __future__ import annotations

import json
from typing import Any

import pytest
from lake import HandFlow, Lake, LakeTable, edit, rows

from headrace.model.names import TableName
from headrace.model.ranges import RecordMark

Verify = Any
Broker = Any


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table()


@pytest.fixture
def flow(table: LakeTable) -> HandFlow:
    return table.flow()


def places(report: Any) -> list[dict[str, Any]]:
    return [dict(finding.place) for finding in report.findings]


def test_batches_that_follow_each_other_are_proven(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10), 1: (0, 5)})
    flow.append({0: (10, 20)})
    flow.append({})
    flow.append({1: (5, 9)})
    report = verify.grade("ranges")
    assert report.verdict == "proven"
    assert report.text == "2 partitions, 29 offsets, 4 commits, no gap, no overlap"


def test_a_missing_range_is_found_with_its_partition_and_offsets(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10), 1: (0, 5)})
    flow.append({0: (13, 20), 1: (5, 9)})
    report = verify.grade("ranges")
    assert report.verdict == "refuted"
    (finding,) = report.findings
    assert finding.code == "RANGE_MISSING"
    assert (finding.place["topic"], finding.place["partition"]) == ("sales", 0)
    assert finding.place["ranges"] == [[10, 13]]
    assert "offsets 10 to 12" in finding.text


def test_a_range_in_two_batches_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (8, 20)})
    (finding,) = verify.grade("ranges").findings
    assert finding.code == "RANGE_TWICE"
    assert finding.place["ranges"] == [[8, 10]]


def test_a_batch_number_that_is_passed_over_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)}, batch=2)
    (finding,) = verify.grade("ranges").findings
    assert (finding.code, finding.place["batches"]) == ("BATCH_MISSING", [1, 1])


def test_a_first_batch_that_is_missing_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (10, 20)}, batch=1)
    assert verify.codes("ranges") == ["BATCH_MISSING"]


def test_a_batch_that_was_committed_twice_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)}, batch=0)
    (finding,) = verify.grade("ranges").findings
    assert (finding.code, finding.place["versions"]) == ("BATCH_TWICE", [2, 3])


def test_ranges_without_the_batch_transaction_do_not_count(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)}, numbered=False)
    flow.append({0: (20, 30)})
    assert verify.codes("ranges") == ["BATCH_MISSING", "RANGE_MISSING"]
    table = verify.dataset().table
    assert [finding.code for finding in table.findings] == ["COMMIT_UNNUMBERED"]


def test_metadata_repeated_by_a_compaction_counts_for_nothing(
    table: LakeTable, flow: HandFlow, verify: Verify
) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20)})
    version = table.rewrite(table.active(), rows(range(20)))
    path = table.log / f"{version:020d}.json"
    info, *actions = [json.loads(line) for line in path.read_text().splitlines()]
    info["commitInfo"]["userMetadata"] = json.dumps(flow.said[-1])
    path.write_text("\n".join(json.dumps(line) for line in [info, *actions]))
    flow.append({0: (20, 30)})
    assert verify().proven


def test_a_transaction_without_ranges_is_found(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    table.commit([{"txn": {"appId": flow.checkpoint, "version": 1}}])
    flow.append({0: (10, 20)}, batch=2)
    assert verify.codes("ranges") == ["BATCH_MISSING"]
    assert [f.code for f in verify.dataset().table.findings] == ["COMMIT_UNNUMBERED"]


def test_a_new_partition_begins_at_its_first_offset(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20), 1: (0, 5)})
    assert verify.grade("ranges").verdict == "proven"


def test_a_new_partition_that_begins_later_has_lost_its_first_records(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append({0: (10, 20), 1: (3, 5)})
    (finding,) = verify.grade("ranges").findings
    assert (finding.code, finding.place["ranges"]) == ("RANGE_MISSING", [[0, 3]])


def test_a_partition_that_vanishes_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10), 1: (0, 5)})
    until = {"sales": {"0": 20}}
    flow.append_from([flow.source({"sales": {"0": 10}}, until)], rows(range(10, 20)))
    assert verify.codes("ranges") == ["PARTITION_MISSING"]


def test_a_range_that_goes_backwards_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.append_from([flow.source({"sales": {"0": 10}}, {"sales": {"0": 4}})], [])
    assert verify.codes("ranges") == ["RANGE_BACKWARDS"]


def test_another_topic_under_the_same_checkpoint_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.topic_id = "topic-2"
    flow.append({0: (10, 20)})
    assert verify.codes("ranges") == ["SOURCE_CHANGED"]


def test_a_topic_that_a_pattern_comes_to_match_is_no_fault(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    end = {"sales": {"0": 10}}
    more = {"sales": {"0": 12}, "sales-eu": {"0": 3}}
    flow.append_from(
        [flow.source({**end, "sales-eu": {"0": 0}}, more)],
        rows(range(10, 12)) + rows(range(3), topic="sales-eu"),
    )
    assert verify.grade("ranges").verdict == "proven"


def delta_source(start: Any, until: Any) -> dict[str, Any]:
    identity = {"table_id": "upstream", "path": "elsewhere/tables/default/up"}
    return {"index": 0, "kind": "delta", "identity": identity, "from": start, "until": until}


def delta_offset(version: int, index: int = -1, starting: bool = False) -> dict[str, Any]:
    return {
        "sourceVersion": 1,
        "reservoirId": "upstream",
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": starting,
    }


def test_a_stream_from_a_table_is_judged_by_its_versions(flow: HandFlow, verify: Verify) -> None:
    first, second, third = delta_offset(4, 3, True), delta_offset(5), delta_offset(9, 1)
    flow.append_from([delta_source(None, first)], rows(range(3)))
    flow.append_from([delta_source(first, second)], rows(range(3, 5)))
    flow.append_from([delta_source({**second, "sourceVersion": 3}, third)], rows(range(5, 9)))
    report = verify.grade("ranges")
    assert (report.verdict, report.text) == ("proven", "delta source, 3 commits, no gap, no overlap")


@pytest.mark.parametrize(
    ("begins", "code"), [(delta_offset(6), "RANGE_MISSING"), (delta_offset(4, 2), "RANGE_TWICE")]
)
def test_a_stream_from_a_table_with_a_gap_is_found(
    flow: HandFlow, verify: Verify, begins: Any, code: str
) -> None:
    flow.append_from([delta_source(None, delta_offset(5))], rows(range(3)))
    flow.append_from([delta_source(begins, delta_offset(9))], rows(range(3, 5)))
    assert verify.codes("ranges") == [code]


def test_a_stream_from_files_is_judged_by_its_log(flow: HandFlow, verify: Verify) -> None:
    def source(start: int | None, until: int) -> dict[str, Any]:
        begin = None if start is None else {"logOffset": start}
        end = {"logOffset": until}
        return {"index": 0, "kind": "files", "identity": {"path": "in"}, "from": begin, "until": end}

    flow.append_from([source(None, 0)], rows(range(3)))
    flow.append_from([source(0, 1)], rows(range(3, 5)))
    report = verify.grade("ranges")
    assert (report.verdict, report.findings) == ("partial", ()), "which files they were is not said"
    flow.append_from([source(2, 3)], rows(range(5, 6)))
    assert verify.codes("ranges") == ["RANGE_MISSING"]


class TestGenerations:
    def test_a_resumed_flow_goes_on_where_the_fenced_one_ended(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10), 1: (0, 5)})
        flow.open("reset", at={"sales": {"0": 10, "1": 5}})
        flow.append({0: (10, 20)})
        report = verify.grade("ranges")
        assert (report.verdict, report.figures["generations"]) == ("proven", 2)

    def test_a_resume_behind_the_end_has_a_gap(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.open("reset", at={"sales": {"0": 12}})
        (finding,) = verify.grade("ranges").findings
        assert (finding.code, finding.place["ranges"]) == ("RANGE_MISSING", [[10, 12]])

    def test_a_resume_that_leaves_a_partition_behind_is_found(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10), 1: (0, 5)})
        flow.open("reset", at={"sales": {"0": 10}})
        assert verify.codes("ranges") == ["PARTITION_MISSING"]

    def test_a_recorded_loss_is_no_gap(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        loss = {"source": 0, "topic": "sales", "partition": 0, "from": 10, "until": 12}
        flow.open("data-loss", at={"sales": {"0": 12}}, losses=[loss])
        flow.append({0: (12, 20)})
        report = verify.grade("ranges")
        assert (report.verdict, report.figures["lost"]) == ("proven", 2)
        assert "2 offsets lost, as recorded" in report.text

    def test_a_loss_that_the_ledger_does_not_hold_is_found(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        loss = {"source": 0, "topic": "sales", "partition": 0, "from": 10, "until": 12}
        flow.open("data-loss", at={"sales": {"0": 12}}, losses=[loss], recorded=False)
        assert verify.codes("ranges") == ["LOSS_UNRECORDED"]

    def test_a_loss_smaller_than_the_gap_leaves_a_gap(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        loss = {"source": 0, "topic": "sales", "partition": 0, "from": 10, "until": 12}
        flow.open("data-loss", at={"sales": {"0": 15}}, losses=[loss])
        (finding,) = verify.grade("ranges").findings
        assert (finding.code, finding.place["ranges"]) == ("RANGE_MISSING", [[12, 15]])

    def test_offsets_that_an_opening_declares_are_read_again(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        again = {"source": 0, "topic": "sales", "partition": 0, "from": 4, "until": 10}
        flow.open("reset", at={"sales": {"0": 4}}, repeats=[again])
        flow.append({0: (4, 6)})
        report = verify.grade("ranges")
        assert (report.verdict, report.figures["repeated"]) == ("proven", 2)
        assert "no gap, no other overlap, 2 offsets read again, as declared" in report.text

        # Forward over offsets that an earlier checkpoint has read, and one that none has.
        flow.open("reset", at={"sales": {"0": 11}})
        (finding,) = verify.grade("ranges").findings
        assert (finding.code, finding.place["ranges"]) == ("RANGE_MISSING", [[10, 11]])

    def test_offsets_beyond_the_declared_ones_are_found(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        again = {"source": 0, "topic": "sales", "partition": 0, "from": 4, "until": 10}
        flow.open("reset", at={"sales": {"0": 2}}, repeats=[again])
        (finding,) = verify.grade("ranges").findings
        assert (finding.code, finding.place["ranges"]) == ("RANGE_TWICE", [[2, 4]])

    def test_offsets_that_nobody_has_read_before_are_read_for_the_first_time(
        self, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (10, 15)})
        again = {"source": 0, "topic": "sales", "partition": 0, "from": 10, "until": 15}
        flow.open("reset", at={"sales": {"0": 5}}, repeats=[again])
        flow.append({0: (5, 20)})
        assert verify.grade("ranges").verdict == "proven"

    def test_a_loss_that_was_read_later_is_no_loss(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        loss = {"source": 0, "topic": "sales", "partition": 0, "from": 10, "until": 15}
        flow.open("reset", at={"sales": {"0": 15}}, losses=[loss])
        flow.open("reset", at={"sales": {"0": 10}})
        flow.append({0: (10, 12)})
        report = verify.grade("ranges")
        assert (report.verdict, report.figures["lost"]) == ("proven", 3)

    def test_a_generation_that_was_opened_without_a_fence_is_found(
        self, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        flow.open("reset", at={"sales": {"0": 10}}, fence=False)
        assert verify.codes("ranges") == ["FENCE_MISSING"]

    def test_a_batch_of_a_fenced_checkpoint_is_found(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        old = flow.checkpoint
        flow.open("reset", at={"sales": {"0": 10}})
        flow.append({0: (10, 20)})
        flow.checkpoint, new = old, flow.checkpoint
        flow.ends = {"sales": {"0": 10}}
        flow.append({0: (10, 20)}, batch=1)
        assert new != old
        assert "FENCED_BATCH" in verify.codes("ranges")

    def test_a_topic_that_was_created_again_begins_anew(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.open("reset", topic_id="topic-2")
        flow.append({0: (0, 4)})
        assert verify.grade("ranges").verdict == "proven"

    def test_a_new_generation_on_the_same_topic_reads_twice(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.open("reset")
        flow.append({0: (0, 12)})
        (finding,) = verify.grade("ranges").findings
        assert (finding.code, finding.place["ranges"]) == ("RANGE_TWICE", [[0, 10]])

    @pytest.mark.parametrize(
        ("second", "third", "codes"),
        [
            pytest.param(4, 20, [], id="each read goes on where it ended"),
            pytest.param(20, 20, ["RANGE_MISSING"], id="one read goes on where the other ended"),
            pytest.param(4, 4, ["RANGE_TWICE"], id="one read begins again where the other ended"),
        ],
    )
    def test_two_reads_of_one_topic_are_judged_each_on_its_own(
        self, flow: HandFlow, verify: Verify, second: int, third: int, codes: list[str]
    ) -> None:
        def read(index: int, start: int, until: int) -> dict[str, Any]:
            identity = {"topics": {"sales": "topic-1"}}
            ranges = {"from": {"sales": {"0": start}}, "until": {"sales": {"0": until}}}
            return {"index": index, "kind": "kafka", "identity": identity, **ranges}

        flow.append_from([read(0, 0, 4), read(1, 0, 20)], rows(range(12)))
        flow.open("reset")
        flow.append_from([read(0, second, 30), read(1, third, 30)], rows(range(12, 20)))
        assert verify.codes("ranges") == codes

    def test_the_proof_begins_at_a_full_refresh(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (5, 10)})
        flow.append({0: (12, 14)})
        assert not verify().proven
        flow.open("full-refresh", clear=True)
        flow.append({0: (0, 20)})
        assert verify().proven
        assert verify.grade("ranges").figures["offsets"] == 20

    def test_a_renamed_flow_goes_on_with_its_checkpoint(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        renamed = HandFlow(table, "brass")
        renamed.checkpoint, renamed.generation, renamed.batch = flow.checkpoint, 1, 1
        renamed.ends = {"sales": {"0": 10}}
        table.properties[f"headrace.checkpoint.{renamed.name}"] = flow.checkpoint
        del table.properties[f"headrace.checkpoint.{flow.name}"]
        opens = {
            "generation": 1,
            "reason": "renamed",
            "fences": None,
            "losses": [],
            "renamed_from": {"flow": flow.name},
        }
        table.commit([table.metadata()], metadata=renamed.words(opens=opens))
        renamed.write_identity()
        renamed.append({0: (10, 20)})
        (judged,) = verify.dataset().flows
        assert judged.flow == "brass"
        assert judged.grades[0].figures["offsets"] == 20
        assert verify().proven


class TestLedger:
    def test_the_ledger_speaks_for_commits_that_log_cleanup_deleted(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(6):
            flow.append({0: (number * 10, number * 10 + 10)})
        table.fold("bronze", 0, 5, merged(flow.said[:5]))
        table.forget_log(4)
        report = verify.grade("ranges")
        assert report.verdict == "proven"
        assert report.text == (
            "1 partition, 60 offsets, 6 commits, no gap, no overlap, up to version 4 from the ledger only"
        )
        assert verify().proven

    def test_without_a_ledger_the_grade_holds_from_the_first_known_version_on(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(6):
            flow.append({0: (number * 10, number * 10 + 10)})
        table.forget_log(4)
        report = verify.grade("ranges")
        assert report.verdict == "partial"
        assert "neither in the table's log nor in the ledger" in report.reasons[0]
        assert verify().exit_code == 0
        assert verify(require="ranges").exit_code == 3

    def test_a_batch_that_neither_log_nor_ledger_hold_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(6):
            flow.append({0: (number * 10, number * 10 + 10)})
        entries = [entry for entry in flow.said if entry.get("batch") != 2]
        table.fold("bronze", 0, 7, entries)
        table.forget_log(5)
        assert "BATCH_MISSING" in verify.codes("ranges")

    def test_a_range_that_differs_in_log_and_ledger_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        altered = json.loads(json.dumps(flow.said))
        altered[-1]["sources"][0]["until"]["sales"]["0"] = 19
        table.fold("bronze", 0, 3, altered)
        assert verify.codes("ranges") == ["LEDGER_DIFFERS"]

    def test_a_merged_entry_is_compared_with_the_batches_that_it_merges(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(4):
            flow.append({0: (number * 10, number * 10 + 10)})
        entries = merged(flow.said)
        table.fold("bronze", 0, table.version, entries)
        assert verify().proven
        entries[-1]["accepted"] += 1
        table.fold("bronze", 0, table.version, entries)
        assert verify.codes("ranges") == ["LEDGER_DIFFERS"]

    def test_a_merged_entry_may_reach_from_the_lost_log_into_the_kept_one(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(6):
            flow.append({0: (number * 10, number * 10 + 10)})
        table.fold("bronze", 0, table.version, merged(flow.said))
        table.forget_log(4)
        assert verify().proven
        assert verify.grade("ranges").figures["offsets"] == 60
        assert verify.grade("counts").figures["accepted"] == 60

    def test_a_batch_that_the_ledger_lacks_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        table.fold("bronze", 0, table.version, flow.said[:-1])
        assert verify.codes("ranges") == ["LEDGER_DIFFERS"]

    def test_the_ledger_of_an_earlier_table_is_left_out(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        path = table.fold("bronze", 0, table.version, [])
        path.write_text(path.read_text().replace(table.id, "another-table"))
        assert verify().proven


class TestCheckpoint:
    def test_a_finished_batch_that_the_table_lacks_is_found(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.write_spark_log(0, {"sales": {"0": 10}})
        flow.write_spark_log(1, {"sales": {"0": 20}})
        (finding,) = verify.grade("ranges").findings
        assert (finding.code, finding.place["batches"]) == ("TABLE_BEHIND_CHECKPOINT", [1, 1])

    def test_a_batch_whose_commit_nobody_remembers_is_known_from_the_table_s_state(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(3):
            flow.append({0: (number * 10, number * 10 + 10)})
            flow.write_spark_log(number, {"sales": {"0": number * 10 + 10}})
        table.rewrite(table.active(), rows(range(30)))
        table.forget_log(table.version)
        assert verify().findings == ()
        flow.write_spark_log(3, {"sales": {"0": 40}})
        assert verify.codes("ranges") == ["TABLE_BEHIND_CHECKPOINT"]

    def test_a_planned_batch_is_pending_and_no_fault(
        self, lake: Lake, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        flow.write_spark_log(0, {"sales": {"0": 10}})
        flow.write_spark_log(1, {"sales": {"0": 20}}, finished=False)
        assert verify().proven
        assert verify.dataset().flows[0].pending == 1

    def test_an_offset_log_that_says_otherwise_is_found(self, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.write_spark_log(0, {"sales": {"0": 11}})
        assert verify.codes("ranges") == ["OFFSETS_DIFFER"]

    def test_a_lost_checkpoint_is_told_and_no_fault(self, lake: Lake, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        lake.storage.flow_checkpoints(TableName("default", "bronze"), "bronze").rename(
            lake.storage.root / "elsewhere"
        )
        assert verify().proven
        assert "checkpoint is missing" in verify.dataset().flows[0].notes[0]


def merged(said: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the ledger makes of batches that follow each other."""
    opening, first, *rest = json.loads(json.dumps(said))
    for entry in rest:
        first["batches"] = [first.get("batches", [first.get("batch")])[0], entry["batch"]]
        begun = first["version"] if isinstance(first["version"], int) else first["version"][0]
        first["version"] = [begun, entry["version"]]
        first["sources"][0]["until"] = entry["sources"][0]["until"]
        for name in ("input", "accepted", "quarantined", "dropped"):
            first[name] += entry[name]
    first.pop("batch", None)
    return [opening, first]


MARKS = {"last": {"sales": {"0": [9, 1_700_000_000_000, 5]}}}
"""The mark of a batch that ends at offset 10."""

SAME = RecordMark(1_700_000_000_000, 5)


def append_marked(flow: HandFlow, first: int, end: int, **marks: Any) -> None:
    source = flow.source({"sales": {"0": first}}, {"sales": {"0": end}})
    flow.append_from([{**source, **marks}], rows(range(first, end)))


@pytest.mark.parametrize(
    ("now", "compacted", "codes"),
    [
        (SAME, False, []),
        (RecordMark(1_700_000_000_001, 5), False, ["OFFSETS_REUSED"]),
        (RecordMark(1_700_000_000_000, 6), False, ["OFFSETS_REUSED"]),
        (None, False, ["OFFSETS_REUSED"]),
        (None, True, []),
        (None, None, []),
    ],
    ids=[
        *(
            "the same record",
            "another record",
            "another record with the same timestamp",
            "a transaction marker",
        ),
        *("a record that was compacted", "a topic whose settings are not known"),
    ],
)
def test_the_last_record_that_was_read_is_compared_with_the_broker_s(
    lake: Lake,
    verify: Verify,
    broker: Broker,
    now: RecordMark | None,
    compacted: bool | None,
    codes: list[str],
) -> None:
    append_marked(lake.table().flow(), 0, 10, **MARKS)
    held = {*range(20)} - ({9} if now is None else set())
    broker.holds({0: held}, marks={} if now is None else {(0, 9): now}, compacted=compacted)
    assert verify.codes("ranges") == codes
    for finding in verify.grade("ranges").findings:
        assert finding.place["offset"] == 9
        assert finding.place["timestamp_ms"] == 1_700_000_000_000
        assert finding.place["now_ms"] == (None if now is None else now.timestamp_ms)


def test_an_older_mark_is_compared_where_the_topic_is_read_whole(
    lake: Lake, verify: Verify, broker: Broker
) -> None:
    flow = lake.table().flow()
    append_marked(flow, 0, 10, **MARKS)
    append_marked(flow, 10, 20, last={"sales": {"0": [19, 5]}})
    broker.holds({0: range(20)}, marks={(0, 9): RecordMark(7), (0, 19): RecordMark(5)})
    (finding,) = verify.grade("ranges").findings
    assert (finding.code, finding.place["offset"]) == ("OFFSETS_REUSED", 9)


def test_a_flow_without_coordinates_is_compared_by_its_newest_mark(
    lake: Lake, verify: Verify, broker: Broker
) -> None:
    flow = lake.table(coordinates=False).flow()
    append_marked(flow, 0, 10, **MARKS)
    broker.holds({0: range(20)}, marks={(0, 9): RecordMark(7)})
    assert verify.codes("ranges") == ["OFFSETS_REUSED"]
    assert {place: spans.pairs() for place, spans in broker.asked.items()} == {("sales", 0): [(9, 10)]}


def test_a_mark_of_an_earlier_topic_of_the_same_name_is_not_compared(
    lake: Lake, verify: Verify, broker: Broker
) -> None:
    append_marked(lake.table().flow(), 0, 10, **MARKS)
    broker.holds({0: range(20)}, marks={(0, 9): RecordMark(7)}, id="another")
    assert verify.codes("ranges") == []


@pytest.mark.parametrize(("kind", "mark"), [("kafka", "last"), ("delta", "seen"), ("files", "files")])
def test_a_damaged_mark_is_found(flow: HandFlow, verify: Verify, kind: str, mark: str) -> None:
    sources = {
        "kafka": flow.source({"sales": {"0": 0}}, {"sales": {"0": 3}}),
        "delta": delta_source(None, delta_offset(5)),
        "files": {
            "index": 0,
            "kind": "files",
            "identity": {"path": "in"},
            "from": None,
            "until": {"logOffset": 0},
        },
    }
    flow.append_from([{**sources[kind], mark: None}], rows(range(3)))
    assert verify.grade("ranges").verdict != "refuted"
    edit(flow.table, 2, sources=[{**sources[kind], mark: [1, 2]}])
    texts = [one.text for one in verify.dataset().table.findings if one.code == "COMMIT_UNNUMBERED"]
    assert any("its metadata cannot be read" in text and f"is not a mark {mark}" in text for text in texts)
