"""The lists of files that batches read, as the ledger holds them, against commits and checkpoints."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.model.texts import counted
from headrace.verify.checkpoint_history import Generation, Lineage
from headrace.verify.checkpoints import CheckpointLog
from headrace.verify.commits import Batches
from headrace.verify.ledger import Ledger
from headrace.verify.report import GradeReport, Judgement
from headrace.verify.source_range import SourceRange
from headrace.verify.stored import StoredPath, plain_path

_ATTEMPTS = 5
_NOTHING = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, kw_only=True)
class ListedFile:
    """A file that a batch read, by its list."""

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
    """The lists of one checkpoint."""

    files: tuple[ListedFile, ...] = ()
    sums: Mapping[tuple[int, int], str] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()


Lists = Mapping[str, CheckpointLists]
"""By checkpoint."""


@dataclass
class ListJudgement(Judgement):
    """What the lists of a flow show.

    Args:
        read: The files that the flow has read, by path; those that are lost are among them.
    """

    read: dict[str, ListedFile] = field(default_factory=dict)
    by_source: dict[tuple[int, str], ListedFile] = field(default_factory=dict)
    count: int = 0  # how many files the commits state

    def add_to(self, ranges: GradeReport) -> GradeReport:
        """The first grade of the flow with what the lists show."""
        text = f"{counted(self.count, 'file')}, {ranges.text.replace('files source, ', '')}"
        if self.findings:
            text = text.replace(", no gap, no overlap", "")
        both = Judgement([*ranges.findings, *self.findings], [*ranges.reasons, *self.reasons])
        return both.report("ranges", text, {**ranges.figures, "files": self.count})

    def find_files(self, code: str, uris: Iterable[str], words: str) -> None:
        """Add a finding about files."""
        paths = [plain_path(uri) for uri in sorted(uris)]
        self.find(code, f"{named_files(paths)}: {words}", files=paths)


def load_lists(folder: StoredPath) -> dict[str, CheckpointLists]:
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


def judge_lists(
    lineage: Lineage, lists: Lists, logs: Sequence[CheckpointLog], ledger: Ledger
) -> ListJudgement:
    """Judge which files a flow has read: each in one batch, none left out between."""
    found = ListJudgement()
    by_checkpoint = {log.checkpoint: log for log in logs}
    lost = {(str(one.get("checkpoint")), str(one.get("path"))) for one in ledger.losses if "path" in one}
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


def named_files(paths: Sequence[str], shown: int = 5) -> str:
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


def _judge_range(batch: Batches, source: SourceRange, lists: CheckpointLists, found: ListJudgement) -> None:
    """Compare the files of a commit, or of a merged entry of the ledger, with their lists."""
    if source.files is None:
        found.reasons.append(f"{batch.name} does not say which files it read")
        return
    stated = int(source.files["count"])
    if not source.files.get("carried"):
        found.count += stated
    numbers = range(batch.first, batch.last + 1)
    listed = sum(one.source == source.index and one.batch in numbers for one in lists.files)
    if listed == 0 and stated > 0:
        found.reasons.append(f"the ledger has no list of the {counted(stated, 'file')} of {batch.name}")
        return
    sums = [lists.sums.get((number, source.index), _NOTHING) for number in numbers]
    if source.files["sha256"] not in (None, _chained(sums)) or listed != stated:
        text = f"{batch.name}: its commit states {counted(stated, 'file')}, "
        text += f"and the ledger's list of {listed} differs"
        found.find("FILES_DIFFER", text, **batch.place, source=source.index)


def _chained(sums: Sequence[str]) -> str:
    """The hash of several batches: each joined to what came before."""
    chain = sums[0]
    for one in sums[1:]:
        chain = hashlib.sha256(f"{chain}{one}".encode()).hexdigest()
    return chain


def _judge_files(
    generation: Generation,
    lists: CheckpointLists,
    lineage: Lineage,
    lost: set[tuple[str, str]],
    found: ListJudgement,
) -> None:
    """No file in two batches, none carried over that was not read, none lost without a word."""
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
    generation: Generation, lists: CheckpointLists, log: CheckpointLog, found: ListJudgement
) -> None:
    """Spark's own log of a checkpoint, as far as its batches are in the table."""
    if not generation.batches:
        return
    last = generation.batches[-1]
    for source in last.sources:
        entries = log.files.get(source.index) if source.kind == "files" else None
        if entries is None or source.files is None:
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
