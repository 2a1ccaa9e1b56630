"""The rows of a table from its baseline to its newest version: what each commit added and removed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from headrace.model.texts import counted
from headrace.verify.commits import CommitClaims, Other, Role, declares_erasure, is_erasure
from headrace.verify.delta_log import Commit, DataFile, FileFacts, FileKey, TableLog
from headrace.verify.equations import RowCounts

_COPIED_MS = 10_000
"""A commit file that is so much younger than its commit was copied here, and the data with it."""


@dataclass(frozen=True, kw_only=True)
class RowDelta:
    commit: Commit
    role: Role
    added: int
    removed: int
    gone: tuple[DataFile, ...] = ()
    gone_foreign: tuple[DataFile, ...] = ()  # those of them that another writer had added
    kept: int = 0  # rows in files that the commit only gives another deletion vector
    removed_ours: int = 0
    undone: tuple[int, ...] = ()  # versions of this pipeline that a RESTORE has undone, and that still are
    unknown: tuple[str, ...] = ()  # files whose rows are neither in the log's statistics nor on disk

    @property
    def net(self) -> int:
        return self.added - self.removed

    @property
    def gained(self) -> int:
        """The added rows without those that stay in their file."""
        return self.added - self.kept

    @property
    def lost(self) -> int:
        """The removed rows without those that stay in their file."""
        return self.removed - self.kept

    def agrees(self, counts: RowCounts) -> bool:
        """Whether the commit added as many rows as it states; a merge states its net."""
        return (self.net if counts.by_key else self.added) == counts.added

    def differs(self, name: str, counts: RowCounts) -> str:
        """That a commit added other rows than it states, for people."""
        return (
            f"{name} states that it added {counted(counts.added, 'row')}; "
            f"version {self.commit.version} added {self.added:,} and removed {self.removed:,}"
        )

    @property
    def is_erasure(self) -> bool:
        return is_erasure(self.commit)

    @property
    def is_foreign(self) -> bool:
        """Whether another writer made it."""
        return self.role in ("foreign", "unnumbered")

    @property
    def text(self) -> str:
        who = f"version {self.commit.version}: {self.commit.operation} by {self.commit.engine}"
        declared = ", declared as an erasure" if declares_erasure(self.commit) else ""
        if self.is_erasure and self.removed > self.added:
            return f"{who} removed {counted(-self.net, 'row')}{declared}"
        if not self.removed:
            return f"{who} added {counted(self.added, 'row')} (not by this pipeline)"
        return f"{who} removed {counted(self.removed, 'row')} and wrote {self.added:,}{declared}"


@dataclass(frozen=True, kw_only=True)
class RowBalance:
    """The rows of a table: where it began, how it moved, and what there is now."""

    baseline: int  # the version before the first delta; -1 when everything is known
    opened_with: int
    deltas: Mapping[int, RowDelta]
    earlier: tuple[Other, ...]  # what other writers had done before the baseline, by the ledger
    files: Mapping[FileKey, DataFile]
    origins: Mapping[FileKey, int]  # the version that added each active file, if the log still has it
    rows: int  # rows in the active files, as they lie on disk
    copied: bool  # whether the table's files were copied here after they had been committed


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """The version that the balance of a table begins with, and the rows that it must have."""

    version: int = -1  # the state after this version is the first that counts; -1 is the empty table
    expected: int | None = 0  # rows that the state must have; ``None`` takes it as it is
    exact: bool = True  # whether more rows than expected contradict, too: every commit is known
    why: str = ""  # where the rows of that state come from, for people
    others: tuple[Other, ...] = ()  # what other writers had done to the table before, since it was last empty


def files_to_inspect(log: TableLog, baseline: Baseline) -> set[str]:
    """The files whose footers are to be read: what was added since the baseline, and is there now."""
    added = {f.path for c in log.commits if c.version > baseline.version for f in c.added}
    if baseline.expected is None:
        return added
    return added | {file.path for file in log.active().values()}


def build_balance(
    log: TableLog, metadata: CommitClaims, facts: Mapping[str, FileFacts], baseline: Baseline
) -> RowBalance:
    deltas: dict[int, RowDelta] = {}
    origins: dict[FileKey, int] = {}
    foreign: set[FileKey] = set()
    gone_at: dict[FileKey, int] = {}
    undone: dict[int, frozenset[int]] = {}
    opened_with = sum(_live(file, facts)[0] for file in log.base.values())
    for commit, active in log.states():
        if commit.version == baseline.version + 1:
            opened_with = sum(_live(file, facts)[0] for file in active.values())
        role = metadata.roles.get(commit.version, "foreign")
        files = tuple(active[key] for key, _ in commit.removed if key in active)
        added = [_live(file, facts) for file in commit.added]
        gone = [_live(file, facts) for file in files]
        # The same file with another deletion vector still holds the rows that are left.
        kept = {file.path: rows for file, (rows, _) in zip(commit.added, added, strict=True)}
        if commit.version > baseline.version:
            deltas[commit.version] = RowDelta(
                commit=commit,
                role=role,
                added=sum(rows for rows, _ in added),
                removed=sum(rows for rows, _ in gone),
                gone=files,
                kept=sum(
                    min(rows, kept.get(file.path, 0)) for file, (rows, _) in zip(files, gone, strict=True)
                ),
                gone_foreign=tuple(file for file in files if file.key in foreign),
                removed_ours=sum(
                    max(rows - kept.get(file.path, 0), 0)
                    for file, (rows, _) in zip(files, gone, strict=True)
                    if file.key not in foreign
                ),
                unknown=tuple(unknown for _, unknown in [*added, *gone] if unknown),
            )
            if commit.operation == "RESTORE":
                keys = [gone_at.get(file.key, -1) for file in commit.added]
                keys += [origins.get(file.key, -1) for file in files]
                undone[commit.version] = _undone(commit, keys, deltas, undone)
            gone_at.update({file.key: commit.version for file in files})
            origins.update({file.key: commit.version for file in commit.added})
        if role in ("foreign", "unnumbered") and not files:
            foreign.update(file.key for file in commit.added)
    if undone:
        last = max(undone)
        deltas[last] = replace(deltas[last], undone=tuple(sorted(undone[last])))
    now = log.active()
    late_ms = [commit.written_ms - commit.timestamp_ms for commit in log.commits]
    if baseline.version == log.version:
        opened_with = sum(_live(file, facts)[0] for file in now.values())
    return RowBalance(
        baseline=baseline.version,
        opened_with=opened_with,
        deltas=deltas,
        earlier=baseline.others,
        files=now,
        origins={key: version for key, version in origins.items() if key in now},
        rows=sum(_live(file, facts)[0] for file in now.values()),
        copied=not late_ms or median(late_ms) > _COPIED_MS,
    )


def _undone(
    restore: Commit,
    changed: Sequence[int],
    deltas: Mapping[int, RowDelta],
    before: Mapping[int, frozenset[int]],
) -> frozenset[int]:
    """The versions of this pipeline whose rows a table lacks after a RESTORE.

    `changed` are the versions whose files it has removed or brought back; `before` is what earlier ones have
    undone, which it can bring back.
    """
    to = restore.restores
    if to is None:
        earlier: frozenset[int] = before[max(before)] if before else frozenset()
    else:
        earlier = next((before[one] for one in sorted(before, reverse=True) if one <= to), frozenset())
        changed = [*changed, *range(to + 1, restore.version)]
        changed = [version for version in changed if version > to]
    ours = {
        version
        for version in changed
        if version in deltas
        and deltas[version].role in ("batch", "opening", "replay", "view")
        and (deltas[version].added or deltas[version].removed)
    }
    return earlier | ours


def _live(file: DataFile, facts: Mapping[str, FileFacts]) -> tuple[int, str]:
    """Rows of a file that count, by its footer, else by the log; and its path if neither is known."""
    seen = facts.get(file.path)
    rows = file.rows if seen is None or seen.rows is None else seen.rows
    if rows is None:
        return 0, file.path
    return rows - file.deleted, ""
