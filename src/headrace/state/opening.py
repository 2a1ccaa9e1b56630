"""How a flow starts: go on, open a new checkpoint, or refuse. Pure: it decides and touches nothing.

The rules are those of the table in docs/architecture.md: whatever could lose or double records is
refused with its remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from headrace.errors import (
    AdoptImpossibleError,
    CheckpointBehindTableError,
    CheckpointLostError,
    FlowRenamedError,
    HeadraceError,
    OffsetsBeyondEndError,
    OffsetsExpiredError,
    ResumeImpossibleError,
    SourceLocation,
    SourcesChangedError,
    TableBehindCheckpointError,
    TableLostError,
    TopicNotFoundError,
    TopicRecreatedError,
    UpstreamRewrittenError,
)
from headrace.model.project import OnDataLoss
from headrace.model.ranges import Position
from headrace.state.equal_sources import differ, why_not_handed_over
from headrace.state.history import History, PastRead
from headrace.state.identity import CheckpointIdentity, SourceIdentity

FENCED = 2**63 - 1
"""The batch number that no batch ever follows: what fences a checkpoint in its table."""

ListOrigin = tuple[str, int]
"""Whose lists name the files that were read: a checkpoint, and the index of a source in it."""

Reason = Literal["first", "resume-from-table", "new-generation", "data-loss", "full-refresh", "adopt"]


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """The target as it stands now.

    Args:
        table_id: Delta's id of the table.
        fresh: Whether this update created it.
        version: Its version now.
        folded: The last version that the flow's ledger holds of it; -1 if none.
        checkpoints: The checkpoint that feeds it, by flow.
        transactions: Its SetTransactions: the last batch, by checkpoint.
        positions: Where the last commit of this flow's checkpoint ended, by source index;
            ``None`` where neither log nor ledger know.
        sources: Which sources that commit had read, by its own word.
        history: How far the sources of all the flow's checkpoints were read.
        rolled_back: Of which tables versions that were read are no more, and how that shows.
        unlisted: Reads of folders, by checkpoint and source index, of which the ledger does not hold
            all files.
        read_elsewhere: By source index, a file that the flow has read through another folder.
    """

    table_id: str
    fresh: bool
    checkpoints: Mapping[str, str]
    transactions: Mapping[str, int]
    positions: Mapping[int, Position] | None = None
    sources: tuple[SourceIdentity, ...] = ()
    version: int = -1
    folded: int = -1
    rolled_back: Mapping[str, str] = field(default_factory=dict)
    unlisted: frozenset[ListOrigin] = frozenset()
    history: History = field(default_factory=History)
    read_elsewhere: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class CheckpointFacts:
    """The flow's newest checkpoint as it lies on disk."""

    identity: CheckpointIdentity
    last_planned: int
    last_finished: int
    positions: Mapping[int, Position]
    """Where what the table does not hold yet begins, by source index: a batch that was planned and
    not committed is still to be read."""


@dataclass(frozen=True, kw_only=True)
class KafkaFacts:
    """What the broker says of the topics of one source, by topic.

    Args:
        on_data_loss: The policy of this source alone; ``None`` takes the flow's.
    """

    ids: Mapping[str, str | None]
    earliest: Mapping[str, Mapping[int, int]]
    latest: Mapping[str, Mapping[int, int]]
    on_data_loss: OnDataLoss | None = None


@dataclass(frozen=True, kw_only=True)
class FlowFacts:
    """The flow as it is declared, and what the user asked for on the command line."""

    flow: str
    dataset: str
    location: SourceLocation
    declared_flows: frozenset[str]
    sources: tuple[SourceIdentity, ...]
    stateful: bool
    kafka: Mapping[int, KafkaFacts]
    on_data_loss: OnDataLoss = "refuse"
    resume: bool = False
    new_generation: bool = False
    adopt_from: str | None = None


@dataclass(frozen=True, kw_only=True)
class Continue:
    """Go on with the checkpoint as it is."""

    identity: CheckpointIdentity


@dataclass(frozen=True, kw_only=True)
class Open:
    """Open a new checkpoint, and fence the old one in the same commit.

    Args:
        positions: Where it starts; ``None`` starts at the sources' beginning.
        lists: For each files source with a position, whose lists hold what was read.
        fences: The checkpoint that may never commit again.
        losses: What will never be read; written to the ledger first.
    """

    reason: Reason
    positions: Mapping[int, Position] | None = None
    lists: Mapping[int, ListOrigin] = field(default_factory=dict)
    fences: str | None = None
    losses: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Adopt:
    """Go on with the checkpoint of a flow that had another name."""

    old_flow: str


Opening = Continue | Open | Adopt


def decide(flow: FlowFacts, table: TableFacts, checkpoint: CheckpointFacts | None) -> Opening:
    """Decide how a flow starts.

    Raises:
        RefusedError: Whatever could lose or double records, with its remedy.
    """
    current = table.checkpoints.get(flow.flow)
    if table.rolled_back:
        raise _upstream_rolled_back(flow, table)
    if flow.adopt_from is not None and (current is None or checkpoint is None):
        return _adopt(flow, flow.adopt_from)
    if flow.new_generation:
        return _new_generation(flow, table, current)
    if flow.resume and current is not None:
        return _resume(flow, table, current)
    if checkpoint is None or flow.resume:
        if current is not None:
            raise _lost(flow, current)
        _refuse_rename(flow, table)
        return Open(reason="first")
    return _go_on(flow, table, checkpoint, current)


def _adopt(flow: FlowFacts, old: str) -> Adopt:
    if old in flow.declared_flows:
        raise AdoptImpossibleError(
            f"flow {flow.flow} cannot adopt flow {old}, which is still declared",
            location=flow.location,
            facts=("two flows would go on with one checkpoint; nothing was changed",),
            remedies=(f"remove the declaration of {old}, or start without --adopt:   headrace run",),
            params={"flow": flow.flow, "old": old},
        )
    return Adopt(old_flow=old)


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
    if table.folded > table.version:
        raise _table_behind(
            flow,
            "versions that its ledger holds",
            f"the ledger holds version {table.folded}; the table ends at version {table.version}",
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
    goes_on = Continue(identity=identity)
    return _compare_offsets(flow, table, checkpoint.positions, goes_on, fences=identity.checkpoint)


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
        elif now.kind == "files" and differ(now, then, flow.sources):
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
            *([f"go on without it:   headrace run --new-generation {flow.flow}"] if joins else []),
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
            f"keep the rows and go on with the new topic:   headrace run --new-generation {flow}",
            "or point the flow at the topic that you meant",
        ),
        params={"flow": flow, "topic": topic, "was": known_id, "is": now_id},
    )


def _compare_offsets(
    flow: FlowFacts,
    table: TableFacts,
    known: Mapping[int, Position],
    otherwise: Continue | None,
    *,
    reason: Reason = "data-loss",
    fences: str,
    lists: Mapping[int, ListOrigin] | None = None,
) -> Opening:
    """Whether the broker still holds what comes next; a loss policy goes on behind what it does not.

    Args:
        flow: The flow.
        table: Its table.
        known: Where it goes on.
        otherwise: Is returned where nothing is lost; ``None`` opens a new checkpoint there.
        reason: Why a new checkpoint is opened.
        fences: The checkpoint in force.
        lists: Whose lists name the files that were read, where that is not the checkpoint in force.
    """
    losses: list[dict[str, Any]] = []
    positions = {index: _copied(position) for index, position in known.items()}
    for index, kafka in flow.kafka.items():
        if index not in positions:
            continue
        for topic, partition, first in _first_offsets(kafka):
            offsets = positions[index].setdefault(topic, {})
            if str(partition) not in offsets:
                # A partition that was never read starts at 0, wherever the broker's first record is.
                offsets[str(partition)] = _ended_at(flow, table, kafka.ids.get(topic), topic, partition) or 0
                if otherwise is not None and offsets[str(partition)] > 0:
                    raise _read_before(flow, topic, partition, offsets[str(partition)])
            offset = offsets[str(partition)]
            end = kafka.latest.get(topic, {}).get(partition, offset)
            if offset > end:
                raise _beyond_end(flow, topic, partition, offset, end)
            if offset < first:
                positions[index][topic][str(partition)] = first
                losses.append(
                    {"source": index, "topic": topic, "partition": partition, "from": offset, "until": first}
                )
    if not losses and otherwise is not None:
        return otherwise
    policies = {index: kafka.on_data_loss or flow.on_data_loss for index, kafka in flow.kafka.items()}
    refused = [loss for loss in losses if policies[loss["source"]] == "refuse"]
    if refused:
        raise offsets_expired(flow.flow, flow.location, refused)
    if flow.stateful:
        raise _resume_impossible(flow, "it keeps state, which a new checkpoint would not have")
    files = {source.index for source in flow.sources if source.kind == "files"}
    lists = {index: (fences, index) for index in files & set(positions)} if lists is None else lists
    # A new checkpoint needs the names of all files that were read, or it would read them again.
    if not table.unlisted.isdisjoint(lists.values()):
        raise _resume_impossible(flow, "the ledger does not hold the names of all files that were read")
    return Open(
        reason="data-loss" if losses else reason,
        positions=positions,
        lists=lists,
        fences=fences,
        losses=tuple(losses),
    )


def _ended_at(
    flow: FlowFacts, table: TableFacts, topic_id: str | None, topic: str, partition: int
) -> int | None:
    """Where an earlier checkpoint has ended a partition; ``None`` where none has read it.

    Raises:
        ResumeImpossibleError: Two places of its query had read it, up to different offsets.
    """
    ended = {} if topic_id is None else table.history.topics.get(topic_id, {})
    if ended.get(str(partition), 0) is None:
        raise _resume_impossible(flow, _apart(f"the topic {topic}"))
    return ended.get(str(partition))


def _apart(what: str) -> str:
    return f"it has read {what} in two places of its query, up to different positions"


def _read_before(flow: FlowFacts, topic: str, partition: int, offset: int) -> HeadraceError:
    return SourcesChangedError(
        f"flow {flow.flow}: the topic `{topic}` is back, and an earlier checkpoint has read it",
        location=flow.location,
        facts=(
            f"partition {partition} was read up to {offset}; the checkpoint in force would begin at 0",
            "nothing was read or written",
        ),
        remedies=(f"go on where it was left:   headrace run --new-generation {flow.flow}",),
        params={"flow": flow.flow, "topic": topic, "partition": partition, "offset": offset},
    )


def _first_offsets(kafka: KafkaFacts) -> list[tuple[str, int, int]]:
    return [
        (topic, partition, first)
        for topic, partitions in kafka.earliest.items()
        for partition, first in partitions.items()
    ]


def _beyond_end(flow: FlowFacts, topic: str, partition: int, offset: int, end: int) -> HeadraceError:
    return OffsetsBeyondEndError(
        f"flow {flow.flow}: topic `{topic}`, partition {partition} ends at offset {end}, "
        f"before {offset}, up to which it was read",
        location=flow.location,
        facts=("the broker has lost records; nothing was read or written",),
        remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
        params={"flow": flow.flow, "topic": topic, "partition": partition},
    )


def offsets_expired(flow: str, location: SourceLocation, losses: list[dict[str, Any]]) -> OffsetsExpiredError:
    """The refusal of a source whose retention has passed the checkpoint."""
    lost = sum(loss["until"] - loss["from"] for loss in losses)
    return OffsetsExpiredError(
        f"flow {flow}: the broker no longer holds {lost} offsets that it has not read",
        location=location,
        facts=(
            *(
                f"topic {loss['topic']}, partition {loss['partition']}: {loss['from']} to {loss['until'] - 1}"
                for loss in losses
            ),
            "nothing was read or written",
        ),
        remedies=(
            'set `on_data_loss: record` in headrace.yml, or on_data_loss="record" in read_kafka: the flow '
            "goes on behind them, and the ledger keeps what was lost",
        ),
        params={"flow": flow, "losses": losses},
    )


def _resume(flow: FlowFacts, table: TableFacts, current: str) -> Opening:
    if flow.stateful:
        raise _resume_impossible(flow, "it keeps state, which the table does not hold")
    if table.transactions.get(current) is None:
        return Open(reason="resume-from-table", fences=current)
    if table.positions is None:
        raise _resume_impossible(flow, "neither the table's log nor the ledger say how far it had read")
    _compare_sources(flow, current, table.sources)
    return _compare_offsets(flow, table, table.positions, None, reason="resume-from-table", fences=current)


def _new_generation(flow: FlowFacts, table: TableFacts, current: str | None) -> Opening:
    """Start anew on topics that were created anew, and go on with those that were not.

    A flow that has fed the table before starts at given positions, so that no record is read twice
    and none is skipped, whatever its ``starting_offsets`` say.
    """
    committed = current is not None and table.transactions.get(current) is not None
    if current is None or not (committed or table.history.topics or table.history.reads):
        return Open(reason="new-generation", fences=current)
    if flow.stateful:
        raise _resume_impossible(flow, "it keeps state, which a new checkpoint would not have")
    if committed and table.positions is None:
        raise _resume_impossible(flow, "neither the table's log nor the ledger say how far it had read")
    if (why := why_not_handed_over(flow.sources, table.sources, table.positions or {})) is not None:
        raise _resume_impossible(flow, why)
    positions: dict[int, Position] = {}
    lists: dict[int, ListOrigin] = {}
    for source in flow.sources:
        if source.kind == "kafka":
            positions[source.index] = _new_offsets(flow, table, flow.kafka[source.index])
        elif (past := _past_read(flow, table, source)) is not None:
            positions[source.index] = past.until
            if source.kind == "files":
                lists[source.index] = (past.checkpoint, past.source.index)
        elif source.index in table.read_elsewhere:
            path = table.read_elsewhere[source.index]
            raise _resume_impossible(flow, f"it has read {path} before, through another folder")
    if not positions:
        return Open(reason="new-generation", fences=current)
    return _compare_offsets(
        flow, table, positions, None, reason="new-generation", fences=current, lists=lists
    )


def _new_offsets(flow: FlowFacts, table: TableFacts, kafka: KafkaFacts) -> Position:
    """Where each partition goes on: a topic of a known id where it ended, another at its first record."""
    found: dict[str, dict[str, int]] = {}
    for topic, partitions in kafka.earliest.items():
        topic_id = kafka.ids.get(topic)
        known = topic_id in table.history.topics
        for partition, first in partitions.items():
            ended = _ended_at(flow, table, topic_id, topic, partition)
            found.setdefault(topic, {})[str(partition)] = (ended or 0) if known else first
    return found


def _past_read(flow: FlowFacts, table: TableFacts, source: SourceIdentity) -> PastRead | None:
    """The read of a table or a folder that a source goes on behind; ``None`` for one that is new.

    Raises:
        ResumeImpossibleError: It was read in several places, and none of them is this one for sure.
    """
    past = table.history.reads.get(source.key, ())
    path = source.identity.get("path")
    for read in past:
        if read.source.index == source.index:
            if source.kind == "files" and differ(source, read.source, flow.sources):
                why = f"it reads {path} several times, and other files in each place"
                raise _resume_impossible(flow, why)
            return read
    if not past:
        return None
    alike = [one for one in flow.sources if one.key == source.key]
    several = len(past) > 1 or len(alike) > 1
    ends = [{**read.until, "sourceVersion": None} for read in past]
    if several and (source.kind == "files" or any(end != ends[0] for end in ends)):
        raise _resume_impossible(flow, _apart(str(path)))
    return past[0]


def _resume_impossible(flow: FlowFacts, why: str) -> HeadraceError:
    return ResumeImpossibleError(
        f"flow {flow.flow} cannot be resumed from its table: {why}",
        location=flow.location,
        facts=("nothing was read or written",),
        remedies=(f"read everything again:   headrace full-refresh {flow.dataset}",),
        params={"flow": flow.flow},
    )


def _refuse_rename(flow: FlowFacts, table: TableFacts) -> None:
    orphans = sorted(set(table.checkpoints) - flow.declared_flows)
    if not orphans:
        return
    raise FlowRenamedError(
        f"flow {flow.flow} is new, and flow {orphans[0]}, which fed {flow.dataset}, is no longer declared",
        location=flow.location,
        facts=("if it is the same flow, starting anew would read every record twice", "nothing was read"),
        remedies=(
            f"it was renamed:   headrace run --adopt {orphans[0]}={flow.flow}",
            f"it is another flow:   headrace run --new-generation {flow.flow}",
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
            f"go on with what it reads now:   headrace run --new-generation {flow.flow}",
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


def _copied(position: Position) -> dict[str, Any]:
    return {key: dict(value) if isinstance(value, dict) else value for key, value in position.items()}
