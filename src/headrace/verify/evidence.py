"""Everything on disk about one dataset, read once: log, ledger, checkpoints, data files."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from headrace.model.names import TableName
from headrace.verify import commits
from headrace.verify.balance import Baseline, RowBalance, build_balance, files_to_inspect
from headrace.verify.checkpoints import CheckpointLog, Lineage, build_lineages, load_checkpoints
from headrace.verify.delta_log import (
    FileFacts,
    LogDamagedError,
    TableLog,
    list_versions,
    load_commit,
    load_facts,
    load_table_log,
)
from headrace.verify.quarantine import Quarantine, load_quarantine
from headrace.verify.source_range import Kinds
from headrace.verify.stored import Storage, StoredPath


@dataclass(frozen=True, kw_only=True)
class Evidence:
    dataset: TableName
    log: TableLog  # the table's log up to the judged version
    metadata: commits.CommitClaims
    ledger: commits.Ledger
    lineages: tuple[Lineage, ...]
    checkpoints: Mapping[str, tuple[CheckpointLog, ...]]  # spark's checkpoints by flow; read before the table
    since: int | None
    baseline: Baseline
    balance: RowBalance
    facts: Mapping[str, FileFacts]
    ledgers: StoredPath  # the folder with the ledger of each flow
    quarantine: Quarantine = field(default_factory=Quarantine)
    replays: tuple[commits.Replay, ...] = ()  # the replays since the quarantine was last emptied

    @property
    def kind(self) -> str:
        return self.log.metadata.properties.get(commits.PROPERTY_KIND, "materialized_view")

    @property
    def pipeline(self) -> str | None:
        return self.log.metadata.properties.get(commits.PROPERTY_PIPELINE)

    @property
    def batches(self) -> list[commits.Batches]:
        return [batch for lineage in self.lineages for batch in lineage.batches]

    @property
    def judged(self) -> tuple[Lineage, ...]:
        if self.since is None:
            return self.lineages
        return tuple(lineage.with_since(self.since) for lineage in self.lineages)


def list_tables(storage: Storage) -> list[TableName]:
    tables = (table for schema in storage.tables.list_folders() for table in schema.list_folders())
    return [
        TableName(table.parent.name, table.name)
        for table in tables
        if any(folder.name == "_delta_log" for folder in table.list_folders())
    ]


def load_evidence(
    storage: Storage,
    dataset: TableName,
    kinds: Kinds,
    since: datetime | int | None = None,
    *,
    inspect: bool = True,
    load_log: Callable[[StoredPath], TableLog] | None = None,
) -> Evidence:
    """Read everything about one dataset; its data files only with `inspect`. `load_log`: reads the log of the
    table, or what a sink has in its place."""
    path = storage.table(dataset)
    # Before the table: what a running flow commits meanwhile must not look like a lost batch.
    folder, ledgers = storage.flows("checkpoints", dataset), storage.flows("ledger", dataset)
    checkpoints = {flow.name: load_checkpoints(flow) for flow in folder.list_folders()}
    folds = commits.load_folds(ledgers, kinds)
    # A sink has no log to look up a time in: all that it has is judged.
    version = _version_of(path, since) if load_log is None or isinstance(since, int) else None
    log = load_table_log(path, since=version) if load_log is None else load_log(path)
    metadata = commits.build_claims(log, kinds)
    ledger = commits.load_losses(ledgers, folds, log.metadata.id, kinds)
    lineages = build_lineages(metadata, ledger, log.first_version, log.metadata.properties)
    replays = _replays(metadata, ledger, log.first_version)
    baseline = _find_baseline(log, metadata, ledger, lineages, replays, version)
    lineages = tuple(
        one
        for one in lineages
        if one.in_force or one.late or any(batch.last_version > baseline.version for batch in one.batches)
    )
    facts = load_facts(log, files_to_inspect(log, baseline)) if inspect else {}
    return Evidence(
        dataset=dataset,
        log=log,
        metadata=metadata,
        ledger=ledger,
        lineages=lineages,
        checkpoints=checkpoints,
        since=version,
        baseline=baseline,
        balance=build_balance(log, metadata, facts, baseline),
        facts=facts,
        ledgers=ledgers,
        quarantine=load_quarantine(
            storage.side_table("quarantine", dataset),
            path,
            log.transactions,
            kinds,
            reads_tables=any(source.table_id is not None for one in lineages for source in one.sources),
        ),
        replays=tuple(one for one in replays if version is None or one.version >= version),
    )


def in_reading_order(evidence: Mapping[TableName, Evidence]) -> list[TableName]:
    """The datasets, each after those that it reads."""
    by_id = {one.log.metadata.id: name for name, one in evidence.items()}
    reads = {
        name: {by_id[i] for i in _ids_read(one) if i in by_id} - {name} for name, one in evidence.items()
    }
    ordered: list[TableName] = []
    while len(ordered) < len(reads):
        left = [name for name in sorted(reads) if name not in ordered]
        ready = [name for name in left if reads[name] <= set(ordered)]
        # Tables that read each other have no order.
        ordered += ready or left
    return ordered


def _ids_read(evidence: Evidence) -> set[str]:
    """The ids of the tables that a dataset was last computed from."""
    found = {
        table_id for refresh in evidence.metadata.refreshes[-1:] for table_id, _ in refresh.inputs.values()
    }
    for lineage in evidence.lineages:
        found |= {source.table_id for source in lineage.last_sources if source.table_id is not None}
    return found


def _version_of(table: StoredPath, since: datetime | int | None) -> int | None:
    """The first version at a moment or later; one more than the last where there is none."""
    if since is None or isinstance(since, int):
        return since
    versions = list_versions(table)
    if not versions:
        raise LogDamagedError(f"{table} is not a Delta table: its log holds no commit")
    moment = since if since.tzinfo is not None else since.replace(tzinfo=UTC)
    limit_ms = moment.timestamp() * 1000
    index = bisect_left(versions, limit_ms, key=lambda version: load_commit(table, version).timestamp_ms)
    return versions[index] if index < len(versions) else versions[-1] + 1


def _replays(
    metadata: commits.CommitClaims, ledger: commits.Ledger, first_version: int
) -> tuple[commits.Replay, ...]:
    """The replays after the last full refresh, which empties the quarantine too."""
    folded = (one for fold in ledger.folds for one in fold.replays if one.version < first_version)
    known = {one.version: one for one in (*folded, *metadata.replays)}
    emptied = _emptied(metadata, ledger)
    return tuple(known[version] for version in sorted(known) if version > emptied)


def _emptied(metadata: commits.CommitClaims, ledger: commits.Ledger, until: int | None = None) -> int:
    """The version of the last full refresh, by log and ledger; -1 where there is none."""
    openings = [*metadata.openings, *(opening for fold in ledger.folds for opening in fold.openings)]
    versions = (one.version for one in openings if one.reason == "full-refresh")
    return max((version for version in versions if until is None or version <= until), default=-1)


def _find_baseline(
    log: TableLog,
    metadata: commits.CommitClaims,
    ledger: commits.Ledger,
    lineages: Sequence[Lineage],
    replays: Sequence[commits.Replay],
    since: int | None,
) -> Baseline:
    """The latest of: a full refresh, the version of `since`, the oldest state that is known."""
    refreshed = _last_refresh(log, metadata)
    asked = -1 if since is None else since - 1
    start = max(refreshed, asked, log.base_version)
    if start < 0:
        return Baseline()
    if start == refreshed:
        return Baseline(version=start, why="after the refresh")
    if since is not None or metadata.refreshes or not lineages:
        why = f"from before version {start + 1}"
        return Baseline(version=min(start, log.version), expected=None, why=why)
    early = [b.counts for one in lineages for b in one.batches if b.last_version <= log.base_version]
    early += [one.counts for one in replays if one.version <= log.base_version]
    accepted = sum(counts.added for counts in early)
    others = _others_before(log, metadata, ledger, start)
    moved = sum(other.net or 0 for other in others)
    why = f"accepted up to version {start} by the ledger"
    if others:
        sum_ = f"{moved:+,}" if all(other.net is not None for other in others) else "an unknown number"
        why = f"up to version {start} by the ledger ({accepted:,} accepted, {sum_} by other writers)"
    return Baseline(version=start, expected=accepted + moved, exact=False, why=why, others=others)


def _others_before(
    log: TableLog, metadata: commits.CommitClaims, ledger: commits.Ledger, last: int
) -> tuple[commits.Other, ...]:
    """What other writers did up to a version, since the table was last emptied."""
    first = _emptied(metadata, ledger, last) + 1
    known = {other.version: other for other in ledger.others(first, last)}
    # A commit that the ledger has not yet, and whose rows are counted from no state of the log's.
    for commit in log.commits:
        if first <= commit.version <= last and metadata.roles[commit.version] == "foreign":
            other = commits.Other(version=commit.version, operation=commit.operation, engine=commit.engine)
            known.setdefault(commit.version, other)
    return tuple(known[version] for version in sorted(known))


def _last_refresh(log: TableLog, metadata: commits.CommitClaims) -> int:
    """The last full refresh that left the table empty; -1 where there is none."""
    openings = {opening.version for opening in metadata.openings if opening.reason == "full-refresh"}
    found = previous = -1
    for commit, active in log.states():
        if previous in openings and not active:
            found = previous
        previous = commit.version
    return previous if previous in openings and not log.active() else found
