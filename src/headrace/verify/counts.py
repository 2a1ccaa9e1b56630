"""The second grade: the rows that left the query are the rows that lie in the table's files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from headrace.model.texts import counted
from headrace.verify.balance import Baseline, RowBalance, RowDelta
from headrace.verify.checkpoints import Lineage
from headrace.verify.commits import Batches, CommitClaims, Refresh
from headrace.verify.delta_log import FileFacts, TableLog, contradictions
from headrace.verify.equations import RowCounts
from headrace.verify.increments import judge_increments
from headrace.verify.report import Finding, GradeReport, Judgement, ViewProof

FileFindings = Mapping[int | None, list[Finding]]
"""Findings in data files, by the version that added the file (``None``: unknown)."""


def judge_files(balance: RowBalance, facts: Mapping[str, FileFacts]) -> FileFindings:
    """Compare every active file with what the log states of it."""
    found: dict[int | None, list[Finding]] = {}
    for key, file in balance.files.items():
        if file.path not in facts:
            continue
        version = balance.origins.get(key)
        where = "" if version is None else f" of version {version}"
        place = {"path": file.path} if version is None else {"path": file.path, "version": version}
        delta = None if version is None else balance.deltas.get(version)
        committed_ms = None if delta is None else delta.commit.written_ms
        judge_age = not balance.copied
        differences = contradictions(file, facts[file.path], judge_age=judge_age, committed_ms=committed_ms)
        for code, words in differences:
            finding = Finding(code=code, text=f"file {file.path}{where} {words}", place=place)
            found.setdefault(version, []).append(finding)
    return found


def judge_counts(lineage: Lineage, balance: RowBalance, files: FileFindings) -> GradeReport:
    """Judge the second grade of one flow: batch by batch, and the files of its batches."""
    found = Judgement()
    for batch in lineage.batches:
        for equation in batch.counts.broken:
            found.find("COUNTS_UNBALANCED", f"{batch.name}: {equation}", **batch.place)
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
    log: TableLog,
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
    for version in log.strays:
        text = f"version {version} has a commit file, but the log lacks versions between it and "
        text += f"{log.first_version}: the commit is not part of the table"
        found.find("COMMIT_STRAY", text, version=version)
    _judge_baseline(balance, baseline, lineages, found)
    # What other writers removed before the baseline may have been rows of ours.
    for other in balance.earlier:
        if not other.erasure and other.removed != 0:
            found.reasons.append(f"{other.text}: it is not known whether it removed rows of this pipeline")
    _judge_rewrites(balance, found)
    _judge_foreign(balance, found)
    sums = _sum_deltas(balance)
    _judge_sum(balance, sums, found)
    made = "by refreshes" if metadata.refreshes else "accepted"
    text = _equation(balance, sums, baseline.why, made)
    figures = {"accepted": sums["ours"], "foreign": sums["foreign"], "removed": sums["removed"]}
    return found.report("counts", text, {"rows": balance.rows, **figures})


_ADDERS = {"batch": "ours", "opening": "ours", "view": "ours", "replay": "replayed", "rewrite": "moved"}


def _sum_deltas(balance: RowBalance) -> Counter[str]:
    """The rows that commits added since the baseline, by who did; ``removed`` is what others removed."""
    sums: Counter[str] = Counter()
    for delta in balance.deltas.values():
        who = _ADDERS.get(delta.role, "foreign")
        if who == "foreign" and delta.net < 0:
            sums["removed"] -= delta.net
        else:
            sums[who] += delta.net
    return sums


def _equation(balance: RowBalance, sums: Counter[str], why: str, made: str) -> str:
    """``60 rows in 3 files = 40 accepted + 25 by other writers - 5 removed``."""
    words = {"ours": made, "replayed": "replayed", "foreign": "by other writers", "moved": "by rewrites"}
    parts = [(balance.opened_with, why), *((sums[name], text) for name, text in words.items())]
    shown = [f"{number:,} {words}" for number, words in parts if number or words == made]
    removed = f" - {sums['removed']:,} removed" if sums["removed"] else ""
    rows = f"{counted(balance.rows, 'row')} in {counted(len(balance.files), 'file')}"
    return f"{rows} = {' + '.join(shown)}{removed}"


def _judge_sum(balance: RowBalance, sums: Counter[str], found: Judgement) -> None:
    """The rows of the table are those that its commits added and did not remove."""
    unknown = sorted({path for delta in balance.deltas.values() for path in delta.unknown})
    expected = balance.opened_with + sums.total() - 2 * sums["removed"]
    if unknown:
        found.reasons.append(
            f"{counted(len(unknown), 'file')} without statistics cannot be counted: no longer on disk "
            f"({unknown[0]}{', ..' if len(unknown) > 1 else ''})"
        )
    elif balance.rows != expected:
        text = f"the table has {balance.rows:,} rows, but its commits add up to {expected:,}"
        found.find("ROWS_DIFFER", text)


def _judge_rewrites(balance: RowBalance, found: Judgement) -> None:
    """A commit with dataChange=false must not change the number of rows."""
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
        if not delta.is_foreign or delta.is_erasure:
            continue
        knows = delta.commit.restores is not None
        if delta.undone and (knows or delta.added >= delta.removed):
            first, last = delta.undone[0], delta.undone[-1]
            several = f"{len(delta.undone)} commits, versions {first} to {last},"
            what = f"version {first}" if first == last else several
            text = f"{delta.text}: it has undone {what} of this pipeline"
            found.find("ROWS_REWRITTEN", text, version=version, undone=list(delta.undone))
            continue
        if knows or not delta.removed_ours:
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


def _judge_delta(batch: Batches, delta: RowDelta, found: Judgement) -> None:
    """A batch added the rows that its commit states; only a merge removes rows."""
    if delta.unknown:
        missing = f"{delta.unknown[0]} has no statistics and is gone"
        found.reasons.append(f"{batch.name} cannot be counted: {missing}")
    elif not delta.agrees(batch.counts):
        found.find("COUNTS_DIFFER", delta.differs(batch.name, batch.counts), **batch.place)
    if delta.removed and delta.role == "batch" and not batch.counts.by_key:
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


FindInput = Callable[[str], tuple[str, int] | None]
"""Gives the id and the version of a table, as it is now; ``None`` where the storage does not have it."""


def judge_view(
    metadata: CommitClaims, balance: RowBalance, find_input: FindInput, found: Judgement
) -> ViewProof | None:
    """Whether a view has the rows of its last refresh, and whether its inputs have newer versions."""
    if not metadata.refreshes:
        return None
    last = metadata.refreshes[-1]
    delta = balance.deltas.get(last.version)
    increments = judge_increments(metadata, balance, found)
    if last.increment is None and delta is not None and last.rows is not None and delta.added != last.rows:
        text = (
            f"the refresh of version {last.version} states that it wrote {counted(last.rows, 'row')}, "
            f"and its files hold {delta.added:,}"
        )
        found.find("COUNTS_DIFFER", text, version=last.version)
    for version, later in sorted(balance.deltas.items()):
        if version > last.version and later.is_foreign:
            text = f"{later.text}; since then its rows differ from those of its query"
            found.find("VIEW_CHANGED", text, version=version)
    late = _moved_on(last, find_input)
    read = ", ".join(f"{name} v{version}" for name, (_, version) in sorted(last.inputs.items()))
    text = f"{'recomputed from' if increments is None else 'follows'} {read or 'no table'}"
    text += f"; since then {', '.join(late)}" if late else ", the latest" if read else ""
    text += "" if increments is None else f"; {increments.text}"
    rows = balance.rows if delta is None or last.increment is not None else delta.added
    return ViewProof(
        version=last.version,
        rows=rows,
        fresh=not late,
        text=text,
        inputs={name: version for name, (_, version) in last.inputs.items()},
        definition=last.definition,
    )


def _moved_on(last: Refresh, find_input: FindInput) -> list[str]:
    late = []
    for name, (table_id, version) in sorted(last.inputs.items()):
        now = find_input(name)
        if now is None:
            late.append(f"{name} is not in the storage any more")
        elif now[0] != table_id:
            late.append(f"{name} was created again")
        elif now[1] > version:
            late.append(f"{name} has v{now[1]}")
    return late
