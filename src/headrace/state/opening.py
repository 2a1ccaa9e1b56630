"""How a flow starts: go on, open a new checkpoint, or refuse. Pure: it decides and touches nothing.

The rules are those of the table in docs/architecture.md: whatever could lose or double records is
refused with its remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.errors import (
    CheckpointBehindTableError,
    CheckpointLostError,
    FlowRenamedError,
    HeadraceError,
    RenameImpossibleError,
    SourceLocation,
    SourcesChangedError,
    TableBehindCheckpointError,
    TableLostError,
    TopicNotFoundError,
    TopicRecreatedError,
    UpstreamRewrittenError,
)
from headrace.model.ranges import Position
from headrace.state.facts import (
    CheckpointFacts,
    Continue,
    FlowFacts,
    Open,
    Opening,
    RenameFlow,
    TableFacts,
)
from headrace.state.identity import CheckpointIdentity, SourceIdentity
from headrace.state.starting_positions import compare_offsets, open_behind, open_next, resume_impossible


def decide(flow: FlowFacts, table: TableFacts, checkpoint: CheckpointFacts | None) -> Opening:
    """Decide how a flow starts.

    Raises:
        RefusedError: Whatever could lose or double records, with its remedy.
    """
    current = table.checkpoints.get(flow.flow)
    if table.rolled_back:
        raise _upstream_rolled_back(flow, table)
    if flow.rename_from is not None and (current is None or checkpoint is None):
        return _rename_flow(flow, flow.rename_from)
    if flow.new_checkpoint:
        return open_next(flow, table, current, "new-checkpoint")
    if flow.resume and current is not None:
        return _resume(flow, table, current)
    if checkpoint is None or flow.resume:
        if current is not None:
            raise _lost(flow, current)
        _refuse_rename(flow, table)
        return Open(reason="first")
    return _go_on(flow, table, checkpoint, current)


def _rename_flow(flow: FlowFacts, old: str) -> RenameFlow:
    if old in flow.declared_flows:
        raise RenameImpossibleError(
            f"flow {old} cannot be renamed to {flow.flow}: {old} is still declared",
            location=flow.location,
            facts=("two flows would go on with one checkpoint; nothing was changed",),
            remedies=(f"remove the declaration of {old}, or start without --rename-flow:   headrace run",),
            params={"flow": flow.flow, "old": old},
        )
    return RenameFlow(old_flow=old)


def _go_on(flow: FlowFacts, table: TableFacts, checkpoint: CheckpointFacts, current: str | None) -> Opening:
    identity = checkpoint.identity
    committed = table.transactions.get(identity.checkpoint, -1)
    if identity.table_id != table.table_id or (current is None and checkpoint.last_planned >= 0):
        raise TableLostError(
            f"flow {flow.flow}: the table {flow.dataset} is not the one that its checkpoint fed",
            location=flow.location,
            facts=(
                f"checkpoint {identity.checkpoint} has read {checkpoint.last_planned + 1} batches; "
                f"the table {'was just created' if table.fresh else 'was created anew'}",
                "nothing was read or written",
            ),
            remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
            params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": identity.checkpoint},
        )
    if table.ledger_stale or table.folded > table.version:
        raise _table_behind(
            flow,
            "versions that its ledger holds",
            f"the ledger holds version {table.folded}; the table ends at version {table.version}"
            + ("" if table.folded > table.version else ", with other commits"),
            {"table": table.version, "ledger": table.folded},
        )
    if current is not None and current != identity.checkpoint:
        raise _behind(flow, identity, checkpoint.last_planned, f"checkpoint {current} feeds the table now")
    if committed > checkpoint.last_planned:
        raise _behind(
            flow, identity, checkpoint.last_planned, f"the table holds its batches up to {committed}"
        )
    if committed < checkpoint.last_finished:
        raise _table_behind(
            flow,
            "batches that its checkpoint has finished",
            f"checkpoint {identity.checkpoint} has finished batch {checkpoint.last_finished}; "
            f"the table holds its batches up to {committed}",
            {"table": committed, "checkpoint": checkpoint.last_finished},
        )
    known = tuple(_with_joined(source, table, checkpoint) for source in identity.sources)
    if table.positions is not None and not _agree(table.positions, checkpoint.positions):
        # A batch that Spark has planned while a topic of a pattern was gone leaves that topic out.
        _compare_sources(flow, identity.checkpoint, known)
        found = f"the table holds batch {committed} with other ranges"
        raise _behind(flow, identity, checkpoint.last_planned, found)
    if len(flow.sources) != len(identity.sources):
        raise _sources_changed(flow, identity.sources)
    _compare_sources(flow, identity.checkpoint, known)
    positions, losses = compare_offsets(flow, table, checkpoint.positions, continues=True)
    if not losses:
        return Continue(identity=identity)
    return open_behind(flow, table, "data-loss", positions, losses, fences=identity.checkpoint)


def _with_joined(source: SourceIdentity, table: TableFacts, checkpoint: CheckpointFacts) -> SourceIdentity:
    """A source of a checkpoint with all topics that its pattern has come to match since.

    The checkpoint's identity names those of its beginning, and the last commit those that it had read.
    A topic of a batch that was planned and never committed has no id yet: nothing was made of it.
    """
    committed = next((one.identity for one in table.sources if one.index == source.index), {})
    if "pattern" not in source.identity and "pattern" not in committed:
        return source
    ids = {**source.identity["topics"], **committed.get("topics", {})}
    positions = (checkpoint.positions, table.positions or {})
    topics = {topic: ids.get(topic) for position in positions for topic in position.get(source.index, {})}
    return replace(source, identity={**source.identity, "topics": topics})


def _agree(table: Mapping[int, Position], checkpoint: Mapping[int, Position]) -> bool:
    """Whether the checkpoint goes on where the table ends; it may know partitions that are new since."""
    for index, ended in table.items():
        goes_on = checkpoint.get(index, {})
        for key, value in ended.items():
            known = goes_on.get(key)
            if isinstance(value, Mapping) and isinstance(known, Mapping):
                if any(known.get(partition) != offset for partition, offset in value.items()):
                    return False
            elif known != value:
                return False
    return True


def _compare_sources(flow: FlowFacts, checkpoint: str, known: tuple[SourceIdentity, ...]) -> None:
    by_index = {source.index: source for source in flow.sources}
    for then in known:
        now = by_index.get(then.index)
        if now is None or now.kind != then.kind:
            raise _sources_changed(flow, known)
        if now.kind == "kafka":
            _compare_topics(flow, checkpoint, now, then, known)
        elif now.kind == "delta" and now.identity.get("table_id") != then.identity.get("table_id"):
            raise SourcesChangedError(
                f"flow {flow.flow}: the table {now.identity.get('path')} that it reads was created anew",
                location=flow.location,
                facts=("nothing was read or written",),
                remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
                params={"flow": flow.flow, "source": now.index},
            )
        elif now.kind == "files" and now.identity.get("path") != then.identity.get("path"):
            raise _sources_changed(flow, known)


def _compare_topics(
    flow: FlowFacts,
    checkpoint: str,
    now: SourceIdentity,
    then: SourceIdentity,
    known: tuple[SourceIdentity, ...],
) -> None:
    ids = now.identity["topics"]
    joins = "pattern" in now.identity
    if (not joins and set(ids) != set(then.identity["topics"])) or (
        now.identity.get("partitions") != then.identity.get("partitions")
    ):
        raise _sources_changed(flow, known)
    for topic, known_id in then.identity["topics"].items():
        if ids.get(topic) is None:
            raise _topic_gone(flow, checkpoint, topic, known_id, joins=joins)
        if known_id not in (None, ids[topic]):
            raise topic_recreated(flow.flow, flow.location, checkpoint, topic, known_id, ids[topic])


def _topic_gone(
    flow: FlowFacts, checkpoint: str, topic: str, known_id: str | None, *, joins: bool
) -> TopicNotFoundError:
    how = "is gone, or is no match of its pattern any more" if joins else "is gone"
    return TopicNotFoundError(
        f"flow {flow.flow}: the topic `{topic}` that it was reading {how}",
        location=flow.location,
        facts=(f"checkpoint {checkpoint} read topic id {known_id}",) if known_id else (),
        remedies=(
            *([f"go on without it:   headrace run --new-checkpoint {flow.flow}"] if joins else []),
            f"create it again:   headrace broker topics create {topic}",
        ),
        params={"flow": flow.flow, "topic": topic},
    )


def topic_recreated(
    flow: str, location: SourceLocation, checkpoint: str, topic: str, known_id: str | None, now_id: str | None
) -> TopicRecreatedError:
    """The refusal of a topic that was deleted and created again, at the start or in a run."""
    now = "no such topic" if now_id is None else now_id
    return TopicRecreatedError(
        f"flow {flow}: topic `{topic}` is not the topic that this checkpoint was reading",
        location=location,
        facts=(
            f"checkpoint {checkpoint} read topic id {known_id}; the broker now has {now}",
            "no record of the new topic was committed",
        ),
        remedies=(
            f"keep the rows and go on with the new topic:   headrace run --new-checkpoint {flow}",
            "or point the flow at the topic that you meant",
        ),
        params={"flow": flow, "topic": topic, "was": known_id, "is": now_id},
    )


def _resume(flow: FlowFacts, table: TableFacts, current: str) -> Opening:
    if flow.stateful:
        raise resume_impossible(flow, "it keeps state, which the table does not hold")
    if table.transactions.get(current) is None:
        # It has read nothing yet; what checkpoints before it have read is not read again.
        return open_next(flow, table, current, "resume-from-table")
    if table.positions is None:
        raise resume_impossible(flow, "neither the table's log nor the ledger say how far it had read")
    _compare_sources(flow, current, table.sources)
    positions, losses = compare_offsets(flow, table, table.positions)
    return open_behind(flow, table, "resume-from-table", positions, losses, fences=current)


def _refuse_rename(flow: FlowFacts, table: TableFacts) -> None:
    orphans = sorted(set(table.checkpoints) - flow.declared_flows)
    if not orphans:
        return
    raise FlowRenamedError(
        f"flow {flow.flow} is new, and flow {orphans[0]}, which fed {flow.dataset}, is no longer declared",
        location=flow.location,
        facts=("if it is the same flow, starting anew would read every record twice", "nothing was read"),
        remedies=(
            f"it was renamed:   headrace run --rename-flow {orphans[0]}={flow.flow}",
            f"it is another flow:   headrace run --new-checkpoint {flow.flow}",
        ),
        params={"flow": flow.flow, "orphans": orphans},
    )


def _lost(flow: FlowFacts, current: str) -> HeadraceError:
    return CheckpointLostError(
        f"flow {flow.flow}: its checkpoint is lost, and the table {flow.dataset} holds what it wrote",
        location=flow.location,
        facts=(
            f"the table was fed through checkpoint {current}, which is not in the storage",
            "starting anew would read every record twice; nothing was read or written",
        ),
        remedies=resume_remedy(flow),
        params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": current},
    )


def _upstream_rolled_back(flow: FlowFacts, table: TableFacts) -> HeadraceError:
    return UpstreamRewrittenError(
        f"flow {flow.flow}: a table that it reads is not the one that it has read up to now",
        location=flow.location,
        facts=(
            *(f"{path}: {how}" for path, how in table.rolled_back.items()),
            "an old copy of it was restored; going on would skip or repeat rows, and nothing was read",
        ),
        remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
        params={"flow": flow.flow, "dataset": flow.dataset, "tables": sorted(table.rolled_back)},
    )


def _table_behind(flow: FlowFacts, lacks: str, found: str, numbers: Mapping[str, int]) -> HeadraceError:
    return TableBehindCheckpointError(
        f"flow {flow.flow}: the table {flow.dataset} lacks {lacks}",
        location=flow.location,
        facts=(found, "an old copy of the table was restored; nothing was read or written"),
        remedies=resume_remedy(flow),
        params={"flow": flow.flow, **numbers},
    )


def _behind(flow: FlowFacts, identity: CheckpointIdentity, planned: int, found: str) -> HeadraceError:
    return CheckpointBehindTableError(
        f"flow {flow.flow}: its checkpoint is older than the table {flow.dataset}",
        location=flow.location,
        facts=(
            f"checkpoint {identity.checkpoint} has planned batch {planned}; {found}",
            "an old copy was restored, or another driver went on; nothing was read or written",
        ),
        remedies=resume_remedy(flow),
        params={"flow": flow.flow, "dataset": flow.dataset, "checkpoint": identity.checkpoint},
    )


def resume_remedy(flow: FlowFacts) -> tuple[str, ...]:
    """What to do about a checkpoint that is of no more use."""
    if flow.stateful:
        return (f"read everything again:   headrace full-refresh {flow.dataset}",)
    return (resume_command(flow.flow),)


def resume_command(flow: str) -> str:
    """The remedy that opens a new checkpoint at the table's positions."""
    return f"go on where the table ends:   headrace run --resume-from-table {flow}"


def _sources_changed(flow: FlowFacts, known: tuple[SourceIdentity, ...]) -> HeadraceError:
    def listed(sources: tuple[SourceIdentity, ...]) -> str:
        return ", ".join(f"{s.kind} {', '.join(_described(s))}" for s in sources)

    return SourcesChangedError(
        f"flow {flow.flow} reads other sources than its checkpoint has positions for",
        location=flow.location,
        facts=(
            f"the checkpoint read {listed(known)}",
            f"the query reads {listed(flow.sources)}",
            "nothing was read or written",
        ),
        remedies=(
            f"go on with what it reads now:   headrace run --new-checkpoint {flow.flow}",
            f"read everything again:   headrace full-refresh {flow.dataset}",
        ),
        params={"flow": flow.flow},
    )


def _described(source: SourceIdentity) -> list[str]:
    if source.kind == "kafka":
        given = source.identity.get("partitions", {})
        listed = [
            f"{topic} {given[topic]}" if topic in given else topic for topic in source.identity["topics"]
        ]
        pattern = source.identity.get("pattern")
        return listed if pattern is None else [*listed, f"by the pattern {pattern}"]
    return [str(source.identity.get("path"))]
