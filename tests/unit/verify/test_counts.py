"""The second grade: the rows that left the query are the rows that lie in the table's files."""

from __future__ import annotations

import errno
import os
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lake import HandFlow, Lake, LakeTable, edit, replace_file, rows
from rejected_rows import rejected, write_rejected

from headrace.verify import delta_log
from headrace.verify.report import conclusion
from headrace.verify.stored import StoredPath

Verify = Any


@pytest.fixture
def table(lake: Lake) -> LakeTable:
    return lake.table()


@pytest.fixture
def flow(table: LakeTable) -> HandFlow:
    return table.flow()


def test_rows_are_counted_in_the_files_themselves(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10), 1: (0, 5)})
    flow.append({0: (10, 20)})
    report = verify.grade("counts")
    assert (report.verdict, report.text) == ("proven", "25 in = 25 accepted + 0 quarantined + 0 dropped")
    assert verify.dataset().table.text == "25 rows in 2 files = 25 accepted"


def test_a_commit_that_says_more_than_its_files_hold_is_found(flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)}, accepted=11)
    (finding,) = verify.grade("counts").findings
    assert (finding.code, finding.place["batch"], finding.place["version"]) == ("COUNTS_DIFFER", 0, 2)


def test_rows_that_left_the_query_and_arrived_nowhere_are_found(
    table: LakeTable, flow: HandFlow, verify: Verify
) -> None:
    flow.append({0: (0, 10)})
    edit(table, 2, input=12)
    assert verify.codes("counts") == ["COUNTS_UNBALANCED"]


def test_quarantined_rows_without_a_quarantine_are_found(
    table: LakeTable, flow: HandFlow, verify: Verify
) -> None:
    flow.append({0: (0, 10)})
    edit(table, 2, input=12, quarantined=2)
    assert verify.codes("counts") == ["QUARANTINE_DIFFERS"]
    (finding,) = verify.grade("counts").findings
    assert "batch 0 states that it quarantined 2 rows; the quarantine table holds 0" in finding.text


def test_quarantined_rows_are_part_of_the_equation(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    edit(table, 2, input=12, quarantined=2)
    write_rejected(flow, [rejected(flow, 10), rejected(flow, 11), rejected(flow, 12, batch=1)])
    assert verify.codes("counts") == []
    assert verify.grade("counts").text == "12 in = 10 accepted + 2 quarantined + 0 dropped"
    # The rows of batch 1 were written, and the table does not hold the batch yet.
    (judged,) = verify.dataset().flows
    (pending,) = (note for note in judged.notes if "pending" in note)
    assert pending.startswith("1 row in quarantine pending")
    folder = table.storage.root / "quarantine" / table.name.schema / table.name.name
    next(folder.rglob("*.parquet")).unlink()
    assert verify.codes("counts") == ["QUARANTINE_UNREADABLE"]


def test_dropped_rows_are_counted(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    edit(table, 2, input=12, dropped=2)
    assert verify.grade("counts").text == "12 in = 10 accepted + 0 quarantined + 2 dropped"
    edit(table, 2, input=12, dropped=1)
    (finding,) = verify.grade("counts").findings
    assert finding.text == "batch 0: 12 in ≠ 10 accepted + 0 quarantined + 1 dropped"


def test_a_kind_of_flow_that_is_not_known_is_found(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    edit(table, 2, kind="append")
    assert verify().proven
    edit(table, 2, kind="keyed")
    assert "COMMIT_UNNUMBERED" in [finding.code for finding in verify().findings]


class TestFiles:
    """A file that differs from what the log says of it is named."""

    def test_missing(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        (table.path / add["path"]).unlink()
        (finding,) = verify.grade("counts").findings
        assert (finding.code, finding.place["path"]) == ("FILE_MISSING", add["path"])

    def test_of_another_size(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        replace_file(table.path / add["path"], rows(range(10), topic="another"))
        assert "FILE_SIZE_DIFFERS" in verify.codes("counts")

    def test_with_another_number_of_rows(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        replace_file(table.path / add["path"], rows(range(9)))
        codes = verify.codes("counts")
        assert "FILE_ROWS_DIFFER" in codes
        assert "COUNTS_DIFFER" in codes

    @pytest.mark.parametrize("at", ["file"], indirect=True)
    def test_replaced_by_one_of_equal_size_and_equal_rows(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        path = table.path / add["path"]
        # One row removed, another doubled, with the same least and greatest offset.
        replace_file(path, rows([0, 1, 2, 3, 3, 5, 6, 7, 8, 9]), keep_age=False)
        os.utime(path, (path.stat().st_mtime + 60,) * 2)
        assert path.stat().st_size == add["size"]
        (finding,) = verify.grade("counts").findings
        assert (finding.code, finding.place["path"]) == ("FILE_REPLACED", add["path"])

    def test_that_is_no_parquet_any_more(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        path = table.path / add["path"]
        path.write_bytes(bytes(path.stat().st_size))
        assert "FILE_UNREADABLE" in verify.codes("counts")

    def test_that_the_storage_refuses_is_not_missing(
        self, table: LakeTable, flow: HandFlow, verify: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})

        look = StoredPath.look

        def or_refuse(path: StoredPath) -> Any:
            if path.name.endswith(".parquet"):
                raise PermissionError(errno.EACCES, "Permission denied")
            return look(path)

        with monkeypatch.context() as patch:
            patch.setattr(StoredPath, "look", or_refuse)
            (finding,) = verify.grade("counts").findings
        assert finding.code == "FILE_UNREADABLE"
        assert "Permission denied" in finding.text
        assert not verify.grade("counts").findings

    @pytest.mark.parametrize("nested", [False, True])
    def test_with_a_string_that_is_not_utf_8(
        self, nested: bool, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 3)})
        (add,) = table.active()
        path = table.path / add["path"]
        content = pq.read_table(path)
        text: Any = as_string([b"fine", None, b"\xff\xfe"])
        if nested:
            text = pa.StructArray.from_arrays([text], names=["name"])
        pq.write_table(content.append_column("note", text), path)
        (finding,) = [found for found in verify().findings if found.code == "FILE_NOT_UTF8"]
        assert finding.place["path"] == add["path"]
        assert ("column note.name:" if nested else "column note:") in finding.text
        assert verify().exit_code == 1

    def test_older_than_the_bound_are_not_decoded_and_the_last_line_says_so(
        self, table: LakeTable, flow: HandFlow, verify: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for batch in range(3):
            flow.append({0: (batch, batch + 1)})
        adds = table.active()
        for add in adds:
            path = table.path / add["path"]
            content = pq.read_table(path)
            pq.write_table(content.append_column("note", as_string([b"\xff"] * content.num_rows)), path)
            os.utime(path, (path.stat().st_mtime, add["modificationTime"] / 1000))
        monkeypatch.setattr(delta_log, "DECODED_BYTES", adds[0]["size"] * 2)
        dataset = verify.dataset()
        found = [one.place["path"] for one in dataset.findings if one.code == "FILE_NOT_UTF8"]
        assert found == [add["path"] for add in adds[1:]]
        assert dataset.undecoded == 1
        assert "not in 1 older file" in dataset.notes[-1]

    def test_at_least_the_newest_is_decoded(
        self, table: LakeTable, flow: HandFlow, verify: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(delta_log, "DECODED_BYTES", 1)
        flow.append({0: (0, 3)})
        assert verify.dataset().undecoded == 0
        flow.append({0: (3, 6)})
        assert conclusion(verify())[-1].endswith("Strings of older files were not decoded: default.bronze.")

    def test_with_a_topic_that_is_not_utf_8(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Any
    ) -> None:
        broker.holds({0: range(3)})
        flow.append({0: (0, 3)})
        path = table.path / table.active()[0]["path"]
        source = pq.read_table(path).column("_source").combine_chunks()
        fields = [as_string([b"\xff"] * 3), source.field("partition"), source.field("offset")]
        source = pa.StructArray.from_arrays(fields, names=["topic", "partition", "offset"])
        pq.write_table(pa.table({"id": [0, 1, 2], "_source": source}), path)
        assert {"FILE_NOT_UTF8", "RECORDS_UNREADABLE"} <= {found.code for found in verify().findings}

    def test_with_bytes_in_a_binary_column(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 3)})
        path = table.path / table.active()[0]["path"]
        pq.write_table(pq.read_table(path).append_column("raw", pa.array([b"\xff"] * 3)), path)
        assert "FILE_NOT_UTF8" not in [found.code for found in verify().findings]

    @pytest.mark.parametrize("at", ["file"], indirect=True)
    def test_a_table_that_was_copied_whole_is_as_good_as_the_original(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        later = table.path.stat().st_mtime + 3600
        for path in table.path.rglob("*"):
            os.utime(path, (later, later))
        assert verify().proven
        assert "copied" in verify.dataset().notes[-1]

    @pytest.mark.parametrize("at", ["file"], indirect=True)
    def test_a_table_that_was_copied_right_after_its_last_commit(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        for path in table.path.rglob("*"):
            # The log is copied first.
            age = path.stat().st_mtime + (3 if path.parent.name == "_delta_log" else 5)
            os.utime(path, (age, age))
        assert verify().proven


class TestOthers:
    """What other writers do is accounted for beside ours."""

    def test_rows_of_a_foreign_writer_are_told_and_no_fault(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        foreign = table.write([(7, None, None, None)] * 3)
        table.commit([foreign], operation="WRITE", engine="delta-rs:1.0")
        flow.append({0: (10, 20)})
        dataset = verify.dataset()
        assert verify().proven
        assert dataset.table.text == "23 rows in 3 files = 20 accepted + 3 by other writers"
        assert dataset.notes == ("version 3: WRITE by delta-rs:1.0 added 3 rows (not by this pipeline)",)

    def test_an_erasure_by_deletion_vectors(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        table.delete([3, 4], add)
        dataset = verify.dataset()
        assert verify().proven
        assert dataset.table.text == "8 rows in 1 file = 10 accepted - 2 removed"
        assert dataset.notes[0].startswith("version 3: DELETE")
        assert dataset.notes[0].endswith("removed 2 rows")

    def test_an_erasure_of_whole_files(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        table.commit([table.remove(table.active()[0])], operation="DELETE")
        assert verify().proven
        assert verify.dataset().table.text == "10 rows in 1 file = 20 accepted - 10 removed"

    def test_an_erasure_that_writes_the_file_anew(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        table.commit([table.remove(add), table.write(rows(range(8)))], operation="DELETE")
        assert verify().proven
        assert verify.dataset().notes[0].endswith("removed 2 rows")

    @pytest.mark.parametrize("operation", ["RESTORE", "WRITE", "CREATE OR REPLACE TABLE AS SELECT"])
    def test_rows_that_another_writer_rolled_back_or_overwrote(
        self, operation: str, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        table.commit([table.remove(table.active()[1]), table.write(rows([3]))], operation=operation)
        (finding,) = verify.dataset().table.findings
        assert (finding.code, finding.place["version"]) == ("ROWS_REWRITTEN", 4)
        assert "10 rows of this pipeline replaced" in finding.text

    def test_rows_that_another_writer_restored_cannot_be_judged_by_number(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        table.commit([table.remove(add), table.write(rows(range(8)))], operation="DELETE")
        table.commit([table.remove(table.active()[0]), {"add": add}], operation="RESTORE")
        report = verify.dataset().table
        assert report.verdict == "partial"
        assert "counts do not show" in report.reasons[0]

    def test_a_restore_that_writes_more_rows_than_it_removes_has_undone_a_batch(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (first,) = table.active()
        table.commit([table.remove(first), table.write(rows(range(8)))], operation="DELETE")
        flow.append({0: (10, 11)})
        before = table.active()
        back = [*map(table.remove, before), {"add": first}]
        table.commit(back, operation="RESTORE", parameters={"version": 2, "timestamp": None})
        (finding,) = verify.dataset().table.findings
        assert (finding.code, finding.place["undone"]) == ("ROWS_REWRITTEN", [4])
        assert "it has undone version 4 of this pipeline" in finding.text
        again = [table.remove(first), *({"add": one} for one in before)]
        table.commit(again, operation="RESTORE", parameters={"version": "4"})
        assert not verify.dataset().table.findings, "the second RESTORE has brought the batch back"

    def test_a_restore_to_the_newest_rows_of_the_pipeline_is_no_finding(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (first,) = table.active()
        table.commit([table.remove(first), table.write(rows(range(8)))], operation="DELETE")
        back = [*map(table.remove, table.active()), {"add": first}]
        table.commit(back, operation="RESTORE", parameters={"version": 2})
        assert verify.dataset().table.verdict == "proven"

    @pytest.mark.parametrize("operation", ["UPDATE", "MERGE", "WRITE"])
    def test_as_many_rows_in_place_of_ours_are_a_finding(
        self, operation: str, table: LakeTable, flow: HandFlow, verify: Verify, broker: Any
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        table.commit([table.remove(table.active()[0]), table.write(rows(range(10)))], operation=operation)
        (finding,) = verify().findings
        assert (finding.code, finding.place["version"]) == ("ROWS_REWRITTEN", 3)
        assert "declared as an erasure" in finding.text

    def test_rows_that_an_update_marks_and_writes_anew_are_a_finding(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        marked = {"add": {**add, "deletionVector": table.vector([3]), "dataChange": True}}
        table.commit([table.remove(add), marked, table.write(rows([3]))], operation="UPDATE")
        (finding,) = verify().findings
        assert finding.code == "ROWS_REWRITTEN"
        assert "1 row of this pipeline replaced" in finding.text

    def test_a_declared_erasure_may_rewrite_rows(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Any
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        actions = [table.remove(table.active()[0]), table.write(rows(range(10)))]
        table.commit(actions, operation="UPDATE", metadata={"headrace_erasure": True})
        assert verify().exit_code == 0
        assert verify.grade("records").verdict == "proven"
        assert verify.dataset().notes[0].endswith("removed 10 rows and wrote 10, declared as an erasure")

    @pytest.mark.parametrize("declared", ["true", 1, False])
    def test_an_erasure_is_declared_by_true_alone(
        self, declared: object, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        actions = [table.remove(table.active()[0]), table.write(rows(range(10)))]
        table.commit(actions, operation="UPDATE", metadata={"headrace_erasure": declared})
        assert [finding.code for finding in verify().findings] == ["ROWS_REWRITTEN"]

    def test_a_merge_that_only_deletes(
        self, table: LakeTable, flow: HandFlow, verify: Verify, broker: Any
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        metrics = {"numTargetRowsInserted": "0", "numTargetRowsUpdated": "0", "numTargetRowsDeleted": "2"}
        actions = [table.remove(table.active()[0]), table.write(rows(range(8)))]
        table.commit(actions, operation="MERGE", metrics=metrics)
        assert verify().exit_code == 0
        assert verify.dataset().table.text == "8 rows in 1 file = 10 accepted - 2 removed"

    def test_a_merge_that_only_inserts(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        table.commit([table.write([(7, None, None, None)])], operation="MERGE")
        assert verify().exit_code == 0

    def test_another_writer_may_overwrite_its_own_rows(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        table.commit([table.write(rows(range(3)))], operation="WRITE")
        table.commit([table.remove(table.active()[1]), table.write(rows([3]))], operation="WRITE")
        assert verify.dataset().table.verdict == "proven"

    def test_an_erasure_whose_commit_the_log_has_forgotten(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        erased = table.commit([table.remove(add), table.write(rows(range(8)))], operation="DELETE")
        flow.append({0: (10, 20)})
        other = {"version": erased, "timestamp": 1, "operation": "DELETE", "engine": "spark"}
        table.fold("bronze", 0, 4, flow.said, [{**other, "added": 8, "removed": 10}])
        table.forget_log(4)
        assert verify().proven
        dataset = verify.dataset()
        assert dataset.table.text == (
            "18 rows in 2 files = 18 up to version 4 by the ledger (20 accepted, -2 by other writers)"
            " + 0 accepted"
        )
        assert dataset.notes[0] == "version 3: DELETE by spark removed 2 rows, by the ledger"

    def test_a_lost_row_beside_a_forgotten_erasure(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        erased = table.commit([table.remove(add), table.write(rows(range(7)))], operation="DELETE")
        other = {"version": erased, "timestamp": 1, "operation": "DELETE", "engine": "spark"}
        table.fold("bronze", 0, 3, flow.said, [{**other, "added": 8, "removed": 10}])
        table.forget_log(3)
        assert [found.code for found in verify.dataset().table.findings] == ["ROWS_DIFFER"]

    @pytest.mark.parametrize("erasure", [True, False])
    def test_a_forgotten_merge_is_excused_where_it_was_an_erasure(
        self, erasure: bool, table: LakeTable, flow: HandFlow, verify: Verify, broker: Any
    ) -> None:
        flow.append({0: (0, 10)})
        broker.holds({0: range(10)})
        (add,) = table.active()
        changed = table.commit([table.remove(add), table.write(rows(range(8)))], operation="MERGE")
        other = {"version": changed, "timestamp": 1, "operation": "MERGE", "engine": "spark"}
        table.fold("bronze", 0, 3, flow.said, [{**other, "added": 8, "removed": 10, "erasure": erasure}])
        table.forget_log(3)
        assert verify.dataset().table.verdict == ("proven" if erasure else "partial")
        assert verify.codes("records") == ([] if erasure else ["RECORDS_MISSING"])

    def test_a_forgotten_change_that_nobody_counted(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        (add,) = table.active()
        changed = table.commit([table.remove(add), table.write(rows(range(7)))], operation="MERGE")
        other = {"version": changed, "timestamp": 1, "operation": "MERGE", "engine": "spark"}
        table.fold("bronze", 0, 3, flow.said, [{**other, "added": 7, "removed": None}])
        table.forget_log(3)
        assert verify().exit_code == 0
        assert (
            "MERGE by spark added or removed rows that were not counted" in verify.dataset().table.reasons[0]
        )

    def test_files_that_optimize_made_anew(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        flow.append({0: (10, 20)})
        old = table.active()
        table.rewrite(old, rows(range(20)))
        for add in old:
            (table.path / add["path"]).unlink()
        flow.append({0: (20, 30)})
        dataset = verify.dataset()
        assert verify().proven
        assert dataset.table.text == "30 rows in 2 files = 30 accepted"
        assert "1 rewrite (OPTIMIZE)" in dataset.notes[0]

    def test_a_rewrite_that_loses_a_row_is_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        table.rewrite(table.active(), rows(range(9)))
        assert [finding.code for finding in verify.dataset().table.findings] == ["REWRITE_DIFFERS"]

    def test_a_file_that_optimize_wrote_is_watched_too(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        table.rewrite(table.active(), rows(range(10)))
        (add,) = table.active()
        (table.path / add["path"]).unlink()
        assert "FILE_MISSING" in [finding.code for finding in verify.dataset().table.findings]


class TestLedger:
    """A ledger that cannot be read is a finding: what it holds can be compared with nothing."""

    @pytest.mark.parametrize("text", ["{ not json", "[]", '{"versions": [0, 2], "batches": [{}]}', "\udcff"])
    def test_a_fold(self, text: str, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        path = table.fold("bronze", 0, 2, flow.said)
        path.write_text(text, errors="surrogateescape")
        (finding,) = verify().findings
        assert (finding.code, finding.place["path"]) == ("LEDGER_UNREADABLE", f"bronze/{path.name}")
        assert verify().exit_code == 1

    @pytest.mark.parametrize("text", ["", "{}x", '{"a": 1}', "[3]", "[[1]]"])
    def test_the_losses(self, text: str, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        flow.append({0: (0, 10)})
        table.fold("bronze", 0, 2, flow.said).with_name("losses.json").write_text(text)
        (finding,) = verify().findings
        assert (finding.code, finding.place["path"]) == ("LEDGER_UNREADABLE", "bronze/losses.json")

    def test_a_fold_that_a_run_puts_aside_meanwhile(
        self, table: LakeTable, flow: HandFlow, verify: Verify, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        flow.append({0: (0, 10)})
        path = table.fold("bronze", 0, 2, flow.said)
        path.with_name(f"{0:020d}-gone.json").symlink_to("nowhere")
        assert verify().exit_code == 0


class TestWithoutTheOldLog:
    def test_rows_are_counted_in_sum(self, table: LakeTable, flow: HandFlow, verify: Verify) -> None:
        for number in range(4):
            flow.append({0: (number * 10, number * 10 + 10)})
        table.fold("bronze", 0, 4, flow.said[:4])
        table.forget_log(3)
        assert verify().proven
        report = verify.grade("counts")
        assert report.text == "40 in = 40 accepted + 0 quarantined + 0 dropped, up to version 3 in sum"

    def test_rows_that_went_missing_before_the_log_are_found(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        for number in range(4):
            flow.append({0: (number * 10, number * 10 + 10)})
        table.delete([1, 2], table.active()[0])
        table.fold("bronze", 0, table.version, flow.said)
        table.forget_log(table.version)
        assert [finding.code for finding in verify.dataset().table.findings] == ["ROWS_DIFFER"]

    def test_rows_of_unknown_origin_before_the_log_lower_the_grade(
        self, table: LakeTable, flow: HandFlow, verify: Verify
    ) -> None:
        flow.append({0: (0, 10)})
        table.commit([table.write([(7, None, None, None)])], operation="WRITE")
        table.fold("bronze", 0, table.version, flow.said)
        table.forget_log(table.version)
        table_report = verify.dataset().table
        assert table_report.verdict == "partial"
        assert "1 row from before version 4 belong to no batch" in table_report.reasons[0]


def test_the_accounts_begin_anew_at_a_full_refresh(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)}, accepted=11)
    flow.open("full-refresh", clear=True)
    flow.append({0: (0, 12)})
    assert verify().proven
    assert verify.dataset().table.text == "12 rows in 1 file = 12 accepted"


def test_a_refresh_that_leaves_rows_behind_is_found(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    flow.open("full-refresh", clear=False)
    flow.append({0: (0, 10)})
    assert not verify().proven


def as_string(values: list[bytes | None]) -> pa.StringArray:
    """A string column of any bytes, as Spark writes one."""
    _, *buffers = pa.array(values, pa.binary()).buffers()
    nulls = pa.array(values, pa.binary()).buffers()[0]
    return pa.StringArray.from_buffers(len(values), *buffers, nulls, -1)


def test_a_file_that_two_commits_add_counts_once(table: LakeTable, flow: HandFlow, verify: Verify) -> None:
    flow.append({0: (0, 10)})
    (add,) = table.active()
    ranges = flow.source({"sales": {"0": 10}}, {"sales": {"0": 20}})
    words = flow.words(batch=1, input=10, accepted=10, quarantined=0, dropped=0, sources=[ranges])
    table.commit([{"txn": {"appId": flow.checkpoint, "version": 1}}, {"add": add}], metadata=words)
    assert [finding.code for finding in verify.dataset().table.findings] == ["ROWS_DIFFER"]
