"""The third grade of a flow that reads files: those that were read against those that are there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

from headrace.model.folders import FileFolder, FoundFile, local_path
from headrace.verify.checkpoint_history import Lineage
from headrace.verify.file_lists import ListedFile
from headrace.verify.report import GradeReport
from headrace.verify.source_range import SourceRange
from headrace.verify.wording import counted

_SHOWN = 3


def reads_files_only(lineage: Lineage) -> bool:
    """Whether all that a flow has read are files."""
    return {source.kind for batch in lineage.batches for source in batch.sources} == {"files"}


def judge_folder(lineage: Lineage, read: Mapping[str, ListedFile], is_known: bool) -> GradeReport:
    """Compare the files that a flow has read with those that its folders hold now.

    Args:
        lineage: The flow; its last batch says which folders it reads now.
        read: What it has read, by URI.
        is_known: Whether that is all that it has read.
    """
    last = lineage.last
    sources = () if last is None else last.sources
    try:
        now = {file.path: file for source in sources for file in _folder(source).files()}
    except OSError as error:
        reason = f"the folder cannot be listed: {error}"
        return GradeReport(grade="records", verdict="unjudged", text="cannot be judged", reasons=(reason,))
    if not is_known:
        reason = "the ledger does not hold the names of all files that were read"
        return GradeReport(grade="records", verdict="unjudged", text="cannot be judged", reasons=(reason,))
    there = {**_left_behind(lineage, sources), **now}
    known = {local_path(uri) or uri: file for uri, file in read.items() if not file.lost}
    lost = [local_path(uri) or uri for uri, file in read.items() if file.lost]
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
    return FileFolder.of_identity(source.identity)


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
    reasons = []
    if changed:
        reasons.append(f"changed since they were read, and not read again: {_named(changed)}")
    if gone:
        reasons.append(f"removed since they were read: {_named(gone)}")
    ages = {str(source.identity["max_age"]) for source in sources if "max_age" in source.identity}
    if pending and ages:
        reasons.append(f"not read yet, or skipped by maxFileAge={', '.join(ages)}: {_named(pending)}")
    return GradeReport(
        grade="records",
        verdict="partial" if reasons else "proven",
        text=", ".join(parts),
        reasons=tuple(reasons),
        figures={
            "files": len(known),
            "bytes": sum(file.size or 0 for file in known.values()),
            "unchanged": same,
            **{name: len(paths) for name, paths in found.items()},
        },
        details={name: list(paths) for name, paths in found.items() if paths},
    )


def _named(paths: Sequence[str]) -> str:
    more = len(paths) - _SHOWN
    return ", ".join(paths[:_SHOWN]) + (f" and {counted(more, 'more file')}" if more > 0 else "")
