"""The proof of a flow that reads files, on storages written by hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lake import HandFlow, Lake, rows

from headrace.verify.report import GradeReport


class FilesFlow:
    """A flow that commits batches of files, and their lists, as Headrace's do."""

    def __init__(self, flow: HandFlow, folder: Path) -> None:
        self.flow = flow
        self.folder = folder
        self.log = -1
        self.total = 0

    def lists(self) -> Path:
        ledger = self.flow.table.storage.ledger(self.flow.table.name, self.flow.name)
        return ledger / "files" / self.flow.checkpoint

    def put(self, *names: str) -> None:
        self.folder.mkdir(exist_ok=True)
        for name in names:
            (self.folder / name).write_text(name)

    def lines(self, names: Sequence[str], **more: Any) -> list[str]:
        found = []
        for name in names:
            path = self.folder / name
            stat = path.stat() if path.exists() else None
            said = {
                "source": 0,
                "log": self.log,
                "path": path.as_uri(),
                "size": None if stat is None else stat.st_size,
                "modified": None if stat is None else stat.st_mtime_ns // 1_000_000,
            }
            found.append(json.dumps({**said, **more}))
        return found

    def write_list(self, batch: int, lines: Sequence[str]) -> None:
        self.lists().mkdir(parents=True, exist_ok=True)
        (self.lists() / f"{batch:012d}.jsonl").write_text("".join(f"{line}\n" for line in lines))

    def source(self, lines: Sequence[str], start: int | None, **more: Any) -> dict[str, Any]:
        return {
            "index": 0,
            "kind": "files",
            "identity": {"path": str(self.folder)},
            "from": None if start is None or start < 0 else {"logOffset": start},
            "until": {"logOffset": self.log},
            "files": {
                "count": len(lines),
                "bytes": 0,
                "sha256": hashlib.sha256("\n".join(lines).encode()).hexdigest(),
                "total": self.total,
                **more,
            },
        }

    def read(self, *names: str, **more: Any) -> None:
        """Commit a batch that read these files."""
        self.log += 1
        self.total += len(names)
        lines = self.lines(names, **more)
        self.write_list(self.flow.batch, lines)
        self.flow.append_from([self.source(lines, self.log - 1)], rows(range(self.total)))

    def write_spark_log(self, *entries: str) -> None:
        """The log of the checkpoint: the names of each entry, separated by spaces."""
        self.flow.write_identity()
        identity = self.flow.folder / "headrace.json"
        said = json.loads(identity.read_text())
        said["sources"] = [{"index": 0, "kind": "files", "identity": {"path": str(self.folder)}}]
        identity.write_text(json.dumps(said))
        folder = self.flow.folder / "sources" / "0"
        folder.mkdir(parents=True, exist_ok=True)
        for number, names in enumerate(entries):
            uris = [(self.folder / name).as_uri() for name in names.split()]
            lines = [json.dumps({"path": uri, "timestamp": 1, "batchId": number}) for uri in uris]
            (folder / str(number)).write_text("\n".join(["v1", *lines]))


@pytest.fixture
def files(lake: Lake, tmp_path: Path) -> FilesFlow:
    return FilesFlow(lake.table("bronze").flow(), tmp_path / "in")


def codes(report: GradeReport) -> set[str]:
    return {finding.code for finding in report.findings}


def test_files_that_were_read_once_and_are_still_there_are_proven(files: FilesFlow, verify: Any) -> None:
    files.put("a", "b", "c", "d")
    files.read("a", "b")
    files.read("c")
    files.write_spark_log("a b", "c", "d")
    ranges, records = verify.grade("ranges"), verify.grade("records")
    assert (ranges.verdict, ranges.figures["files"]) == ("proven", 3), ranges
    assert (records.verdict, records.figures["unchanged"], records.figures["pending"]) == ("proven", 3, 1)
    assert records.details == {"pending": [str(files.folder / "d")]}


def test_what_became_of_files_is_no_fault_and_is_said(files: FilesFlow, verify: Any) -> None:
    files.put("a", "b", "c")
    files.read("a", "b", "c")
    (files.folder / "a").unlink()
    (files.folder / "b").write_text("longer than it was")
    report = verify.grade("records")
    assert (report.verdict, report.findings) == ("partial", ())
    assert (report.figures["gone"], report.figures["changed"]) == (1, 1)


def test_a_file_in_two_batches_is_found(files: FilesFlow, verify: Any) -> None:
    files.put("a", "b")
    files.read("a")
    files.read("b", "a")
    (finding,) = verify.grade("ranges").findings
    assert (finding.code, finding.place["files"]) == ("FILE_TWICE", [str(files.folder / "a")])


def test_a_list_that_is_not_the_commits_is_found(files: FilesFlow, verify: Any) -> None:
    files.put("a", "b")
    files.read("a")
    files.write_list(0, files.lines(["b"]))
    assert codes(verify.grade("ranges")) == {"FILES_DIFFER"}


def test_a_list_that_is_gone_leaves_the_grade_open(files: FilesFlow, verify: Any) -> None:
    files.put("a", "b")
    files.read("a")
    files.read("b")
    (files.lists() / "000000000000.jsonl").unlink()
    assert verify.grade("ranges").verdict == "partial"
    assert verify.grade("records").verdict == "unjudged"


def test_a_damaged_list_is_found(files: FilesFlow, verify: Any) -> None:
    files.put("a")
    files.read("a")
    (files.lists() / "000000000000.jsonl").write_text("{")
    assert "LIST_DAMAGED" in codes(verify.grade("ranges"))


def test_a_file_that_sparks_log_passed_over_is_found(files: FilesFlow, verify: Any) -> None:
    files.put("a", "b", "c")
    files.read("a")
    files.read("b")
    files.write_spark_log("a", "b c")
    assert codes(verify.grade("ranges")) == {"FILES_MISSING"}
    files.write_spark_log("a", "")
    assert codes(verify.grade("ranges")) == {"FILES_UNKNOWN"}


def test_a_loss_must_have_been_written_down(files: FilesFlow, verify: Any) -> None:
    files.put("a")
    files.read("a")
    files.read("never there", lost=True)
    assert codes(verify.grade("ranges")) == {"LOSS_UNRECORDED"}
    ledger = files.lists().parents[1]
    loss = {"checkpoint": files.flow.checkpoint, "path": (files.folder / "never there").as_uri()}
    (ledger / "losses.json").write_text(json.dumps([loss]))
    assert verify.grade("ranges").verdict == "proven"
    assert verify.grade("records").figures["lost"] == 1


def test_a_merged_entry_of_the_ledger_is_held_to_its_lists(files: FilesFlow, verify: Any) -> None:
    from headrace.sources.registry import join_marks
    from headrace.state.ledger import compact

    files.put("a", "b", "c")
    for name in ("a", "b", "c"):
        files.read(name)
    entries = compact(files.flow.said, join_marks)
    assert [entry.get("batches") for entry in entries] == [None, [0, 2]]
    fold = files.flow.table.fold("bronze", 0, entries[-1]["version"][1], entries)
    assert verify.grade("ranges").verdict == "proven", verify.grade("ranges")
    text = json.loads(fold.read_text())
    text["batches"][1]["sources"][0]["files"]["sha256"] = "0" * 64
    fold.write_text(json.dumps(text))
    files.flow.table.forget_log(files.flow.table.version)
    assert codes(verify.grade("ranges")) == {"FILES_DIFFER"}


def test_a_merged_entry_of_the_ledger_that_reaches_into_the_log_is_held_to_its_lists(
    files: FilesFlow, verify: Any
) -> None:
    from headrace.sources.registry import join_marks
    from headrace.state.ledger import compact

    files.put("a", "b", "c")
    for name in ("a", "b", "c"):
        files.read(name)
    entries = compact(files.flow.said, join_marks)
    version = entries[-1]["version"][1]
    files.flow.table.fold("bronze", 0, version, entries)
    files.flow.table.forget_log(version - 1)
    report = verify.grade("ranges")
    assert (report.verdict, report.figures["files"]) == ("proven", 3)
    (files.lists() / "000000000000.jsonl").write_text("")
    assert codes(verify.grade("ranges")) == {"FILES_DIFFER"}


def test_packed_lists_prove_the_same(files: FilesFlow, verify: Any) -> None:
    from headrace.sources.files.lists import FileLists
    from headrace.storage.layout import locate

    files.put("a", "b", "c")
    for name in ("a", "b", "c"):
        files.read(name)
    kept = (files.lists() / "000000000001.jsonl").read_text()
    FileLists(locate(files.lists().parent)).pack(files.flow.checkpoint, 1)
    # A crash between the writing of a pack and the removal of what is in it.
    (files.lists() / "000000000001.jsonl").write_text(kept)
    assert verify.grade("ranges").verdict == "proven", verify.grade("ranges")
    assert verify.grade("records").figures["unchanged"] == 3


def test_a_folder_that_cannot_be_listed_leaves_the_grade_open(files: FilesFlow, verify: Any) -> None:
    files.put("a")
    files.read("a")
    (files.folder / "a").unlink()
    files.folder.rmdir()
    assert verify.grade("records").verdict == "unjudged"
