"""The third grade of a flow that reads files: those that were read against those that are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from headrace.model.folders import FileFolder, FoundFile
from headrace.model.texts import counted
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.file_lists import ListedFile, named_files
from headrace.verify.report import GradeReport, Judgement, unjudged_records
from headrace.verify.source_range import SourceRange
from headrace.verify.stored import StoredFolders, plain_path


def judge_folder(lineage: Lineage, read: Mapping[str, ListedFile], is_known: bool) -> GradeReport:
    """Compare the files that a flow has read with those that its folders hold now.

    Args:
        lineage: The flow; its last batch names the folders that it reads now.
    """
    sources = () if lineage.last is None else lineage.last.sources
    try:
        now = {file.path: file for source in sources for file in _folder(source).files()}
    except OSError as error:
        return unjudged_records(f"the folder cannot be listed: {error}")
    if not is_known:
        return unjudged_records("the ledger does not hold the names of all files that were read")
    there = {**_left_behind(lineage, sources), **now}
    known = {plain_path(uri): file for uri, file in read.items() if not file.lost}
    lost = [plain_path(uri) for uri, file in read.items() if file.lost]
    gone = sorted(path for path in known if path not in there)
    changed = sorted(path for path, file in known.items() if path in there and _differs(file, there[path]))
    pending = sorted(path for path in now if path not in known and path not in lost)
    return _report(sources, known, {"changed": changed, "gone": gone, "pending": pending, "lost": lost})


def _left_behind(lineage: Lineage, now: Sequence[SourceRange]) -> dict[str, FoundFile]:
    """What is in the folders that a flow has read once, and reads no more."""
    folders = {_folder(source) for batch in lineage.batches for source in batch.sources}
    folders -= {_folder(source) for source in now}
    found = {}
    for folder in folders:
        # One that was removed since has no files any more.
        with contextlib.suppress(OSError):
            found.update({file.path: file for file in folder.files()})
    return found


def _folder(source: SourceRange) -> FileFolder:
    return FileFolder.of_identity(source.identity, StoredFolders())


def _differs(read: ListedFile, now: FoundFile) -> bool:
    return (read.size, read.modified) != (now.size, now.modified_ms)


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
        report.reasons.append(f"changed since they were read, and not read again: {_named(changed)}")
    if gone:
        report.reasons.append(f"removed since they were read: {_named(gone)}")
    ages = {str(source.identity["max_age"]) for source in sources if "max_age" in source.identity}
    if pending and ages:
        age = f"maxFileAge={', '.join(ages)}"
        report.reasons.append(f"not read yet, or skipped by {age}: {_named(pending)}")
    figures = {
        "files": len(known),
        "bytes": sum(file.size or 0 for file in known.values()),
        "unchanged": same,
        **{name: len(paths) for name, paths in found.items()},
    }
    details = {name: list(paths) for name, paths in found.items() if paths}
    return report.report("records", ", ".join(parts), figures, details)


def _named(paths: Sequence[str]) -> str:
    return named_files(paths, shown=3)
