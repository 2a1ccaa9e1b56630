"""What is known of a flow before it starts: declared, on disk, in its table, and on the broker."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import (
    CheckpointCorruptError,
    CheckpointForeignError,
    HeadraceError,
    RefreshUnfinishedError,
    UpstreamMissingError,
)
from headrace.model.folders import FileFolder, local_path
from headrace.model.project import ProjectSettings
from headrace.model.ranges import Position
from headrace.model.remedies import Remedies
from headrace.plan.sources import refuse_read_twice
from headrace.plan.stages import PlannedFlow, PlannedSource
from headrace.sinks.delta.table import REFRESHING_PROPERTY, TableState, is_table
from headrace.sources.identity import files_identity, identify, kafka_facts
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.state.facts import CheckpointFacts, FlowFacts, KafkaFacts, ListOrigin, TableFacts
from headrace.state.file_lists import FileLists, ReadFile, are_whole
from headrace.state.file_log import last_entry, load_seen
from headrace.state.history import History, PastRead, load_history
from headrace.state.identity import SourceIdentity, generations, load_identity
from headrace.state.ledger import Ledger
from headrace.state.offset_log import check_readable, is_seeded, load_next_positions, load_state
from headrace.state.opening import resume_remedy
from headrace.state.table_log import describe_rollback, follow_commits, versions
from headrace.storage.layout import Storage

ReadTable = Callable[[Path], TableState]
"""Reads a table's newest snapshot: through Spark, or without a JVM."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Everything that `state.opening.decide` asks of a flow."""

    flow: FlowFacts
    table: TableState
    facts: TableFacts
    checkpoint: CheckpointFacts | None


def survey_flow(
    planned: PlannedFlow,
    settings: ProjectSettings,
    cluster: KafkaCluster,
    read_table: ReadTable,
    *,
    declared_flows: frozenset[str],
    remedies: Remedies,
) -> Survey:
    """Gather what is known of a flow; changes nothing.

    Args:
        planned: The flow.
        settings: The pipeline's settings.
        cluster: The Kafka cluster of its kafka sources.
        read_table: Reads a table's newest snapshot.
        declared_flows: All flows that are declared for the same table.
        remedies: What the user asks for.

    Raises:
        RefusedError: What is on disk cannot be read, or belongs to somebody else.
        TransientError: The broker does not answer.
    """
    flow, storage = planned.flow, settings.storage
    table = read_table(storage.table(flow.target))
    _refuse_unfinished_refresh(planned, table)
    sources, kafka = survey_sources(planned, storage, cluster, read_table)
    asked = FlowFacts(
        flow=flow.name,
        dataset=str(flow.target),
        location=flow.location,
        declared_flows=declared_flows,
        sources=sources,
        stateful=planned.stateful,
        kafka=kafka,
        on_data_loss=settings.on_data_loss,
        resume=flow.name in remedies.resume_from_table,
        new_checkpoint=flow.name in remedies.new_checkpoint,
        rename_from=remedies.rename_flow.get(flow.name),
    )
    is_new = asked.resume or asked.new_checkpoint
    folder = storage.flow_checkpoints(flow.target, flow.name)
    ledger = Ledger(storage.ledger(flow.target, flow.name), flow.target, flow.name)
    return Survey(
        flow=asked,
        table=table,
        facts=_table_facts(table, asked, ledger, storage.table(flow.target)),
        # What is wrong with a checkpoint does not matter where a new one is asked for.
        checkpoint=None if is_new and asked.rename_from is None else _checkpoint(folder, asked, table),
    )


def survey_sources(
    planned: PlannedFlow, storage: Storage, cluster: KafkaCluster, read_table: ReadTable
) -> tuple[tuple[SourceIdentity, ...], dict[int, KafkaFacts]]:
    """Who the flow's sources are now, and what the broker holds of its topics.

    Raises:
        SourceReadTwiceError: Two patterns of its query match the same topic now.
    """
    found: list[SourceIdentity] = []
    kafka: dict[int, KafkaFacts] = {}
    for source in planned.sources:
        table_id = None
        if source.kind == "delta":
            path = storage.table(source.table) if source.table else Path(source.path or "")
            if not is_table(path):
                raise _upstream_missing(planned, source, path)
            table_id = read_table(path).table_id
        identity = identify(source, cluster, storage, table_id)
        found.append(identity)
        if source.kind == "kafka":
            ids = identity.identity["topics"]
            kafka[source.index] = kafka_facts(source, ids, cluster)
    refuse_read_twice(planned.sources, {index: facts.ids for index, facts in kafka.items()})
    return tuple(found), kafka


def _upstream_missing(planned: PlannedFlow, source: PlannedSource, path: Path) -> UpstreamMissingError:
    flow = planned.flow
    name = str(source.table or path)
    return UpstreamMissingError(
        f"flow {flow.name} reads {name}, which has not been made yet",
        location=flow.location,
        facts=("nothing was read or written",),
        remedies=(f"headrace run {name} {flow.target}",)
        if source.table
        else ("run the pipeline that makes it, or correct the path",),
        params={"flow": flow.name, "table": name},
    )


def find_unfinished(folder: Path, table: TableState) -> Path | None:
    """A checkpoint that was made, and that the table never came to know: a crash in between.

    It has planned nothing of its own, so nothing is lost with it.
    """
    known = generations(folder)
    if not known:
        return None
    try:
        identity = load_identity(known[-1])
    except HeadraceError:
        # Not one that was just made; whoever is to go on with it will say what is wrong with it.
        return None
    if identity.checkpoint in table.checkpoints.values() or identity.checkpoint in table.transactions:
        return None
    planned = load_state(known[-1]).last_planned
    return known[-1] if planned < 0 or (planned == 0 and is_seeded(known[-1])) else None


def _checkpoint(folder: Path, facts: FlowFacts, table: TableState) -> CheckpointFacts | None:
    known = generations(folder)
    try:
        if known and known[-1] == find_unfinished(folder, table):
            known = known[:-1]
        return _load_checkpoint(known[-1], facts, table) if known else None
    except CheckpointCorruptError as error:
        raise _with_remedy(error, facts) from error


def _load_checkpoint(path: Path, facts: FlowFacts, table: TableState) -> CheckpointFacts:
    identity = load_identity(path)
    if identity.flow != facts.flow or identity.dataset != facts.dataset:
        raise CheckpointForeignError(
            f"flow {facts.flow}: the checkpoint {path} belongs to flow {identity.flow}",
            location=facts.location,
            facts=(f"it feeds {identity.dataset}; nothing was read or written",),
            remedies=("move the folder away",),
            params={"flow": facts.flow, "owner": identity.flow, "checkpoint": str(path)},
        )
    state = load_state(path)
    check_readable(path)
    positions: dict[int, Position] = {}
    if state.last_planned >= 0:
        held = table.transactions.get(identity.checkpoint, -1) >= state.last_planned
        next_batch = state.last_planned + 1 if held else state.last_planned
        positions = load_next_positions(path, next_batch, identity.sources)
    return CheckpointFacts(
        identity=identity,
        last_planned=state.last_planned,
        last_finished=state.last_finished,
        positions=positions,
    )


def _with_remedy(error: CheckpointCorruptError, facts: FlowFacts) -> HeadraceError:
    return CheckpointCorruptError(
        f"flow {facts.flow}: {error.summary}",
        location=facts.location,
        facts=(*error.facts, "nothing was read or written"),
        remedies=resume_remedy(facts),
        params={**error.params, "flow": facts.flow},
    )


def _refuse_unfinished_refresh(planned: PlannedFlow, table: TableState) -> None:
    flow = planned.flow
    if REFRESHING_PROPERTY in table.properties:
        raise RefreshUnfinishedError(
            f"a full refresh of {flow.target} was begun and did not end",
            location=flow.location,
            facts=("its rows are gone, and not all of its flows start anew",),
            remedies=(f"end it:   headrace full-refresh {flow.target}",),
            params={"flow": flow.name, "dataset": str(flow.target)},
        )


def _table_facts(table: TableState, flow: FlowFacts, ledger: Ledger, path: Path) -> TableFacts:
    positions = None
    read: tuple[SourceIdentity, ...] = ()
    current = table.checkpoints.get(flow.flow)
    if current is not None and current in table.transactions:
        said = ledger.last_batch(path, current, table.transactions[current])
        if said is not None:
            positions = {source["index"]: source["until"] for source in said["sources"]}
            read = tuple(
                SourceIdentity(index=s["index"], kind=s["kind"], identity=s["identity"])
                for s in said["sources"]
            )
    history = load_history(ledger, path, table.table_id, table.version, current)
    lists = FileLists.of_ledger(ledger.folder)
    # A list can be long, and only a new checkpoint needs to know all that was read.
    asked = flow.resume or flow.new_checkpoint
    policies = {flow.on_data_loss, *(kafka.on_data_loss for kafka in flow.kafka.values())}
    return TableFacts(
        table_id=table.table_id,
        fresh=table.version == 0,
        checkpoints=table.checkpoints,
        transactions=table.transactions,
        positions=positions,
        sources=read,
        version=table.version,
        folded=ledger.next_version(table.table_id) - 1,
        ledger_stale=bool(ledger.stale_folds(path, table.table_id, table.version)),
        history=history,
        rolled_back=_rolled_back(flow.sources, history),
        unlisted=_unlisted(flow.sources, lists, history) if asked or "record" in policies else frozenset(),
        read_elsewhere=_read_elsewhere(flow.sources, lists, history) if asked else {},
    )


def _unlisted(now: Sequence[SourceIdentity], lists: FileLists, history: History) -> frozenset[ListOrigin]:
    """The reads of folders whose lists in the ledger do not hold all that was read."""
    keys = {source.key for source in now if source.kind == "files"}
    return frozenset(
        (read.checkpoint, read.source.index)
        for key in keys
        for read in history.reads.get(key, ())
        if not are_whole(_listed(read, lists), read.until, read.files)
    )


def _read_elsewhere(now: Sequence[SourceIdentity], lists: FileLists, history: History) -> dict[int, str]:
    """By source, a file that a folder which is new, or chooses other files now, shares with another one."""
    found: dict[int, str] = {}
    for source in now:
        before = history.reads.get(source.key, ())
        if source.kind != "files" or any(dict(one.source.identity) == source.identity for one in before):
            continue
        others = {
            local_path(file.path)
            for key, reads in history.reads.items()
            if key[0] == "files" and key != source.key
            for read in reads
            for file in _listed(read, lists)
        }
        # A folder that cannot be listed is the run's to complain about.
        with contextlib.suppress(OSError):
            files = (file.path for file in FileFolder.of_identity(source.identity).files())
            shared = min((path for path in files if path in others), default=None)
            if shared is not None:
                found[source.index] = shared
    return found


def _listed(read: PastRead, lists: FileLists) -> tuple[ReadFile, ...]:
    return lists.load_source(read.checkpoint, read.source.index, read.until)


def _rolled_back(now: Sequence[SourceIdentity], history: History) -> dict[str, str]:
    """The upstream tables that no longer have the versions which were read of them, and how it shows."""
    found = {}
    for source in now:
        for read in history.reads.get(source.key, ()):
            if read.seen is not None:
                how = describe_rollback(Path(source.identity["path"]), read.seen)
                if how is not None:
                    found[str(source.identity["path"])] = how
    return found


def is_drained(
    planned: PlannedFlow,
    checkpoint: CheckpointFacts | None,
    kafka: Mapping[int, KafkaFacts],
    storage: Storage,
) -> bool:
    """Whether the sources hold nothing that the checkpoint has not read: then no query is needed.

    Only where that can be told for sure; a stateful query may still have rows to emit.
    """
    if checkpoint is None or planned.stateful or checkpoint.last_planned < 0:
        return False
    if checkpoint.last_finished != checkpoint.last_planned:
        return False
    flow = planned.flow
    path = storage.checkpoint(flow.target, flow.name, checkpoint.identity.generation)
    return all(
        _is_at_end(source, checkpoint.positions.get(source.index), kafka, storage, path)
        for source in planned.sources
    )


def _is_at_end(
    source: PlannedSource,
    position: Position | None,
    kafka: Mapping[int, KafkaFacts],
    storage: Storage,
    checkpoint: Path,
) -> bool:
    if position is None:
        return False
    if source.kind == "kafka":
        read = {topic: {int(p): o for p, o in offsets.items()} for topic, offsets in position.items()}
        return bool(read == kafka[source.index].latest)
    if source.kind == "files":
        folder = source.index if source.folder is None else source.folder
        return last_entry(checkpoint, folder) == position["logOffset"] and not _has_new_files(
            FileFolder.of_identity(files_identity(source)), load_seen(checkpoint, folder)
        )
    if source.kind == "delta" and position.get("index") == -1:
        # A stream's position stays before commits that bring it nothing.
        path = storage.table(source.table) if source.table is not None else Path(source.path or "")
        first = int(position["reservoirVersion"])
        ahead = list(follow_commits(path, first))
        return versions(path)[-1:] == (first + len(ahead) - 1,) and all(
            not commit.changes_data or (source.erasures_only and commit.removes_data and commit.is_erasure)
            for commit in ahead
        )
    return False


def _has_new_files(folder: FileFolder, seen: Mapping[str, int]) -> bool:
    """Whether a folder holds files that Spark's log does not name; so, too, where that cannot be told."""
    read = set(map(local_path, seen))
    try:
        return folder.is_sinks or any(file.path not in read for file in folder.files())
    except OSError:
        # A folder that cannot be listed is the run's to complain about.
        return True
