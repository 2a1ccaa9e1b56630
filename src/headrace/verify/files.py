"""Sources that read files: the ledger's lists against commits, Spark's own logs, and the files there now."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

from headrace.model.folders import FileFolder
from headrace.model.texts import counted
from headrace.verify.checkpoints import IDENTITY, CheckpointLog, Generation, Lineage, read_json
from headrace.verify.commits import Batches
from headrace.verify.evidence import Evidence
from headrace.verify.reader import Context, SourceReader
from headrace.verify.report import GradeReport, Judgement, unjudged_records
from headrace.verify.source_range import Position, SourceRange
from headrace.verify.stored import StoredFolders, StoredPath, plain_path

_ATTEMPTS = 5
_NOTHING = hashlib.sha256(b"").hexdigest()


class FilesRange(SourceRange):
    """The files that a batch read, by their number and the hash of their list; ``carried`` for a seeded
    checkpoint."""

    mark_names = ("files",)

    @property
    def key(self) -> tuple[str, ...]:
        return (self.kind, str(self.identity.get("path")))

    def marks_without(self, later: Iterable[SourceRange]) -> Mapping[str, Any]:
        if "files" not in self.marks:
            return self.marks
        left = {**self.marks["files"], "sha256": None}  # the hash of what is left is not known
        for files in (one.marks["files"] for one in later if "files" in one.marks):
            left |= {name: left[name] - files[name] for name in ("count", "bytes")}
        return {**self.marks, "files": left}

    def order_of(self, position: Position | None) -> tuple[int, ...]:
        return () if position is None else (int(position["logOffset"]),)


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    batch: int
    source: int
    log: int  # the entry of Spark's log that named it
    path: str
    size: int | None
    modified: int | None
    lost: bool = False  # it was gone before it could be read
    carried: bool = False  # an earlier checkpoint had read it


@dataclass(frozen=True, kw_only=True)
class CheckpointLists:
    files: tuple[ListedFile, ...] = ()
    sums: Mapping[tuple[int, int], str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()


Lists = Mapping[str, CheckpointLists]
"""By checkpoint."""


class FilesReader(SourceReader):
    """Judges which files a flow has read, and whether they are still there unchanged."""

    range = FilesRange

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._lists: dict[str, Lists] = {}

    def judge_ranges(
        self, evidence: Evidence, lineage: Lineage, logs: Sequence[CheckpointLog], ranges: GradeReport
    ) -> GradeReport:
        return self._judge(evidence, lineage, logs).add_to(ranges)

    def judge_records(self, evidence: Evidence, lineage: Lineage) -> GradeReport | None:
        judged = self._judge(evidence, lineage, ())
        folders = StoredFolders(self.context.storage.root)
        return _judge_folder(lineage, judged.read, folders, is_known=not judged.reasons)

    def _judge(self, evidence: Evidence, lineage: Lineage, logs: Sequence[CheckpointLog]) -> _ListJudgement:
        key = str(evidence.ledgers)
        if key not in self._lists:
            self._lists[key] = _load_lists(evidence.ledgers)
        losses = (one for one in evidence.ledger.other_losses if "path" in one)
        lost = {(str(one.get("checkpoint")), str(one["path"])) for one in losses}
        return _judge_lists(lineage, self._lists[key], logs, lost)


@dataclass
class _ListJudgement(Judgement):
    read: dict[str, ListedFile] = field(default_factory=dict)  # by path; lost files are among them
    by_source: dict[tuple[int, str], ListedFile] = field(default_factory=dict)
    count: int = 0  # how many files the commits state

    def add_to(self, ranges: GradeReport) -> GradeReport:
        text = f"{counted(self.count, 'file')}, {ranges.text.replace('files source, ', '')}"
        if self.findings:
            text = text.replace(", no gap, no overlap", "")
        both = Judgement([*ranges.findings, *self.findings], [*ranges.reasons, *self.reasons])
        return both.report("ranges", text, {**ranges.figures, "files": self.count})

    def find_files(self, code: str, uris: Iterable[str], words: str) -> None:
        paths = [plain_path(uri) for uri in sorted(uris)]
        self.find(code, f"{_named(paths)}: {words}", files=paths)


def _load_lists(folder: StoredPath) -> dict[str, CheckpointLists]:
    """Read all lists of a dataset; to be read after the table's log, whose commits come after them."""
    for _ in range(_ATTEMPTS):
        found: dict[str, list[StoredPath]] = {}
        for flow in folder.list_folders():
            for checkpoint in (flow / "files").list_folders():
                names = (file.name for file in checkpoint.list_files())
                lists = [checkpoint / name for name in names if name.endswith(".jsonl")]
                found.setdefault(checkpoint.name, []).extend(lists)
        with contextlib.suppress(FileNotFoundError):
            return {checkpoint: _load(paths) for checkpoint, paths in found.items()}
    return {}


def _judge_lists(
    lineage: Lineage, lists: Lists, logs: Sequence[CheckpointLog], lost: Collection[tuple[str, str]]
) -> _ListJudgement:
    """Judge which files a flow has read: each in one batch, none left out between."""
    found = _ListJudgement()
    by_checkpoint = {log.checkpoint: log for log in logs}
    for generation in lineage.generations:
        mine = lists.get(generation.checkpoint, CheckpointLists())
        for words in mine.damaged:
            found.find("LIST_DAMAGED", words)
        for batch in generation.batches:
            for source in batch.sources:
                if source.kind == "files":
                    _judge_range(batch, source, mine, found)
        _judge_files(generation, mine, lineage, lost, found)
        log = by_checkpoint.get(generation.checkpoint)
        if log is not None and generation.checkpoint not in lineage.fenced and lineage.since is None:
            _compare_log(generation, mine, log, found)
    return found


def _named(paths: Sequence[str], shown: int = 5) -> str:
    """``a, b and 3 more files``."""
    more = len(paths) - shown
    return ", ".join(paths[:shown]) + (f" and {counted(more, 'more file')}" if more > 0 else "")


def _load(paths: Iterable[StoredPath]) -> CheckpointLists:
    files: list[ListedFile] = []
    sums: dict[tuple[int, int], str] = {}
    damaged = []
    for path in sorted(paths, key=lambda one: (_first_batch(one), "-" not in one.name)):
        lines: dict[tuple[int, int], list[str]] = {}
        known = {batch for batch, _ in sums}
        try:
            batch = _first_batch(path)
            for line in path.read_text().split("\n"):
                value = json.loads(line) if line else None
                if value is not None and "batch" in value:
                    batch = int(value["batch"])
                elif value is not None and batch not in known:
                    files.append(ListedFile(batch=batch, **value))
                    lines.setdefault((batch, value["source"]), []).append(line)
        except FileNotFoundError:
            # A run has packed it meanwhile: what is in the folder now holds it.
            raise
        except (OSError, ValueError, TypeError, KeyError) as error:
            damaged.append(f"the list {path.parent.name}/{path.name} cannot be read: {error}")
            continue
        for key, several in lines.items():
            sums[key] = hashlib.sha256("\n".join(several).encode()).hexdigest()
    return CheckpointLists(files=tuple(files), sums=sums, damaged=tuple(damaged))


def _first_batch(path: StoredPath) -> int:
    return int(path.name.removesuffix(".jsonl").partition("-")[0])


def _judge_range(batch: Batches, source: SourceRange, lists: CheckpointLists, found: _ListJudgement) -> None:
    """Compare the files of a commit, or of a merged entry of the ledger, with their lists."""
    files = source.marks.get("files")
    if files is None:
        found.reasons.append(f"{batch.name} does not say which files it read")
        return
    stated = int(files["count"])
    if not files.get("carried"):
        found.count += stated
    numbers = range(batch.first, batch.last + 1)
    listed = sum(one.source == source.index and one.batch in numbers for one in lists.files)
    if listed == 0 and stated > 0:
        found.reasons.append(f"the ledger has no list of the {counted(stated, 'file')} of {batch.name}")
        return
    sums = (lists.sums.get((number, source.index), _NOTHING) for number in numbers)
    # The hash of several batches: each joined to what came before.
    chain = reduce(lambda before, one: hashlib.sha256(f"{before}{one}".encode()).hexdigest(), sums)
    if files["sha256"] not in (None, chain) or listed != stated:
        text = f"{batch.name}: its commit states {counted(stated, 'file')}, "
        text += f"and the ledger's list of {listed} differs"
        found.find("FILES_DIFFER", text, **batch.place, source=source.index)


def _judge_files(
    generation: Generation,
    lists: CheckpointLists,
    lineage: Lineage,
    lost: Collection[tuple[str, str]],
    found: _ListJudgement,
) -> None:
    """No file in two batches, none carried over that was not read, none lost without a report."""
    committed = list(_committed(generation, lists))
    before = set(found.read)
    knows_all = not found.reasons and lineage.since is None
    skipped = [one.path for one in committed if one.carried and one.path not in before]
    if skipped and knows_all and before:
        text = "marked as read by a new checkpoint, but no batch read it"
        found.find_files("FILES_SKIPPED", skipped, text)
    for one in committed:
        # A query that reads a folder twice gives each of its files twice.
        earlier = found.by_source.get((one.source, one.path))
        if earlier is not None and not one.carried:
            text = f"read twice: in batch {earlier.batch} and in batch {one.batch}"
            found.find_files("FILE_TWICE", [one.path], text)
        if earlier is None or not one.carried:
            found.read[one.path] = found.by_source[one.source, one.path] = one
        if one.lost and not one.carried and (generation.checkpoint, one.path) not in lost:
            text = "lost, and the ledger does not record the loss"
            found.find_files("LOSS_UNRECORDED", [one.path], text)


def _committed(generation: Generation, lists: CheckpointLists) -> Iterator[ListedFile]:
    """The files of batches that are in the table: a list is written before its commit."""
    numbers = [(batch.first, batch.last) for batch in generation.batches]
    for one in lists.files:
        if any(first <= one.batch <= last for first, last in numbers):
            yield one


def _compare_log(
    generation: Generation, lists: CheckpointLists, log: CheckpointLog, found: _ListJudgement
) -> None:
    """Spark's own log of a checkpoint, as far as its batches are in the table."""
    for source in generation.batches[-1].sources if generation.batches else ():
        entries = _logged_files(log.folder, source.index) if source.kind == "files" else None
        if entries is None or "files" not in source.marks:
            continue
        until = int(source.until["logOffset"])
        named = {path for path, entry in entries.items() if entry <= until}
        listed = {one.path for one in _committed(generation, lists) if one.source == source.index}
        if listed and named - listed and not found.reasons:
            text = "in the checkpoint's log of files, but in no batch"
            found.find_files("FILES_MISSING", named - listed, text)
        if listed - named:
            text = "read, but not in the checkpoint's log of files: the next run is refused"
            found.find_files("FILES_UNKNOWN", listed - named, text)


def _logged_files(checkpoint: StoredPath, index: int) -> dict[str, int] | None:
    """The URIs in Spark's log of the files that it read, with their entries; ``None`` if it is damaged."""
    for source in read_json(checkpoint / IDENTITY).get("sources", ()):
        if source.get("kind") == "files" and int(source["index"]) == index:
            number = source.get("folder")
            try:
                return _file_entries(checkpoint / "sources" / str(index if number is None else number))
            except (OSError, ValueError, KeyError, TypeError):
                return None
    return None


def _file_entries(folder: StoredPath) -> dict[str, int]:
    """Every URI of a log: the last compacted entry holds all before it."""
    entries = {
        int(file.name.removesuffix(".compact")): folder / file.name
        for file in folder.list_files()
        if file.name.removesuffix(".compact").isdigit()
    }
    first = max((n for n, path in entries.items() if path.name.endswith(".compact")), default=0)
    found: dict[str, int] = {}
    for number in sorted(n for n in entries if n >= first):
        version, *lines = entries[number].read_text().split("\n")
        if version != "v1":
            raise ValueError(f"unknown version {version!r}")
        for line in lines:
            value = json.loads(line)
            found[str(value["path"])] = int(value["batchId"])
    return found


def _judge_folder(
    lineage: Lineage, read: Mapping[str, ListedFile], folders: StoredFolders, *, is_known: bool
) -> GradeReport:
    sources = lineage.last_sources
    try:
        now = {file.path: file for source in sources for file in _folder(source, folders).files()}
    except OSError as error:
        return unjudged_records(f"the folder cannot be listed: {error}")
    if not is_known:
        return unjudged_records("the ledger does not hold the names of all files that were read")
    there = dict(now)
    # The files in the folders that the flow has read; a folder that was removed since has none.
    older, newest = ({_folder(one, folders) for one in group} for group in (lineage.sources, sources))
    for folder in older - newest:
        with contextlib.suppress(OSError):
            there.update({file.path: file for file in folder.files() if file.path not in now})
    known = {plain_path(uri): file for uri, file in read.items() if not file.lost}
    lost = [plain_path(uri) for uri, file in read.items() if file.lost]
    gone = sorted(path for path in known if path not in there)
    changed = sorted(
        path
        for path, file in known.items()
        if path in there and (file.size, file.modified) != (there[path].size, there[path].modified_ms)
    )
    pending = sorted(path for path in now if path not in known and path not in lost)
    return _report(sources, known, {"changed": changed, "gone": gone, "pending": pending, "lost": lost})


def _folder(source: SourceRange, folders: StoredFolders) -> FileFolder:
    return FileFolder.of_identity(source.identity, folders)


def _report(
    sources: Sequence[SourceRange], known: Mapping[str, ListedFile], found: Mapping[str, Sequence[str]]
) -> GradeReport:
    changed, gone, pending, lost = (found[name] for name in ("changed", "gone", "pending", "lost"))
    same = len(known) - len(changed) - len(gone)
    sign = "=" if same == len(known) else "≠"
    parts = [f"{counted(len(known), 'file')} read {sign} {same:,} in the folder, unchanged"]
    parts += [f"{len(pending):,} not read yet"] if pending else []
    parts += [f"{len(lost):,} lost, as recorded"] if lost else []
    report = Judgement()
    if changed:
        report.reasons.append(f"changed since they were read, and not read again: {_named(changed, 3)}")
    if gone:
        report.reasons.append(f"removed since they were read: {_named(gone, 3)}")
    ages = {str(source.identity["max_age"]) for source in sources if "max_age" in source.identity}
    if pending and ages:
        age = f"maxFileAge={', '.join(ages)}"
        report.reasons.append(f"not read yet, or skipped by {age}: {_named(pending, 3)}")
    figures = {
        "files": len(known),
        "bytes": sum(file.size or 0 for file in known.values()),
        "unchanged": same,
        **{name: len(paths) for name, paths in found.items()},
    }
    details = {name: list(paths) for name, paths in found.items() if paths}
    return report.report("records", ", ".join(parts), figures, details)
