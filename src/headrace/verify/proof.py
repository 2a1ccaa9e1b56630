"""`verify` as a whole, without Spark, and without the code that wrote what is judged here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial, reduce
from typing import Any

from headrace.errors import HeadraceError, NothingToVerifyError, TableUnknownError, did_you_mean
from headrace.model.declarations import Sink
from headrace.model.names import TableName
from headrace.model.project import ProjectSettings
from headrace.model.texts import counted
from headrace.verify.checkpoints import CheckpointLog, Lineage
from headrace.verify.commits import Batches, CommitClaims, Fold, Ledger
from headrace.verify.counts import (
    FileFindings,
    describe_others,
    judge_counts,
    judge_files,
    judge_table,
    judge_view,
)
from headrace.verify.delta_log import DECODED_BYTES, LogDamagedError, TableLog, has_log, load_table_log
from headrace.verify.equations import RowCounts
from headrace.verify.evidence import Evidence, in_reading_order, list_tables, load_evidence
from headrace.verify.expected import (
    find_replacement,
    is_of_pipeline,
    load_expected,
    prove_missing,
    prove_unread,
)
from headrace.verify.increments import judge_groups
from headrace.verify.keys import judge_keys, keys_of
from headrace.verify.quarantine import (
    describe_pending,
    judge_missing_replays,
    judge_quarantine,
    judge_refresh,
    judge_replays,
)
from headrace.verify.ranges import judge_ranges
from headrace.verify.reader import Context, SinkUnreadError
from headrace.verify.records import RecordsJudge
from headrace.verify.registry import SINK_LOGS, SINK_ROWS, Readers, known_kinds
from headrace.verify.report import (
    DatasetProof,
    Finding,
    FlowProof,
    Grade,
    GradeReport,
    Judgement,
    Proof,
    unjudged_records,
)
from headrace.verify.sampled_keys import judge_sample
from headrace.verify.sampled_sinks import SampledSink
from headrace.verify.source_range import Kinds
from headrace.verify.stored import LOCAL, Storage, StoredPath, Systems

DeclaredSinks = Callable[[], Mapping[TableName, Sink]]
"""Gives the sinks that the files of the pipeline declare."""


def verify_pipeline(
    settings: ProjectSettings,
    *,
    datasets: Sequence[TableName] = (),
    since: datetime | int | None = None,
    require: Grade | None = None,
    sample: int | None = None,
    access: Mapping[str, Any] | None = None,  # how to reach the systems of each kind of source
    systems: Systems = LOCAL,  # the kinds of storage
    sinks: DeclaredSinks = dict,
) -> Proof:
    """Check that every record was processed exactly once, from tables, ledger, checkpoints and sources."""
    storage = Storage(StoredPath.at(settings.storage.root.path, systems))
    kinds = known_kinds()
    load_sink = partial(_load_sink_log, sinks=sinks, access=access or {})
    tables = _load_tables(storage, settings, datasets, since, kinds, load_sink)
    if not tables.evidence and not any(one.findings or one.kind == "sink" for one in tables.unread):
        raise NothingToVerifyError(
            f"the storage {settings.storage.root} holds no dataset of the pipeline {settings.name}",
            location=settings.places.get("storage"),
            remedies=("write its tables first:   headrace run", "or correct `storage`, if it is another one"),
            params={"storage": str(settings.storage.root), "pipeline": settings.name},
        )
    context = Context(storage=storage, kinds=kinds, tables=dict(tables.evidence), access=access or {})
    readers = Readers(context)
    records = RecordsJudge(context, readers)
    judge = _DatasetJudge(storage, settings.database, readers)
    proofs = []
    for name in in_reading_order(tables.evidence):
        evidence = tables.evidence[name]
        proof = judge.judge(evidence, records.judge(evidence))
        replayed = None
        is_sink = name in tables.sinks or any(one.counts.kind == "send" for one in evidence.batches)
        if sample is not None and is_sink:
            replayed = _sample_sink(storage, evidence, tables.sinks.get(name), sinks, sample)
        elif sample is not None:
            paths = storage.table(name), storage.side_table("tombstones", name)
            replayed = judge_sample(evidence, *paths, readers, sample)
        table = proof.table.with_findings(tables.replaced.get(name, []))
        unsampled = sample is None and bool(keys_of(evidence.log))
        proofs.append(replace(proof, table=table, sample=replayed, unsampled=unsampled))
    return Proof(pipeline=settings.name, datasets=(*proofs, *tables.unread), require=require)


@dataclass
class _Tables:
    evidence: dict[TableName, Evidence] = field(default_factory=dict)
    unread: list[DatasetProof] = field(default_factory=list)  # missing, unreadable or not the pipeline's
    replaced: dict[TableName, list[Finding]] = field(default_factory=dict)  # judged, but replaced by another
    sinks: dict[TableName, Callable[[], Evidence]] = field(default_factory=dict)  # read again what a sink has


def _load_tables(
    storage: Storage,
    settings: ProjectSettings,
    datasets: Sequence[TableName],
    since: datetime | int | None,
    kinds: Kinds,
    load_sink: Callable[[TableName, str, StoredPath], TableLog],
) -> _Tables:
    """Read the tables that are named, or all that the storage holds or should hold."""
    # Before the tables: what a run makes meanwhile must not look like a table that is missing.
    expected = load_expected(storage, settings.name)
    tables = _Tables()
    for name in _chosen(storage, datasets, expected):
        table = expected.get(name)
        load_log: Callable[[StoredPath], TableLog] | None = None
        if table is not None and table.sink in SINK_LOGS:
            load_log = partial(load_sink, name, table.sink)
        elif not has_log(storage.table(name)):
            missing = prove_missing(storage, table) if table is not None and table.was_made else None
            tables.unread.append(missing or prove_unread(name, "not created yet", applies=False))
            continue
        load = partial(load_evidence, storage, name, kinds, since, load_log=load_log)
        try:
            evidence = load()
        except SinkUnreadError as error:
            assert table is not None, "only a sink is read otherwise"
            tables.unread.append(prove_missing(storage, table, str(error)))
            continue
        except LogDamagedError as error:
            finding = Finding(code="LOG_DAMAGED", text=str(error), place={"dataset": str(name)})
            tables.unread.append(prove_unread(name, "the log cannot be read", finding))
            continue
        replacement = find_replacement(evidence, table, settings.name)
        if load_log is not None:
            tables.sinks[name] = load
        if is_of_pipeline(evidence) and (datasets or evidence.pipeline in (None, settings.name)):
            tables.evidence[name] = evidence
            tables.replaced[name] = [] if replacement is None else [replacement]
        elif replacement is not None:
            tables.unread.append(prove_unread(name, "replaced", replacement))
    return tables


def _load_sink_log(
    name: TableName, format: str, path: StoredPath, *, sinks: DeclaredSinks, access: Mapping[str, Any]
) -> TableLog:
    try:
        sink = sinks().get(name)
    except HeadraceError as error:
        raise SinkUnreadError(f"the files of the pipeline cannot be loaded: {error.headline}") from error
    if sink is None or sink.format != format:
        raise SinkUnreadError(f"the files of the pipeline declare no {format} sink of this name")
    return SINK_LOGS[format](name, sink.options, path, access)


def _sample_sink(
    storage: Storage,
    evidence: Evidence,
    reload: Callable[[], Evidence] | None,
    sinks: DeclaredSinks,
    size: int,
) -> GradeReport:
    sink = sinks()[evidence.dataset] if reload is not None else None
    if reload is None or sink is None or sink.format not in SINK_ROWS:
        return unjudged_records("the rows of sinks of this format cannot be compared", applies=False)
    return SampledSink(options=sink.options, read=SINK_ROWS[sink.format], reload=reload).judge(
        storage, evidence, size
    )


def _chosen(
    storage: Storage, datasets: Sequence[TableName], expected: Iterable[TableName]
) -> list[TableName]:
    known = sorted({*list_tables(storage), *expected})
    for name in datasets:
        if name not in known:
            raise TableUnknownError(
                f"there is no table `{name.short}` in {storage.root}",
                facts=[f"its tables: {', '.join(one.short for one in known) or 'none'}"],
                remedies=did_you_mean(
                    name.short,
                    [one.short for one in known],
                    f"name one of them, or the pipeline that has `{name.short}`:   --project PATH",
                ),
                params={"dataset": str(name), "known": [str(one) for one in known]},
            )
    return sorted(set(datasets)) or known


class _DatasetJudge:
    """Judges datasets; what they have read of other tables is looked up in the storage."""

    def __init__(self, storage: Storage, database: str, readers: Readers) -> None:
        self._storage = storage
        self._database = database
        self._readers = readers

    def judge(self, evidence: Evidence, records: Mapping[str, GradeReport]) -> DatasetProof:
        files = judge_files(evidence.balance, evidence.facts)
        found = Judgement()
        view = judge_view(evidence.metadata, evidence.balance, self._find_input, found)
        for refresh in evidence.metadata.refreshes[-1:]:
            judge_refresh(refresh, evidence.quarantine, found)
        judge_missing_replays(evidence.quarantine, found)
        path = self._storage.table(evidence.dataset)
        unread = [
            judge_keys(path, evidence.log, found),
            judge_groups(path, evidence.log, evidence.metadata, found),
        ]
        for file, reason in evidence.ledger.damaged.items():
            found.find("LEDGER_UNREADABLE", f"the ledger file {file} cannot be read: {reason}", path=file)
        table = judge_table(
            evidence.log, evidence.balance, evidence.baseline, evidence.metadata, evidence.judged, files
        )
        facts = [evidence.facts.get(path) for path, _ in evidence.balance.files]
        undecoded = sum(one is not None and one.rows is not None and not one.decoded for one in facts)
        return DatasetProof(
            dataset=evidence.dataset,
            kind=evidence.kind,
            version=evidence.log.version,
            table=table.with_findings(found.findings),
            flows=tuple(self._judge_flow(evidence, one, files, records[one.flow]) for one in evidence.judged),
            view=view,
            notes=(*_notes(evidence, undecoded), *filter(None, unread)),
            undecoded=undecoded,
        )

    def _judge_flow(
        self, evidence: Evidence, lineage: Lineage, files: FileFindings, records: GradeReport
    ) -> FlowProof:
        logs = [log for name in sorted(lineage.names) for log in evidence.checkpoints.get(name, ())]
        ranges = judge_ranges(lineage, evidence.ledger, evidence.log.first_version)
        for reader in self._readers.of(lineage.source_kinds):
            ranges = reader.judge_ranges(evidence, lineage, logs, ranges)
        found = Judgement()
        compare_ledger(lineage, evidence.ledger, evidence.metadata, evidence.log.first_version, found)
        compare_checkpoints(lineage, logs, evidence.log.transactions, found)
        rejected = Judgement()
        for batch in lineage.batches:
            judge_quarantine(batch, evidence.quarantine, rejected)
        replays = [one for one in evidence.replays if one.flow in lineage.names]
        counts = judge_counts(lineage, evidence.balance, files)
        replayed = judge_replays(replays, evidence.balance, evidence.quarantine, rejected)
        counts = replace(counts, text=counts.text + replayed)
        last = lineage.last
        return FlowProof(
            flow=lineage.flow,
            checkpoint=lineage.checkpoint,
            generation=lineage.number,
            batch=None if last is None else last.last,
            version=None if last is None else last.last_version,
            grades=(ranges.with_findings(found.findings), counts.with_findings(rejected.findings), records),
            pending=pending_batch(lineage, logs),
            notes=(*describe_checkpoint(lineage, logs), *describe_pending(lineage, evidence.quarantine)),
        )

    def _find_input(self, text: str) -> tuple[str, int] | None:
        try:
            log = load_table_log(self._storage.table(TableName.parse(text, self._database)))
        except LogDamagedError:
            return None
        changes = [commit.version for commit in log.commits if commit.changes_data]
        return log.metadata.id, max(changes, default=log.base_version)


def _notes(evidence: Evidence, undecoded: int) -> list[str]:
    notes = describe_others(evidence.balance)
    if evidence.since is not None:
        notes.append(f"judged from version {evidence.since} on")
    refresh = evidence.metadata.refreshes[-1].update if evidence.metadata.refreshes else None
    unclaimed = evidence.quarantine.unclaimed(evidence.lineages, refresh)
    if unclaimed:
        notes.append(f"{counted(unclaimed, 'row')} in quarantine of batches that the table never held")
    if undecoded:
        notes.append(
            f"strings were decoded in the newest {DECODED_BYTES >> 20} MiB of files, "
            f"and not in {counted(undecoded, 'older file')}"
        )
    return notes


def compare_ledger(
    lineage: Lineage, ledger: Ledger, metadata: CommitClaims, first_version: int, found: Judgement
) -> None:
    """Compare the ledger with the table's log, for the versions that both hold."""
    checkpoints = {generation.checkpoint for generation in lineage.generations}
    for fold in ledger.folds:
        if fold.flow not in lineage.names or fold.last_version < first_version:
            continue
        logged = [
            batch
            for batch in metadata.batches
            if batch.checkpoint in checkpoints
            and batch.flow == fold.flow
            and fold.first_version <= batch.first_version <= fold.last_version
        ]
        for entry in fold.batches:
            if entry.checkpoint in checkpoints and entry.last_version >= first_version:
                inside = {batch.last: batch for batch in logged if _covers(entry, batch)}
                for text in _differences(entry, inside, first_version):
                    _find_difference(text, entry, fold, found)
        for batch in logged:
            if not any(_covers(entry, batch) for entry in fold.batches):
                text = f"the ledger does not hold {batch.name} of version {batch.first_version}"
                _find_difference(text, batch, fold, found)


def compare_checkpoints(
    lineage: Lineage, logs: Iterable[CheckpointLog], transactions: Mapping[str, int], found: Judgement
) -> None:
    """Compare what Spark's checkpoints have finished with the table, whose state also knows of commits that
    are gone."""
    by_checkpoint = {log.checkpoint: log for log in logs}
    for generation in lineage.generations:
        log, held = by_checkpoint.get(generation.checkpoint), transactions.get(generation.checkpoint)
        named = [one for one in generation.batches if one.last > (-1 if held is None else held)]
        if named:
            text = f"{named[0].name} of checkpoint {generation.checkpoint} has a commit, "
            text += f"but the table's state ends with batch {held}"
            found.find("BATCH_NOT_HELD", text, **named[0].place)
        if log is None or generation.checkpoint in lineage.fenced:
            # What was fenced is read no more: it may have been given up because it is damaged.
            continue
        last = max((batch.last for batch in generation.batches), default=-1)
        last = max(last, transactions.get(generation.checkpoint, -1))
        if log.finished > last:
            name = f"batch {last + 1}" + (f" to {log.finished}" if log.finished > last + 1 else "")
            text = f"{name}: finished by checkpoint {log.checkpoint}, but not in the table"
            found.find("TABLE_BEHIND_CHECKPOINT", text, batches=[last + 1, log.finished])
        for batch in generation.batches:
            positions = log.positions.get(batch.last)
            if positions is not None and batch.last <= log.finished:
                _compare_positions(batch, positions, found)


def pending_batch(lineage: Lineage, logs: Sequence[CheckpointLog]) -> int | None:
    """A batch that Spark has planned and that is not in the table yet."""
    log = next((log for log in logs if log.checkpoint == lineage.checkpoint), None)
    last = max((batch.last for batch in lineage.generations[-1].batches), default=-1)
    return log.planned if log is not None and log.planned > max(last, log.finished) else None


def describe_checkpoint(lineage: Lineage, logs: Sequence[CheckpointLog]) -> list[str]:
    """Notes on the checkpoint; none of them is a finding."""
    if not lineage.in_force:
        return ["the flow no longer writes the table"]
    if not logs:
        return ["its checkpoint is missing: the next run is refused"]
    newest = logs[-1].checkpoint
    if newest != lineage.checkpoint:
        return [f"the table was written with {lineage.checkpoint}, but the newest checkpoint is {newest}"]
    return []


def _covers(entry: Batches, batch: Batches) -> bool:
    return entry.checkpoint == batch.checkpoint and entry.first <= batch.first <= entry.last


def _differences(entry: Batches, held: Mapping[int, Batches], first_version: int) -> Iterable[str]:
    is_whole = entry.first_version >= first_version
    if entry.last not in held or (is_whole and len(held) < entry.last - entry.first + 1):
        yield f"the ledger holds {entry.name}, and the table's log does not"
        return
    ends = {source.index: source for source in held[entry.last].sources}
    for source in entry.sources:
        if source.index in ends and not source.is_end(ends[source.index].until):
            until = ends[source.index].until
            yield f"{entry.name} ends at {source.until} in the ledger and at {until} in the table's log"
    if is_whole:
        sums = reduce(RowCounts.plus, (batch.counts for batch in held.values())).by_name
        for name, number in entry.counts.by_name.items():
            if number != sums[name]:
                yield f"{entry.name}: {number:,} rows {name} in the ledger, {sums[name]:,} in the table's log"


def _find_difference(text: str, batch: Batches, fold: Fold, found: Judgement) -> None:
    found.find("LEDGER_DIFFERS", text, batch=batch.first, version=batch.last_version, path=fold.path.name)


def _compare_positions(batch: Batches, positions: Sequence[object], found: Judgement) -> None:
    for source in batch.sources:
        position = positions[source.index] if source.index < len(positions) else None
        # `is_end` cannot read a position of another JSON type.
        if position is not None and (type(position) is not type(source.until) or not source.is_end(position)):
            text = (
                f"{batch.name} ends at {source.until} in the table, "
                f"and at {position} in the offset log of its checkpoint"
            )
            where = {"batch": batch.last, "version": batch.last_version, "source": source.index}
            found.find("OFFSETS_DIFFER", text, **where)
