"""The second grade: the rows that left the query are the rows that lie in the table's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from statistics import median

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.commits import Batches, CommitClaims, Other, Role, declares_erasure, is_erasure
from headrace.verify.data_files import FileFacts, contradictions
from headrace.verify.delta_log import Commit, DataFile, FileKey, TableLog
from headrace.verify.equations import RowCounts
from headrace.verify.report import Finding, GradeReport, Judgement
from headrace.verify.wording import counted

_COPIED_MS = 10_000
"""A commit file that is so much younger than its commit was copied here, and the data with it."""


@dataclass(frozen=True, kw_only=True)
class RowDelta:
    """What one commit did to the number of rows.

    Args:
        gone: The files that it removed.
        gone_foreign: Those of them that another writer had added.
        removed_ours: Rows of the others.
        unknown: Files whose rows are neither in the log's statistics nor on disk.
    """

    commit: Commit
    role: Role
    added: int
    removed: int
    gone: tuple[DataFile, ...] = ()
    gone_foreign: tuple[DataFile, ...] = ()
    removed_ours: int = 0
    unknown: tuple[str, ...] = ()

    @property
    def net(self) -> int:
        return self.added - self.removed

    @property
    def is_erasure(self) -> bool:
        return is_erasure(self.commit)

    @property
    def is_foreign(self) -> bool:
        """Whether another writer made it."""
        return self.role in ("foreign", "unnumbered")

    @property
    def text(self) -> str:
        """What a foreign commit did, for people."""
        who = f"version {self.commit.version}: {self.commit.operation} by {self.commit.engine}"
        declared = ", declared as an erasure" if declares_erasure(self.commit) else ""
        if self.is_erasure and self.removed > self.added:
            return f"{who} removed {counted(-self.net, 'row')}{declared}"
        if not self.removed:
            return f"{who} added {counted(self.added, 'row')} (not by this pipeline)"
        return f"{who} removed {counted(self.removed, 'row')} and wrote {self.added:,}{declared}"


@dataclass(frozen=True, kw_only=True)
class RowBalance:
    """The rows of a table: where it began, how it moved, and what there is now.

    Args:
        baseline: The version before the first delta; -1 when everything is known.
        opened_with: Rows at the baseline.
        deltas: By version.
        earlier: What other writers had done before the baseline, by the ledger.
        files: The active files now.
        origins: The version that added each active file, if the log still has it.
        rows: Rows in the active files, as they lie on disk.
        copied: Whether the table's files were copied here after they had been committed.
    """

    baseline: int
    opened_with: int
    deltas: Mapping[int, RowDelta]
    earlier: tuple[Other, ...]
    files: Mapping[FileKey, DataFile]
    origins: Mapping[FileKey, int]
    rows: int
    copied: bool


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Where the balance of a table begin, and what must be there then.

    Args:
        version: The state after this version is the first that counts; -1 is the empty table.
        expected: Rows that the state must have; ``None`` takes it as it is.
        exact: Whether more rows than expected contradict, too; commits that are gone could explain them.
        why: Where the rows of that state come from, for people.
        others: What other writers had done to the table before, since it was last empty.
    """

    version: int = -1
    expected: int | None = 0
    exact: bool = True
    why: str = ""
    others: tuple[Other, ...] = ()


FileFindings = Mapping[int | None, list[Finding]]
"""Findings in data files, by the version that added the file (``None``: unknown)."""


def files_to_inspect(log: TableLog, baseline: Baseline) -> set[str]:
    """The files whose footers are to be read: what was added since the baseline, and is there now."""
    added = {f.path for c in log.commits if c.version > baseline.version for f in c.added}
    if baseline.expected is None:
        return added
    return added | {file.path for file in log.active().values()}


def build_balance(
    log: TableLog, metadata: CommitClaims, facts: Mapping[str, FileFacts], baseline: Baseline
) -> RowBalance:
    """Follow the rows from the beginning to the snapshot."""
    deltas: dict[int, RowDelta] = {}
    origins: dict[FileKey, int] = {}
    foreign: set[FileKey] = set()
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
                gone_foreign=tuple(file for file in files if file.key in foreign),
                removed_ours=sum(
                    max(rows - kept.get(file.path, 0), 0)
                    for file, (rows, _) in zip(files, gone, strict=True)
                    if file.key not in foreign
                ),
                unknown=tuple(unknown for _, unknown in [*added, *gone] if unknown),
            )
            origins.update({file.key: commit.version for file in commit.added})
        if role in ("foreign", "unnumbered") and not files:
            foreign.update(file.key for file in commit.added)
    now = log.active()
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
        copied=_is_copied(log.commits),
    )


def judge_files(balance: RowBalance, facts: Mapping[str, FileFacts]) -> FileFindings:
    """Compare every active file with what the log states of it."""
    found: dict[int | None, list[Finding]] = {}
    for key, file in balance.files.items():
        if file.path not in facts:
            continue
        version = balance.origins.get(key)
        where = "" if version is None else f" of version {version}"
        place = {"file": file.path} if version is None else {"file": file.path, "version": version}
        for code, words in contradictions(file, facts[file.path], judge_age=not balance.copied):
            finding = Finding(code=code, text=f"file {file.path}{where} {words}", place=place)
            found.setdefault(version, []).append(finding)
    return found


def judge_counts(lineage: Lineage, balance: RowBalance, files: FileFindings) -> GradeReport:
    """Judge the second grade of one flow: batch by batch, and the files of its batches."""
    found = Judgement()
    for batch in lineage.batches:
        _judge_equations(batch, found)
        delta = balance.deltas.get(batch.first_version) if batch.first == batch.last else None
        if delta is not None:
            _judge_delta(batch, delta, found)
    for version in {batch.first_version for batch in lineage.batches if batch.first == batch.last}:
        found.findings += files.get(version, [])
    total = reduce(RowCounts.plus, (batch.counts for batch in lineage.batches), RowCounts.parse({}))
    text = total.text
    summed = [b.last_version for b in lineage.batches if b.first_version not in balance.deltas]
    if summed:
        text += f", up to version {max(summed)} in sum"
    return found.report("counts", text, total.by_name)


def judge_table(
    balance: RowBalance,
    baseline: Baseline,
    metadata: CommitClaims,
    lineages: Sequence[Lineage],
    files: FileFindings,
) -> GradeReport:
    """Judge the equation of the whole table: every row in it is accounted for."""
    found = Judgement()
    for version in {None, *balance.deltas} - {b.first_version for one in lineages for b in one.batches}:
        found.findings += files.get(version, [])
    for version, why in sorted(metadata.repeated.items()):
        if version > balance.baseline:
            text = f"version {version} does not count as a batch: {why}"
            found.find("COMMIT_UNNUMBERED", text, version=version)
    _judge_baseline(balance, baseline, lineages, found)
    _judge_earlier(balance, found)
    _judge_rewrites(balance, found)
    _judge_foreign(balance, found)
    sums = _sum_deltas(balance)
    _judge_sum(balance, sums, found)
    made = "by refreshes" if metadata.refreshes else "accepted"
    text = _equation(balance, sums, baseline.why, made)
    figures = {"rows": balance.rows, "accepted": sums.ours, "foreign": sums.foreign, "removed": sums.removed}
    return found.report("counts", text, figures)


@dataclass(frozen=True)
class _Sums:
    """The rows that commits added since the baseline, by who did; and those that others removed."""

    ours: int
    foreign: int
    moved: int
    removed: int

    @property
    def net(self) -> int:
        return self.ours + self.foreign + self.moved - self.removed


def _sum_deltas(balance: RowBalance) -> _Sums:
    ours = foreign = moved = removed = 0
    for delta in balance.deltas.values():
        if delta.role in ("batch", "opening", "view"):
            ours += delta.net
        elif delta.role == "rewrite":
            moved += delta.net
        elif delta.net < 0:
            removed -= delta.net
        else:
            foreign += delta.net
    return _Sums(ours, foreign, moved, removed)


def _equation(balance: RowBalance, sums: _Sums, why: str, made: str) -> str:
    """``60 rows in 3 files = 40 accepted + 25 by other writers - 5 removed``."""
    parts = [
        (balance.opened_with, why),
        (sums.ours, made),
        (sums.foreign, "by other writers"),
        (sums.moved, "by rewrites"),
    ]
    shown = [f"{number:,} {words}" for number, words in parts if number or words == made]
    removed = f" - {sums.removed:,} removed" if sums.removed else ""
    rows = f"{counted(balance.rows, 'row')} in {counted(len(balance.files), 'file')}"
    return f"{rows} = {' + '.join(shown)}{removed}"


def _judge_sum(balance: RowBalance, sums: _Sums, found: Judgement) -> None:
    """The rows of the table are those that its commits added and did not remove."""
    unknown = sorted({path for delta in balance.deltas.values() for path in delta.unknown})
    expected = balance.opened_with + sums.net
    if unknown:
        found.reasons.append(
            f"{counted(len(unknown), 'file')} without statistics cannot be counted: no longer on disk "
            f"({unknown[0]}{', ..' if len(unknown) > 1 else ''})"
        )
    elif balance.rows != expected:
        found.find("ROWS_DIFFER", f"the table has {balance.rows:,} rows, and its commits make {expected:,}")


def _judge_earlier(balance: RowBalance, found: Judgement) -> None:
    """What other writers removed before the baseline may have been rows of ours."""
    for other in balance.earlier:
        if not other.erasure and other.removed != 0:
            found.reasons.append(
                f"{other.text}: whether rows of this pipeline were among them is not known any more"
            )


def _judge_rewrites(balance: RowBalance, found: Judgement) -> None:
    """A commit that states that it changes no data leaves the number of rows as it was."""
    for version, delta in balance.deltas.items():
        if delta.role == "rewrite" and delta.net != 0 and not delta.unknown:
            text = (
                f"version {version}, {delta.commit.operation}, states that it changes no data, but wrote "
                f"{delta.added:,} rows in place of {delta.removed:,}"
            )
            found.find("REWRITE_DIFFERS", text, version=version)


def _judge_foreign(balance: RowBalance, found: Judgement) -> None:
    """Another writer may delete rows of ours; it may not replace them, or undo commits."""
    for version, delta in balance.deltas.items():
        if not delta.is_foreign or delta.is_erasure or not delta.removed_ours:
            continue
        if delta.commit.operation == "RESTORE" and delta.added >= delta.removed:
            found.reasons.append(f"{delta.text}: counts do not show whether they are the same rows")
            continue
        text = (
            f"{delta.text}: {counted(delta.removed_ours, 'row')} of this pipeline replaced; only a commit "
            "that deletes, or one that is declared as an erasure, may remove them"
        )
        found.find("ROWS_REWRITTEN", text, version=version)


def describe_others(balance: RowBalance) -> list[str]:
    """What others did to the table, and what was only moved within it."""
    notes = [other.text for other in balance.earlier]
    notes += [delta.text for delta in balance.deltas.values() if delta.is_foreign]
    rewrites = [delta for delta in balance.deltas.values() if delta.role == "rewrite"]
    if rewrites:
        kinds = ", ".join(sorted({delta.commit.operation for delta in rewrites}))
        moved = sum(delta.added for delta in rewrites)
        notes.append(
            f"{counted(len(rewrites), 'rewrite')} ({kinds}), the last in version "
            f"{rewrites[-1].commit.version}, moved {counted(moved, 'row')} to other files"
        )
    if balance.copied:
        notes.append("the files were copied after their commits: their times are not checked")
    return notes


def _judge_equations(batch: Batches, found: Judgement) -> None:
    for equation in batch.counts.broken:
        found.find("COUNTS_UNBALANCED", f"{batch.name}: {equation}", **batch.place)
    if batch.counts.quarantined:
        rows = counted(batch.counts.quarantined, "row")
        text = f"{batch.name} quarantined {rows}, and the table has no quarantine"
        found.find("QUARANTINE_MISSING", text, **batch.place)


def _judge_delta(batch: Batches, delta: RowDelta, found: Judgement) -> None:
    """A batch added the rows that its commit states, and removed none."""
    if delta.unknown:
        missing = f"{delta.unknown[0]} has no statistics and is gone"
        found.reasons.append(f"{batch.name} cannot be counted: {missing}")
    elif delta.added != batch.counts.added:
        text = (
            f"{batch.name} states that it added {counted(batch.counts.added, 'row')}; "
            f"the files of version {batch.first_version} hold {delta.added:,}"
        )
        found.find("COUNTS_DIFFER", text, **batch.place)
    if delta.removed and delta.role == "batch":
        text = f"{batch.name} removed {counted(delta.removed, 'row')} of the table"
        found.find("BATCH_REMOVES", text, **batch.place)


def _judge_baseline(
    balance: RowBalance, baseline: Baseline, lineages: Sequence[Lineage], found: Judgement
) -> None:
    """The state that the balance begins with has the rows that the ledger states."""
    version = baseline.version
    batches = (batch for lineage in lineages for batch in lineage.batches)
    early = [batch for batch in batches if batch.last_version <= version and batch.counts.added]
    if baseline.expected == 0 and early:
        text = f"{early[0].name} of {early[0].flow} was removed by the refresh of version {version}"
        found.find("REFRESH_REMOVED", text, version=version)
    if baseline.expected is None or balance.opened_with == baseline.expected:
        return
    difference = balance.opened_with - baseline.expected
    uncounted = [other for other in baseline.others if other.net is None]
    if uncounted:
        found.reasons.append(f"rows up to version {version} cannot be counted: {uncounted[0].text}")
    elif any(lineage.unknown_versions for lineage in lineages):
        found.reasons.append(f"rows up to version {version} cannot be counted: their commits are gone")
    elif difference < 0 or baseline.exact:
        text = f"version {version} has {counted(balance.opened_with, 'row')}, "
        text += f"and {baseline.expected:,} are {baseline.why or 'expected'}"
        found.find("ROWS_DIFFER", text, version=version)
    else:
        found.reasons.append(
            f"{counted(difference, 'row')} from before version {version + 1} belong to no batch: "
            "the commits that would show their writer are gone"
        )


def _live(file: DataFile, facts: Mapping[str, FileFacts]) -> tuple[int, str]:
    """Rows of a file that count, by its footer, else by the log; and its path if neither is known."""
    seen = facts.get(file.path)
    rows = file.rows if seen is None or seen.rows is None else seen.rows
    if rows is None:
        return 0, file.path
    return rows - file.deleted, ""


def _is_copied(commits: Sequence[Commit]) -> bool:
    if not commits:
        return True
    return median(commit.written_ms - commit.timestamp_ms for commit in commits) > _COPIED_MS
