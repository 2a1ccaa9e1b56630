"""The ledger: what every batch read, kept when the table's own log is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from crashes import crash_before_each_write
from stores import At

from headrace.errors import CheckpointCorruptError
from headrace.model.names import TableName
from headrace.sinks.delta.reader import DeltaCommits
from headrace.sources.registry import join_marks
from headrace.state.ledger import Ledger, compact
from headrace.storage.location import Location
from headrace.storage.table_log import commit_mark

TABLE_ID = "table-1"
Offsets = dict[str, int]


class Table:
    """A Delta log as Headrace and others write it, without Spark."""

    def __init__(self, path: Location) -> None:
        self.path = path
        self.version = -1

    def commit(self, *actions: dict[str, Any], **info: Any) -> int:
        self.version += 1
        said = {"commitInfo": {"timestamp": 1000 + self.version, "operation": "WRITE", **info}}
        lines = [json.dumps(action, separators=(",", ":")) for action in (said, *actions)]
        self.file(self.version).replace("\n".join(lines))
        return self.version

    def file(self, version: int) -> Location:
        return self.path / "_delta_log" / f"{version:020d}.json"

    def batch(
        self, number: int, start: Offsets, until: Offsets, *, flow: str = "sales", rows: int = 1
    ) -> int:
        said = metadata(number, start, until, flow=flow, rows=rows)
        return self.commit(
            txn(said["checkpoint"], number),
            add(),
            userMetadata=json.dumps(said),
            operation="STREAMING UPDATE",
        )


def metadata(
    number: int, start: Offsets, until: Offsets, *, flow: str = "sales", rows: int = 1
) -> dict[str, Any]:
    source = {
        "index": 0,
        "kind": "kafka",
        "identity": {"topics": {"t": "id-1"}},
        "from": {"t": start},
        "until": {"t": until},
    }
    return {
        "headrace": 1,
        "pipeline": "shop",
        "flow": flow,
        "checkpoint": f"headrace-{flow}",
        "batch": number,
        "input": rows,
        "accepted": rows,
        "quarantined": 0,
        "dropped": 0,
        "sources": [source],
    }


def txn(checkpoint: str, number: int) -> dict[str, Any]:
    return {"txn": {"appId": checkpoint, "version": number, "lastUpdated": 1}}


def add(*, data: bool = True) -> dict[str, Any]:
    return {"add": {"path": "part.parquet", "dataChange": data}}


@pytest.fixture
def table(location: Location) -> Table:
    return Table(location / "tables" / "default" / "sales")


@pytest.fixture
def ledger(location: Location) -> Ledger:
    return Ledger(location / "ledger" / "default.sales" / "sales", TableName("default", "sales"), "sales")


def entries(ledger: Ledger) -> list[dict[str, Any]]:
    return [entry for fold in ledger.folds() for entry in fold["batches"]]


def test_batches_that_become_one_entry_keep_the_newest_mark_of_each_partition() -> None:
    marks = ({"0": [3, 30], "1": [1, 10]}, {"0": [7, 70]}, None)
    said = [metadata(number, {"0": number * 5}, {"0": number * 5 + 5}) for number in range(3)]
    for number, (one, last) in enumerate(zip(said, marks, strict=True)):
        one["version"] = number + 1
        one["timestamp"] = 1
        if last is not None:
            one["sources"][0]["last"] = {"t": last}
    (entry,) = compact(said, join_marks)
    assert entry["batches"] == [0, 2]
    assert entry["sources"][0]["last"] == {"t": {"0": [7, 70], "1": [1, 10]}}


def test_batches_that_follow_each_other_become_one_entry(table: Table, ledger: Ledger) -> None:
    table.commit()
    for number in range(4):
        table.batch(number, {"0": number * 5}, {"0": number * 5 + 5}, rows=5)
    assert ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks) == ()
    (fold,) = ledger.folds()
    assert (fold["dataset"], fold["flow"], fold["table_id"]) == ("default.sales", "sales", TABLE_ID)
    assert fold["versions"] == [0, 4]
    (entry,) = fold["batches"]
    assert (entry["batches"], entry["version"]) == ([0, 3], [1, 4])
    assert (entry["input"], entry["accepted"], entry["dropped"]) == (20, 20, 0)
    assert entry["sources"][0]["from"] == {"t": {"0": 0}}
    assert entry["sources"][0]["until"] == {"t": {"0": 20}}
    assert "batch" not in entry


def test_a_fold_grows_and_takes_nothing_twice(table: Table, ledger: Ledger) -> None:
    table.commit()
    table.batch(0, {"0": 0}, {"0": 5})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    table.batch(1, {"0": 5}, {"0": 9})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    (fold,) = ledger.folds()
    assert fold["versions"] == [0, 2]
    assert [(entry["batches"], entry["accepted"]) for entry in fold["batches"]] == [([0, 1], 2)]
    assert len(ledger.folder.list_files()) == 1


def test_a_fold_that_has_grown_large_is_followed_by_another(
    table: Table, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.state.ledger._ENTRIES", 2)
    for number in range(0, 10, 2):
        table.batch(number, {"0": number}, {"0": number + 1})
        ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert [fold["versions"] for fold in ledger.folds()] == [[0, 1], [2, 3], [4, 4]]
    assert [entry["batch"] for entry in entries(ledger)] == [0, 2, 4, 6, 8]


def test_a_batch_is_found_when_the_table_s_log_is_gone(table: Table, ledger: Ledger) -> None:
    table.commit()
    for number in range(3):
        table.batch(number, {"0": number}, {"0": number + 1})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    for version in range(4):
        table.file(version).delete()
    table.commit()
    said = ledger.last_batch(DeltaCommits(table.path), "headrace-sales", 2)
    assert said is not None
    assert said["sources"][0]["until"] == {"t": {"0": 3}}
    assert ledger.last_batch(DeltaCommits(table.path), "headrace-sales", 3) is None
    assert ledger.last_batch(DeltaCommits(table.path), "headrace-other", 2) is None


def test_a_batch_is_not_searched_in_commits_that_are_folded(table: Table, ledger: Ledger) -> None:
    table.batch(0, {"0": 0}, {"0": 5})
    for _ in range(5):
        table.commit()
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    for version in range(1, 5):
        table.file(version).replace("damaged")
    table.commit()
    said = ledger.last_batch(DeltaCommits(table.path), "headrace-sales", 0)
    assert said is not None and said["batch"] == 0


def test_a_commit_below_a_gap_of_the_log_is_not_folded(table: Table, ledger: Ledger) -> None:
    table.batch(0, {"0": 0}, {"0": 5})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    table.batch(1, {"0": 5}, {"0": 9})
    for _ in range(5):
        table.commit()
    for version in (0, 2, 3):
        table.file(version).delete()
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert [entry["batch"] for fold in ledger.folds() for entry in fold["batches"]] == [0]
    assert ledger.last_batch(DeltaCommits(table.path), "headrace-sales", 1) is None
    (fold,) = (fold for fold in ledger.folds() if fold["versions"][1] == 6)
    path = ledger.folder / f"{fold['versions'][0]:020d}-{TABLE_ID[:8]}.json"
    path.replace_json({**fold, "versions": [0, 1], "mark": commit_mark(table.path, 1)})
    assert ledger.stale_folds(DeltaCommits(table.path), TABLE_ID, 6), "an earlier run has folded it"


def test_a_batch_that_no_fold_holds_yet_is_found_in_the_log(table: Table, ledger: Ledger) -> None:
    table.batch(0, {"0": 0}, {"0": 5})
    said = ledger.last_batch(DeltaCommits(table.path), "headrace-sales", 0)
    assert said is not None and said["batch"] == 0


def test_each_flow_of_a_table_keeps_its_own_batches(table: Table, ledger: Ledger) -> None:
    table.batch(0, {"0": 0}, {"0": 5})
    table.batch(0, {"0": 0}, {"0": 7}, flow="returns")
    assert ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks) == ()
    assert [entry["checkpoint"] for entry in entries(ledger)] == ["headrace-sales"]


def test_metadata_without_its_transaction_is_no_batch(table: Table, ledger: Ledger) -> None:
    """Auto compaction repeats the metadata of the session's last commit."""
    table.batch(0, {"0": 0}, {"0": 5})
    said = json.dumps(metadata(0, {"0": 0}, {"0": 5}))
    table.commit(add(data=False), userMetadata=said, operation="OPTIMIZE")
    assert ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks) == ()
    assert [entry["version"] for entry in entries(ledger)] == [0]


def test_a_writer_beside_ours_is_reported_once(table: Table, ledger: Ledger) -> None:
    table.batch(0, {"0": 0}, {"0": 5})
    version = table.commit(add(), operation="WRITE", engineInfo="delta-rs")
    table.commit(operation="SET TBLPROPERTIES")
    table.commit(add(data=False), operation="OPTIMIZE")
    (foreign,) = ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert (foreign["version"], foreign["operation"], foreign["engine"]) == (version, "WRITE", "delta-rs")
    assert ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks) == ()


def test_rows_that_others_moved_are_counted_while_their_files_are_there(
    tmp_path: Path, at: At, ledger: Ledger
) -> None:
    import deltalake
    import pyarrow as pa

    path = tmp_path / "real"
    deltalake.write_deltalake(path, pa.table({"id": list(range(10))}))
    deltalake.DeltaTable(path).delete("id < 3")
    deltalake.write_deltalake(path, pa.table({"id": [20, 21]}), mode="append")
    ledger.fold(DeltaCommits(at(path)), TABLE_ID, join_marks)
    (fold,) = ledger.folds()
    assert [(o["version"], o["operation"], o["added"], o["removed"]) for o in fold["others"]] == [
        (0, "WRITE", 10, 0),
        (1, "DELETE", 7, 10),
        (2, "WRITE", 2, 0),
    ]
    deltalake.DeltaTable(path).delete("id = 5")
    for file in path.glob("*.parquet"):
        file.unlink()
    ledger.fold(DeltaCommits(at(path)), TABLE_ID, join_marks)
    assert ledger.folds()[-1]["others"][3]["removed"] is None


def test_what_the_log_lost_unseen_stays_a_hole_in_the_ledger(table: Table, ledger: Ledger) -> None:
    table.commit()
    for number in range(5):
        table.batch(number, {"0": number}, {"0": number + 1})
        if number == 1:
            ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    for version in range(4):
        table.file(version).delete()
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert [fold["versions"] for fold in ledger.folds()] == [[0, 2], [4, 5]]


def test_user_metadata_of_others_is_left_alone(table: Table, ledger: Ledger) -> None:
    for text in ("a note", '"headrace"', '{"headrace', '["headrace"]'):
        table.commit(add(), userMetadata=text)
    assert len(ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)) == 4


def test_a_table_made_anew_is_folded_from_its_first_version(table: Table, ledger: Ledger) -> None:
    for number in range(3):
        table.batch(number, {"0": number}, {"0": number + 1})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert ledger.next_version("table-2") == 0
    ledger.fold(DeltaCommits(table.path), "table-2", join_marks)
    assert ledger.next_version("table-2") == 3


def test_a_table_without_a_log_folds_nothing(location: Location, ledger: Ledger) -> None:
    assert ledger.fold(DeltaCommits(location / "nowhere"), TABLE_ID, join_marks) == ()
    assert ledger.folds() == ()


def test_a_fold_of_a_process_that_stalled_does_not_replace_a_newer_one(
    table: Table, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = DeltaCommits(table.path)
    table.commit()
    for number in range(2):
        for _ in range(2):  # the first fold of the table, and one that grows
            table.batch(2 * number + _, {"0": 2 * number + _}, {"0": 2 * number + _ + 1})
        mark = DeltaCommits.mark

        def stall(self: DeltaCommits, version: int, mark: Any = mark, number: int = number) -> str | None:
            with monkeypatch.context() as patch:
                patch.setattr(DeltaCommits, "mark", mark)
                table.batch(100 + number, {"0": 50}, {"0": 51})
                ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
                return mark(self, version)

        monkeypatch.setattr(DeltaCommits, "mark", stall)
        assert ledger.fold(commits, TABLE_ID, join_marks) == ()
        monkeypatch.setattr(DeltaCommits, "mark", mark)
        commits = DeltaCommits(table.path)
        assert ledger.folds()[-1]["versions"][1] == table.version, "the newer fold stays"


def test_losses_are_added_to_those_already_known(ledger: Ledger) -> None:
    ledger.record_losses([{"topic": "t", "partition": 0, "from": 1, "until": 3}])
    ledger.record_losses([{"topic": "t", "partition": 1, "from": 0, "until": 9}])
    known = (ledger.folder / "losses.json").read_json()
    assert [(loss["partition"], loss["until"]) for loss in known] == [(0, 3), (1, 9)]
    assert all(loss["at"] for loss in known)
    assert ledger.folds() == ()


def test_a_fold_that_cannot_be_read_is_named(table: Table, ledger: Ledger) -> None:
    table.batch(0, {"0": 0}, {"0": 5})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    (name,) = ledger.folder.list_files()
    (ledger.folder / name).replace("{half")
    with pytest.raises(CheckpointCorruptError) as caught:
        ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert caught.value.params["path"] == str(ledger.folder / name)


@pytest.mark.parametrize(
    "second",
    [
        pytest.param(metadata(2, {"0": 5}, {"0": 9}), id="a batch is missing"),
        pytest.param(metadata(1, {"0": 6}, {"0": 9}), id="a gap"),
        pytest.param(metadata(1, {"0": 4}, {"0": 9}), id="an overlap"),
        pytest.param(metadata(1, {"0": 5, "1": 0}, {"0": 9, "1": 2}), id="a new partition"),
        pytest.param({**metadata(1, {"0": 5}, {"0": 9}), "checkpoint": "headrace-b"}, id="a new checkpoint"),
        pytest.param({**metadata(1, {"0": 5}, {"0": 9}), "opens": {"generation": 2}}, id="an opening"),
        pytest.param({**metadata(1, {"0": 5}, {"0": 9}), "sources": []}, id="another number of sources"),
    ],
)
def test_batches_that_do_not_follow_each_other_stay_apart(second: dict[str, Any]) -> None:
    first = {**metadata(0, {"0": 0}, {"0": 5}), "version": 1, "timestamp": 1}
    second = {**second, "version": 2, "timestamp": 2}
    assert compact([first, second], join_marks) == [first, second]


def test_a_topic_that_was_created_again_is_never_merged_with_the_old_one() -> None:
    first = {**metadata(0, {"0": 0}, {"0": 5}), "version": 1, "timestamp": 1}
    second = {**metadata(1, {"0": 5}, {"0": 9}), "version": 2, "timestamp": 2}
    second["sources"] = [{**second["sources"][0], "identity": {"topics": {"t": "id-2"}}}]
    assert len(compact([first, second], join_marks)) == 2


def test_compaction_changes_nothing_that_it_was_given() -> None:
    batches = [{**metadata(n, {"0": n}, {"0": n + 1}), "version": n + 1, "timestamp": n} for n in range(5)]
    before = json.dumps(batches)
    (merged,) = compact(batches, join_marks)
    assert json.dumps(batches) == before
    assert compact([merged], join_marks) == [merged]
    assert merged["timestamp"] == 4


def test_folds_of_versions_that_a_restored_copy_took_back_are_put_aside(table: Table, ledger: Ledger) -> None:
    for number in range(3):
        table.batch(number, {"0": number}, {"0": number + 1})
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    table.file(2).delete()
    assert ledger.rewind(DeltaCommits(table.path), TABLE_ID, 1)
    assert ledger.folds() == ()
    assert len((ledger.folder / "superseded").list_files()) == 1
    assert not ledger.rewind(DeltaCommits(table.path), TABLE_ID, 1)
    ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
    assert [fold["versions"] for fold in ledger.folds()] == [[0, 1]]


@pytest.mark.parametrize("stalls_at", ["stale_folds", "create"])
def test_a_rewind_of_a_process_that_stalled_leaves_what_another_one_has_folded(
    table: Table, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, stalls_at: str
) -> None:
    for number in range(3):
        table.batch(number, {"0": number}, {"0": number + 1})
    commits = DeltaCommits(table.path)
    ledger.fold(commits, TABLE_ID, join_marks)
    table.file(2).delete()
    owner = Ledger if stalls_at == "stale_folds" else type(ledger.folder.files)
    original = getattr(owner, stalls_at)

    def stall(*arguments: Any) -> Any:
        found = original(*arguments)
        monkeypatch.undo()
        ledger.rewind(DeltaCommits(table.path), TABLE_ID, 1)
        ledger.fold(DeltaCommits(table.path), TABLE_ID, join_marks)
        return found

    monkeypatch.setattr(owner, stalls_at, stall)
    ledger.rewind(commits, TABLE_ID, 1)
    assert [fold["versions"] for fold in ledger.folds()] == [[0, 1]]


def test_a_crash_at_any_step_of_a_rewind_loses_no_fold_and_the_next_one_goes_on(location: Location) -> None:
    def flow_ledger(root: Location) -> Ledger:
        return Ledger(root / "ledger", TableName("default", "sales"), "sales")

    def commit(root: Location, count: int, mark: str) -> Location:
        table = Table(root / "table")
        table.path.delete_folder()
        for _ in range(count):
            table.commit(engineInfo=mark)
        return table.path

    def prepare(root: Location) -> None:
        for count in (2, 4, 6):
            # A table of other numbers between two folds keeps them apart.
            table, made = commit(root, count, "before"), flow_ledger(root)
            versions = [made.next_version(TABLE_ID), count - 1]
            record = {"table_id": TABLE_ID, "versions": versions, "batches": [count], "others": []}
            made._path(versions[0], TABLE_ID).replace_json({**record, "mark": commit_mark(table, count - 1)})
        # The copy that was restored has used versions 3 to 5 again.
        commit(root, 6, "before")
        for version in range(3, 6):
            Table(root / "table").file(version).replace(json.dumps({"commitInfo": {"engineInfo": "after"}}))

    def rewind(root: Location) -> None:
        assert flow_ledger(root).rewind(DeltaCommits(root / "table"), TABLE_ID, 5)

    crashed = crash_before_each_write(location, prepare, rewind)
    assert len(crashed) == 5, "two folds, each copied and put aside"
    for root in crashed:
        made = flow_ledger(root)
        made.rewind(DeltaCommits(root / "table"), TABLE_ID, 5)
        assert [fold["batches"] for fold in made.folds()] == [[2]]
        aside = made.folder / "superseded"
        kept = [(aside / name).read_json()["batches"] for name in aside.list_files()]
        assert sorted(kept) == [[4], [6]], "each is kept once"
