"""The second grade: the rows that left the query are the rows that lie in the table's files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from statistics import median

from headrace.verify.checkpoint_history import Lineage
from headrace.verify.commits import Batches, CommitClaims, Other, Role, declares_erasure, is_erasure
from headrace.verify.data_files import FileFacts, contradictions
from headrace.verify.delta_log import Commit, DataFile, FileKey, TableLog
from headrace.verify.equations import RowCounts
from headrace.verify.report import Finding, GradeReport, verdict_of
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
        unknown: Files whose rows neither the log nor the disk can tell.
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
        origins: The version that added each active file, where the log still says it.
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


@dataclass(frozen=True)
class FileFindings:
    """Files that differ from the log, by the version that added them (``None``: unknown)."""

    by_version: Mapping[int | None, tuple[Finding, ...]] = field(default_factory=dict)

    def of(self, versions: Iterable[int | None]) -> tuple[Finding, ...]:
        return tuple(finding for version in versions for finding in self.by_version.get(version, ()))


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
    """Compare every active file with what the log says of it."""
    found: dict[int | None, list[Finding]] = {}
    for key, file in balance.files.items():
        if file.path not in facts:
            continue
        version = balance.origins.get(key)
        where = "" if version is None else f" of version {version}"
        for code, words in contradictions(file, facts[file.path], judge_age=not balance.copied):
            place = {"file": file.path, **({} if version is None else {"version": version})}
            found.setdefault(version, []).append(
                Finding(code=code, text=f"file {file.path}{where} {words}", place=place)
            )
    return FileFindings({version: tuple(findings) for version, findings in found.items()})


def judge_counts(lineage: Lineage, balance: RowBalance, files: FileFindings) -> GradeReport:
    """Judge the second grade of one flow: batch by batch, and the files of its batches."""
    findings: list[Finding] = []
    reasons: list[str] = []
    for batch in lineage.batches:
        findings += _judge_balance(batch)
        delta = balance.deltas.get(batch.first_version) if batch.first == batch.last else None
        if delta is not None:
            _judge_delta(batch, delta, findings, reasons)
    findings += files.of({batch.first_version for batch in lineage.batches if batch.first == batch.last})
    summed = [batch for batch in lineage.batches if batch.first_version not in balance.deltas]
    total = reduce(RowCounts.plus, (batch.counts for batch in lineage.batches), RowCounts.parse({}))
    text = total.text
    if summed:
        last = max(batch.last_version for batch in summed)
        text += f", up to version {last} in sum"
    return GradeReport(
        grade="counts",
        verdict=verdict_of(findings, reasons),
        text=text,
        reasons=tuple(reasons),
        findings=tuple(findings),
        figures=total.by_name,
    )


def judge_table(
    balance: RowBalance,
    baseline: Baseline,
    metadata: CommitClaims,
    lineages: Sequence[Lineage],
    files: FileFindings,
) -> GradeReport:
    """Judge the equation of the whole table: every row in it is somebody's."""
    findings = list(
        files.of({None, *balance.deltas} - {b.first_version for x in lineages for b in x.batches})
    )
    reasons: list[str] = []
    for version, why in sorted(metadata.repeated.items()):
        if version > balance.baseline:
            text = f"version {version} does not count as a batch: {why}"
            findings.append(Finding(code="COMMIT_UNNUMBERED", text=text, place={"version": version}))
    _judge_baseline(balance, baseline, lineages, findings, reasons)
    ours = foreign = removed = moved = 0
    for delta in balance.deltas.values():
        match delta.role:
            case "batch" | "opening" | "view":
                ours += delta.net
            case "rewrite":
                moved += delta.net
                if delta.net != 0 and not delta.unknown:
                    findings.append(_rewrite_differs(delta))
            case _:
                _judge_foreign(delta, findings, reasons)
                if delta.removed > delta.added:
                    removed -= delta.net
                else:
                    foreign += delta.net
    for other in balance.earlier:
        if not other.erasure and other.removed != 0:
            reasons.append(
                f"{other.text}: whether rows of this pipeline were among them is not known any more"
            )
    unknown = sorted({path for delta in balance.deltas.values() for path in delta.unknown})
    if unknown:
        reasons.append(
            f"{counted(len(unknown), 'file')} without statistics cannot be counted: no longer on disk "
            f"({unknown[0]}{', ..' if len(unknown) > 1 else ''})"
        )
    expected = balance.opened_with + ours + foreign + moved - removed
    if balance.rows != expected and not unknown:
        text = f"the table has {balance.rows:,} rows, and its commits make {expected:,}"
        findings.append(Finding(code="ROWS_DIFFER", text=text))
    text = f"{counted(balance.rows, 'row')} in {counted(len(balance.files), 'file')}"
    made = "by refreshes" if metadata.refreshes else "accepted"
    parts = [
        (balance.opened_with, baseline.why),
        (ours, made),
        (foreign, "by other writers"),
        (moved, "by rewrites"),
    ]
    sums = [f"{number:,} {words}" for number, words in parts if number or words == made]
    text += " = " + " + ".join(sums) + (f" - {removed:,} removed" if removed else "")
    return GradeReport(
        grade="counts",
        verdict=verdict_of(findings, reasons),
        text=text,
        reasons=tuple(reasons),
        findings=tuple(findings),
        figures={"rows": balance.rows, "accepted": ours, "foreign": foreign, "removed": removed},
    )


def _judge_foreign(delta: RowDelta, findings: list[Finding], reasons: list[str]) -> None:
    """Another writer may delete rows of ours; it may not replace them, or undo commits."""
    if delta.is_erasure or not delta.removed_ours:
        return
    if delta.commit.operation == "RESTORE" and delta.added >= delta.removed:
        reasons.append(f"{delta.text}: counts cannot tell whether they are the same rows")
        return
    text = (
        f"{delta.text}: {counted(delta.removed_ours, 'row')} of this pipeline replaced; only a commit "
        "that deletes, or one that is declared as an erasure, may remove them"
    )
    findings.append(Finding(code="ROWS_REWRITTEN", text=text, place={"version": delta.commit.version}))


def describe_others(balance: RowBalance) -> list[str]:
    """What others did to the table, and what was only moved within it."""
    notes = [other.text for other in balance.earlier]
    rewrites = [m for m in balance.deltas.values() if m.role == "rewrite"]
    for delta in balance.deltas.values():
        if delta.role in ("foreign", "unnumbered"):
            notes.append(delta.text)
    if rewrites:
        kinds = ", ".join(sorted({m.commit.operation for m in rewrites}))
        moved = sum(m.added for m in rewrites)
        notes.append(
            f"{counted(len(rewrites), 'rewrite')} ({kinds}), the last in version "
            f"{rewrites[-1].commit.version}, moved {counted(moved, 'row')} to other files"
        )
    if balance.copied:
        notes.append("the files were copied after their commits: their times are not checked")
    return notes


def _judge_balance(batch: Batches) -> Iterator[Finding]:
    place = {"batch": batch.first, "version": batch.first_version}
    for equation in batch.counts.broken:
        yield Finding(code="COUNTS_UNBALANCED", text=f"{batch.name}: {equation}", place=place)
    if batch.counts.quarantined:
        rows = counted(batch.counts.quarantined, "row")
        text = f"{batch.name} quarantined {rows}, and the table has no quarantine"
        yield Finding(code="QUARANTINE_MISSING", text=text, place=place)


def _judge_delta(batch: Batches, delta: RowDelta, findings: list[Finding], reasons: list[str]) -> None:
    place = {"batch": batch.first, "version": batch.first_version}
    if delta.unknown:
        reasons.append(f"{batch.name} cannot be counted: {delta.unknown[0]} has no statistics and is gone")
    elif delta.added != batch.counts.added:
        text = (
            f"{batch.name} states that it added {counted(batch.counts.added, 'row')}; "
            f"the files of version {batch.first_version} hold {delta.added:,}"
        )
        findings.append(Finding(code="COUNTS_DIFFER", text=text, place=place))
    if delta.removed and delta.role == "batch":
        text = f"{batch.name} removed {counted(delta.removed, 'row')} of the table"
        findings.append(Finding(code="BATCH_REMOVES", text=text, place=place))


def _judge_baseline(
    balance: RowBalance,
    baseline: Baseline,
    lineages: Sequence[Lineage],
    findings: list[Finding],
    reasons: list[str],
) -> None:
    early = [
        batch
        for lineage in lineages
        for batch in lineage.batches
        if batch.last_version <= baseline.version and batch.counts.added
    ]
    if baseline.expected == 0 and early:
        text = f"{early[0].name} of {early[0].flow} was removed by the refresh of version {baseline.version}"
        findings.append(Finding(code="REFRESH_REMOVED", text=text, place={"version": baseline.version}))
    if baseline.expected is None or balance.opened_with == baseline.expected:
        return
    difference = balance.opened_with - baseline.expected
    uncounted = [other for other in baseline.others if other.net is None]
    if uncounted:
        reasons.append(f"rows up to version {baseline.version} cannot be counted: {uncounted[0].text}")
    elif any(lineage.unwitnessed for lineage in lineages):
        reasons.append(f"rows up to version {baseline.version} cannot be counted: their commits are gone")
    elif difference < 0 or baseline.exact:
        text = (
            f"version {baseline.version} has {counted(balance.opened_with, 'row')}, "
            f"and {baseline.expected:,} are {baseline.why or 'expected'}"
        )
        findings.append(Finding(code="ROWS_DIFFER", text=text, place={"version": baseline.version}))
    else:
        reasons.append(
            f"{counted(difference, 'row')} from before version {baseline.version + 1} belong to no batch: "
            "whose they are, only commits that are gone could tell"
        )


def _rewrite_differs(delta: RowDelta) -> Finding:
    version = delta.commit.version
    text = (
        f"version {version}, {delta.commit.operation}, states that it changes no data, but wrote "
        f"{delta.added:,} rows in place of {delta.removed:,}"
    )
    return Finding(code="REWRITE_DIFFERS", text=text, place={"version": version})


def _live(file: DataFile, facts: Mapping[str, FileFacts]) -> tuple[int, str]:
    """Rows of a file that count, as it lies on disk, else as the log says; and its path if neither."""
    seen = facts.get(file.path)
    rows = file.rows if seen is None or seen.rows is None else seen.rows
    if rows is None:
        return 0, file.path
    return rows - file.deleted, ""


def _is_copied(commits: Sequence[Commit]) -> bool:
    if not commits:
        return True
    return median(commit.written_ms - commit.timestamp_ms for commit in commits) > _COPIED_MS
