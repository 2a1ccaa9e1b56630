"""Opening a flow: the facts are gathered, `state.opening` decides, and what it says is done."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.errors import (
    HeadraceError,
    RenameImpossibleError,
    TableLostError,
)
from headrace.model.declarations import Flow
from headrace.model.events import ForeignCommitSeen
from headrace.model.names import TableName
from headrace.model.ranges import SourceRange
from headrace.model.remedies import Remedies
from headrace.plan.stages import PlannedFlow
from headrace.run.context import UpdateContext
from headrace.run.survey import ReadTable, find_unfinished, survey_flow, survey_sources
from headrace.sinks.delta.commit import OpenedGeneration, TableLayout, open_generation
from headrace.sinks.delta.table import TableState, is_table, read_state
from headrace.sources.delta.starting import check_table_start
from headrace.sources.identity import require_topics
from headrace.sources.kafka.cluster import KafkaCluster
from headrace.sources.kafka.starting import Start, check_start
from headrace.state.facts import CheckpointFacts, Continue, KafkaFacts, Open, RenameFlow
from headrace.state.file_lists import FileLists, ReadFile, describe_files
from headrace.state.file_log import COMPACT_INTERVAL, seed_log
from headrace.state.files import write_json
from headrace.state.identity import (
    FILE,
    QUERY,
    CheckpointIdentity,
    SourceIdentity,
    generations,
    load_identity,
    write_checkpoint,
)
from headrace.state.lease import Lease
from headrace.state.ledger import Ledger
from headrace.state.offset_log import load_state, seed_files
from headrace.state.opening import decide
from headrace.state.table_log import see_version
from headrace.storage.layout import Storage

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class OpenedFlow:
    """A flow that may start.

    Args:
        path: Its checkpoint.
        identity: The checkpoint's identity.
        sources: The sources as they are now, with the ids of all their topics.
        kafka: What the broker holds of each kafka source.
        checkpoint: The checkpoint's facts; ``None`` where it was opened just now.
    """

    path: Path
    identity: CheckpointIdentity
    sources: tuple[SourceIdentity, ...]
    kafka: Mapping[int, KafkaFacts]
    checkpoint: CheckpointFacts | None


def open_flow(planned: PlannedFlow, context: UpdateContext, remedies: Remedies) -> OpenedFlow:
    """Find or make the checkpoint that the flow may go on with.

    Args:
        planned: The flow.
        context: The update.
        remedies: What the user asks for, as far as it still has to be done.

    Raises:
        RefusedError: Going on could lose or double records.
        TransientError: The broker does not answer.
    """
    flow, storage = planned.flow, context.settings.storage
    table = read_state(context.spark, storage.table(flow.target))
    fold_ledger(flow.target, flow.name, table.table_id, context)
    _discard_unfinished(storage.flow_checkpoints(flow.target, flow.name), table)
    survey = survey_flow(
        planned,
        context.settings,
        context.cluster,
        lambda path: read_state(context.spark, path),
        declared_flows=context.declared_flows.get(flow.target, frozenset()),
        remedies=remedies,
    )
    opening = decide(survey.flow, survey.facts, survey.checkpoint)
    sources, kafka = survey.flow.sources, survey.flow.kafka
    match opening:
        case Continue(identity=identity):
            path = storage.checkpoint(flow.target, flow.name, identity.generation)
            write_json(path / QUERY, {"fingerprint": planned.fingerprint})
            return OpenedFlow(
                path=path, identity=identity, sources=sources, kafka=kafka, checkpoint=survey.checkpoint
            )
        case RenameFlow(old_flow=old):
            _rename_flow(planned, old, survey.table, context)
            return open_flow(planned, context, replace(remedies, rename_flow={}))
        case Open():
            return _open(planned, opening, survey.table, sources, kafka, context)


def start_over(
    planned: PlannedFlow, context: UpdateContext, *, layout: TableLayout, first: bool, last: bool
) -> None:
    """Open a new checkpoint at the sources' beginning, for a full refresh.

    Args:
        planned: The flow.
        context: The update.
        layout: What the empty table gets.
        first: Whether the table's rows are removed in the same commit; until the last flow has
            been opened, the table says that it is being refreshed.
        last: Whether this is the last flow of the table.
    """
    flow = planned.flow
    storage = context.settings.storage
    table = read_state(context.spark, storage.table(flow.target))
    fold_ledger(flow.target, flow.name, table.table_id, context)
    sources, kafka = survey_sources(
        planned, storage, context.cluster, lambda path: read_state(context.spark, path)
    )
    _discard_unfinished(storage.flow_checkpoints(flow.target, flow.name), table)
    opening = Open(reason="full-refresh", fences=table.checkpoints.get(flow.name))
    cleared = layout if first else None
    _open(planned, opening, table, sources, kafka, context, cleared=cleared, refreshing=not last)


def refuse_lost_table(planned: PlannedFlow, storage: Storage) -> None:
    """Before a missing table is created: a checkpoint that has fed one means that it was lost.

    Raises:
        TableLostError: It was.
    """
    flow = planned.flow
    if is_table(storage.table(flow.target)):
        return
    for path in generations(storage.flow_checkpoints(flow.target, flow.name)):
        planned_batches = load_state(path).last_planned + 1
        if planned_batches > 0:
            raise TableLostError(
                f"flow {flow.name}: the table {flow.target} is gone, and its checkpoint is there",
                location=flow.location,
                facts=(f"{path} has read {planned_batches} batches", "nothing was read or written"),
                remedies=(f"read everything again:   headrace full-refresh {flow.target}",),
                params={"flow": flow.name, "dataset": str(flow.target)},
            )


def has_fed_another(planned: PlannedFlow, table_id: str, storage: Storage) -> bool:
    """Whether the flow's checkpoint was made for another table than the one that is there now."""
    flow = planned.flow
    known = generations(storage.flow_checkpoints(flow.target, flow.name))
    try:
        return bool(known) and load_identity(known[-1]).table_id != table_id
    except HeadraceError:
        # What is wrong with the checkpoint is said when the flow is opened.
        return False


def _discard_unfinished(folder: Path, table: TableState) -> None:
    unfinished = find_unfinished(folder, table)
    if unfinished is not None:
        shutil.rmtree(unfinished)


def _open(
    planned: PlannedFlow,
    opening: Open,
    table: TableState,
    sources: tuple[SourceIdentity, ...],
    kafka: Mapping[int, KafkaFacts],
    context: UpdateContext,
    *,
    cleared: TableLayout | None = None,
    refreshing: bool = False,
) -> OpenedFlow:
    flow, storage = planned.flow, context.settings.storage
    require_readable(
        planned, opening, sources, kafka, context.cluster, lambda path: read_state(context.spark, path)
    )
    known = generations(storage.flow_checkpoints(flow.target, flow.name))
    generation = int(known[-1].name) + 1 if known else 1
    identity = CheckpointIdentity.create(
        pipeline=context.settings.name,
        flow=flow.name,
        dataset=str(flow.target),
        generation=generation,
        table_id=table.table_id,
        sources=sources,
    )
    if opening.losses:
        ledger = Ledger(storage.ledger(flow.target, flow.name), flow.target, flow.name)
        lost = {"checkpoint": identity.checkpoint, "generation": generation}
        ledger.record_losses({**lost, **loss} for loss in opening.losses)
    _rewind_ledger(flow.target, flow.name, table, context)
    path = storage.checkpoint(flow.target, flow.name, generation)
    seed = {} if opening.positions is None else seed_files(opening.positions, sources)
    carried = _carry_files(flow, opening, identity, context)
    chosen = {**context.settings.configuration, **flow.spark_conf}
    interval = int(chosen.get(COMPACT_INTERVAL) or context.spark.conf.get(COMPACT_INTERVAL, "10"))
    for source in sources:
        if source.index in carried and opening.positions is not None:
            position = opening.positions[source.index]
            seed |= seed_log(source, position, carried[source.index], interval)
    write_checkpoint(path, identity, seed)
    opened = OpenedGeneration(
        pipeline=context.settings.name,
        flow=flow.name,
        checkpoint=identity.checkpoint,
        generation=generation,
        opening=opening,
        ranges=_seeded_ranges(opening, sources, carried),
        clear=cleared is not None,
        layout=cleared,
        refreshing=refreshing,
        replaces=table.checkpoints.get(flow.name),
    )
    open_generation(context.spark, storage.table(flow.target), opened)
    write_json(path / QUERY, {"fingerprint": planned.fingerprint})
    return OpenedFlow(path=path, identity=identity, sources=sources, kafka=kafka, checkpoint=None)


def _seeded_ranges(
    opening: Open, sources: tuple[SourceIdentity, ...], carried: Mapping[int, tuple[ReadFile, ...]]
) -> tuple[SourceRange, ...]:
    """What the opening commit says of where a seeded checkpoint starts: empty ranges at its positions."""
    positions = opening.positions or {}
    return tuple(
        SourceRange(
            index=source.index,
            kind=source.kind,  # type: ignore[arg-type]
            identity=source.identity,
            start=positions[source.index],
            until=positions[source.index],
            seen=see_version(Path(source.identity["path"]), positions[source.index])
            if source.kind == "delta"
            else None,
            files=describe_files(carried[source.index], len(carried[source.index]))
            if source.index in carried
            else None,
        )
        for source in sources
        if source.index in positions
    )


def require_readable(
    planned: PlannedFlow,
    opening: Open,
    sources: tuple[SourceIdentity, ...],
    kafka: Mapping[int, KafkaFacts],
    cluster: KafkaCluster,
    read_table: ReadTable,
) -> None:
    """Before anything is written: topics and tables are there, and hold where the flow is to start.

    Args:
        planned: The flow.
        opening: How it is to start.
        sources: Its sources as they are now.
        kafka: What the broker holds of its topics.
        cluster: The Kafka cluster.
        read_table: Reads a table's newest snapshot.

    Raises:
        TopicNotFoundError: A topic does not exist.
        StartInvalidError: A source does not hold where its options say that it starts.
    """
    identities = {source.index: source.identity for source in sources}
    for source in planned.sources:
        is_new = opening.positions is None or source.index not in opening.positions
        if source.kind == "kafka":
            require_topics(source, identities[source.index]["topics"], cluster, source.location)
            if is_new:
                start = Start.of(source.options, default="latest")
                check_start(start, kafka[source.index], cluster, source.location)
        elif source.kind == "delta" and is_new:
            path = Path(identities[source.index]["path"])
            state = read_table(path)
            check_table_start(
                source.options,
                path,
                name=str(source.table or path),
                properties=state.properties,
                location=source.location,
            )


def _carry_files(
    flow: Flow, opening: Open, identity: CheckpointIdentity, context: UpdateContext
) -> dict[int, tuple[ReadFile, ...]]:
    """The files that the checkpoint before has read, by source; the new one's own list takes them over."""
    lists = FileLists.of_ledger(context.settings.storage.ledger(flow.target, flow.name))
    carried = {}
    for source in identity.sources:
        if opening.positions is not None and source.index in opening.lists:
            checkpoint, index = opening.lists[source.index]
            read = lists.load_source(checkpoint, index, opening.positions[source.index])
            carried[source.index] = tuple(replace(file, source=source.index, carried=True) for file in read)
    if carried:
        lists.write(identity.checkpoint, 0, (file for files in carried.values() for file in files))
    return carried


def _rewind_ledger(dataset: TableName, flow: str, table: TableState, context: UpdateContext) -> None:
    """A table that was rolled back has versions of the same numbers and another content from here on."""
    ledger = Ledger(context.settings.storage.ledger(dataset, flow), dataset, flow)
    if ledger.rewind(context.settings.storage.table(dataset), table.table_id, table.version):
        fold_ledger(dataset, flow, table.table_id, context)


def _rename_flow(planned: PlannedFlow, old: str, table: TableState, context: UpdateContext) -> None:
    """Give the checkpoint of a flow its new name: first in the table, then on disk."""
    flow, storage = planned.flow, context.settings.storage
    old_folder = storage.flow_checkpoints(flow.target, old)
    known = generations(old_folder)
    identity = load_identity(known[-1]) if known else None
    if identity is None or table.checkpoints.get(flow.name, identity.checkpoint) != identity.checkpoint:
        raise RenameImpossibleError(
            f"flow {old} cannot be renamed to {flow.name}: {flow.target} was not fed by its checkpoint",
            location=flow.location,
            facts=(
                f"the storage looks for it in {old_folder}",
                "`--rename-flow` keeps the table; a function with another name declares another table",
            ),
            remedies=("headrace status lists the flows",),
            params={"flow": flow.name, "old": old},
        )
    # The flow of the old name may still run, in a process that has not seen the new one.
    lease = Lease.acquire(storage.lease(flow.target, old), old)
    try:
        _rename(planned, old, known[-1], identity, table, context)
    finally:
        lease.release()


def _rename(
    planned: PlannedFlow,
    old: str,
    checkpoint: Path,
    identity: CheckpointIdentity,
    table: TableState,
    context: UpdateContext,
) -> None:
    flow, storage = planned.flow, context.settings.storage
    fold_ledger(flow.target, old, table.table_id, context)
    if flow.name not in table.checkpoints:
        opened = OpenedGeneration(
            pipeline=context.settings.name,
            flow=flow.name,
            checkpoint=identity.checkpoint,
            generation=identity.generation,
            opening=Open(reason="renamed"),
            renamed_from=old,
        )
        open_generation(context.spark, storage.table(flow.target), opened)
    old_lists = FileLists.of_ledger(storage.ledger(flow.target, old))
    FileLists.of_ledger(storage.ledger(flow.target, flow.name)).take_over(old_lists)
    write_json(checkpoint / FILE, identity.with_flow(flow.name).to_json())
    folder = storage.flow_checkpoints(flow.target, flow.name)
    if folder.exists():
        shutil.rmtree(folder)
    checkpoint.parent.rename(folder)


def fold_ledger(dataset: TableName, flow: str, table_id: str, context: UpdateContext) -> None:
    """Write down what the table's newest commits say, before Delta deletes them; report strangers'."""
    storage = context.settings.storage
    ledger = Ledger(storage.ledger(dataset, flow), dataset, flow)
    for commit in ledger.fold(storage.table(dataset), table_id):
        context.emit(
            ForeignCommitSeen(
                update=context.update,
                dataset=dataset,
                version=commit.version,
                operation=commit.operation,
                engine=commit.engine,
            )
        )
